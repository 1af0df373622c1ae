// Both attentions by products of numbers in pieces of bf16, against the oracle: three pieces within
// what floats are allowed, two within as much of 2^-18, which is what their products lose at random
// (2^-15 at most), nearly.
#include <algorithm>
#include <cmath>
#include <limits>

#include "headwise/ops/split_products.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/mask_recipes.hpp"
#include "support/other_products.hpp"

namespace ops_split_attention {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {{1, 1, 1, 1, 1, 1, 1},       {3, 4, 2, 7, 5, 3, 2},
                                   {3, 2, 2, 1, 67, 4, 9},      {2, 4, 2, 49, 67, 33, 17},
                                   {1, 2, 1, 97, 48, 16, 5},    {1, 2, 2, 33, 131, 17, 32},
                                   {1, 1, 1, 150, 300, 65, 40}, beyond_tiles};

void check_all(const Case<float>& x) {
  const OracleResult expected = oracle_attention(x.problem());
  for (const auto& [name, products] : supported_split_products()) {
    const Real epsilon =
        name == "two pieces" ? 0x1p-18L : Real{std::numeric_limits<float>::epsilon()};
    for (Path path : {Path::materialized, Path::flash}) {
      const bool tiled = path == Path::flash;
      CAPTURE(name, tiled);
      CHECK(disagreement(run(path, x, {.products = products}), expected, x.sizes, epsilon) == "");
    }
  }
}

}  // namespace

TEST_CASE("both attentions in pieces equal the oracle, for every mask", "[ops]") {
  std::uint64_t seed = 6000;
  for (const Recipe<float>& recipe : mask_recipes<float>()) {
    for (const Sizes& sizes : shapes) {
      Case<float> x(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format(), seed);
      check_all(x);
    }
  }
}

TEST_CASE("both attentions in pieces equal the oracle whatever changes their scores", "[ops]") {
  std::uint64_t seed = 6500;
  for (const Recipe<float>& recipe : score_recipes()) {
    for (const Sizes& sizes : shapes) {
      Case<float> x(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format(), seed);
      check_all(x);
    }
  }
}

TEST_CASE("both attentions in pieces equal the oracle for wide heads", "[ops]") {
  const Index d = GENERATE(31, 64, 127, 129), dv = GENERATE(33, 64, 130);
  Case<float> x(Sizes{1, 2, 1, 53, 71, d, dv}, 6600);
  x.causal();
  CAPTURE(x.sizes.format());
  check_all(x);
}

TEST_CASE("in pieces nothing flows into scores where one key has all the weight", "[ops]") {
  for (const auto& [name, products] : supported_split_products()) {
    // Two pieces of a value's two pieces may be others where the second lies halfway.
    const float most = name == "two pieces" ? 0.01f : 0.0f;
    for (const Sizes& sizes : {Sizes{1, 2, 2, 53, 71, 64, 64}, Sizes{2, 2, 1, 150, 67, 9, 40},
                               Sizes{1, 1, 1, 17, 300, 16, 131}}) {
      Case<float> x(sizes, 6700);
      for (float& number : x.q) number *= 1e9f;
      for (Path path : {Path::materialized, Path::flash}) {
        const auto y = run(path, x, {.products = products});
        const bool tiled = path == Path::flash;
        CAPTURE(name, sizes.format(), tiled);
        CHECK(
            std::all_of(y.dq.begin(), y.dq.end(), [&](float dq) { return std::abs(dq) <= most; }));
        const auto few = [&](float dk) { return std::abs(dk) <= 1e9f * most; };
        CHECK(std::all_of(y.dk.begin(), y.dk.end(), few));
      }
    }
  }
}

}  // namespace ops_split_attention
