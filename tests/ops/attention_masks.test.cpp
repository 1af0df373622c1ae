// Both attentions against the oracle, for every kind of mask.
#include <cmath>
#include <limits>

#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/mask_recipes.hpp"

namespace ops_attention_masks {

using namespace headwise_tests;

namespace {

// 1, primes, vectors and one below and one above them and panels, more than one block of queries
// and of keys, both L < S and L > S, and every grouping of heads.
const std::vector<Sizes> shapes = {
    {1, 1, 1, 1, 1, 1, 1},
    {3, 4, 2, 7, 5, 3, 2},
    {2, 3, 1, 11, 13, 5, 7},
    {3, 2, 2, 1, 67, 4, 9},
    {2, 2, 1, 47, 65, 8, 17},
    {2, 2, 2, 49, 63, 17, 8},
    {1, 2, 1, 97, 48, 6, 5},
    {1, 1, 1, 131, 67, 5, 3},
    {1, 2, 2, 50, 193, 3, 16},
    {1, 1, 1, 8, 17, 8, 8},
    {1, 2, 2, 16, 16, 16, 16},
    {2, 2, 1, 18, 18, 8, 16},
    beyond_tiles,
};

template <class T>
void check_both(const Case<T>& x) {
  const OracleResult expected = oracle_attention(x.problem());
  CHECK(disagreement(run(Path::materialized, x), expected, x.sizes) == "");
  CHECK(disagreement(run(Path::flash, x), expected, x.sizes) == "");
}

Index dead_rows(const Case<double>& x) {
  Index count = 0;
  for_each_index(Shape{x.sizes.B, x.sizes.H, x.sizes.L},
                 [&](const Shape<3>& row) { count += x.sees_any(row[0], row[1], row[2]) ? 0 : 1; });
  return count;
}

}  // namespace

TEMPLATE_TEST_CASE("both attentions equal the oracle for every kind of mask", "[ops]", float,
                   double) {
  std::uint64_t seed = 100;
  for (const Recipe<TestType>& recipe : mask_recipes<TestType>()) {
    for (const Sizes& sizes : shapes) {
      Case<TestType> x(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format(), seed);
      check_both(x);
    }
  }
}

TEMPLATE_TEST_CASE("both attentions equal the oracle for wide heads", "[ops]", float, double) {
  const Index d = GENERATE(31, 64, 127, 129, 257), dv = GENERATE(33, 64, 130);
  Case<TestType> x(Sizes{1, 2, 1, 53, 71, d, dv}, 200);
  x.causal();
  x.bias(Shape{1, 2, 53, 71});
  CAPTURE(x.sizes.format());
  check_both(x);
}

TEMPLATE_TEST_CASE("both attentions equal the oracle under dropout of the weights", "[ops]", float,
                   double) {
  const double rate = GENERATE(0.1, 0.5, 0.999, 1.0);
  std::uint64_t seed = 300;
  for (const Sizes& sizes : shapes) {
    Case<TestType> x(sizes, ++seed);
    x.dropout(rate);
    const bool masked = seed % 2 == 0;
    if (masked) x.causal(), x.bias(Shape{1, sizes.H, sizes.L, sizes.S}), x.keys(true);
    CAPTURE(sizes.format(), seed, rate, masked);
    check_both(x);
  }
}

TEMPLATE_TEST_CASE("the scale that is given replaces that of the head width", "[ops]", float,
                   double) {
  const double scale = GENERATE(0.0, 1.0, -0.7, 0.125);
  Case<TestType> x(Sizes{2, 4, 2, 49, 67, 6, 5}, 400);
  x.scale(scale);
  CAPTURE(scale);
  check_both(x);
}

TEST_CASE("a query that sees no key has weights, output and gradient 0 and logsumexp -infinity",
          "[ops]") {
  Index dead = 0;
  for (const Recipe<double>& recipe : mask_recipes<double>()) {
    for (const Sizes& sizes : shapes) {
      Case<double> x(sizes, 500);
      recipe.apply(x);
      if (dead_rows(x) == 0) continue;
      dead += dead_rows(x);
      CAPTURE(recipe.name, sizes.format());
      const auto kept = run(Path::materialized, x), tiled = run(Path::flash, x);
      Index wrong = 0;
      for_each_index(Shape{sizes.B, sizes.H, sizes.L}, [&](const Shape<3>& row) {
        const auto [b, h, i] = row.extents;
        if (x.sees_any(b, h, i)) return;
        wrong += tiled.lse(b, h, i, 0) == -std::numeric_limits<double>::infinity() ? 0 : 1;
        wrong += tiled.lse(b, h, i, 1) == 0 ? 0 : 1;
        for (Index j = 0; j < sizes.S; ++j) wrong += kept.weights(b, h, i, j) == 0 ? 0 : 1;
        for (const auto* y : {&kept, &tiled}) {
          for (Index c = 0; c < sizes.dv; ++c) wrong += y->o(b, h, i, c) == 0 ? 0 : 1;
          for (Index c = 0; c < sizes.d; ++c) wrong += y->dq(b, h, i, c) == 0 ? 0 : 1;
        }
      });
      CHECK(wrong == 0);
    }
  }
  CHECK(dead > 100);
}

TEMPLATE_TEST_CASE("weights are at least 0, 0 where hidden, and rows that see a key sum to 1",
                   "[ops]", float, double) {
  for (const Recipe<TestType>& recipe : mask_recipes<TestType>()) {
    for (const Sizes& sizes : shapes) {
      Case<TestType> x(sizes, 600);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format());
      const Tensor4<TestType> p = run(Path::materialized, x).weights;
      Real worst = 0;
      Index wrong = 0;
      for_each_index(Shape{sizes.B, sizes.H, sizes.L}, [&](const Shape<3>& row) {
        const auto [b, h, i] = row.extents;
        Real sum = 0;
        for (Index j = 0; j < sizes.S; ++j) {
          sum += Real{p(b, h, i, j)};
          wrong += p(b, h, i, j) >= 0 && (p(b, h, i, j) == 0 || x.visible(b, h, i, j)) ? 0 : 1;
        }
        worst = std::max(worst, std::abs(sum - (x.sees_any(b, h, i) ? 1 : 0)));
      });
      CHECK(wrong == 0);
      // Each weight is right to about an epsilon of itself, but for the sum that divides them all.
      CHECK(worst <= 4 * std::sqrt(Real(sizes.S)) * Real{std::numeric_limits<TestType>::epsilon()});
    }
  }
}

TEMPLATE_TEST_CASE("a causal mask of values is causal, to rounding", "[ops]", float, double) {
  const Index n = GENERATE(1, 7, 47, 65, 131);
  Case<TestType> x(Sizes{1, 2, 1, n, n, 5, 4}, 700);
  Case<TestType> filled = x;
  x.causal();
  const Tensor2<TestType> values = causal_mask<TestType>(n);
  filled.options.mask.add(Mask::bias(values));
  CAPTURE(n);
  const OracleResult expected = oracle_attention(x.problem());
  for (Path path : {Path::materialized, Path::flash}) {
    CHECK(disagreement(run(path, filled), expected, x.sizes) == "");
  }
}

TEST_CASE("a row of nothing but -1e9 is a row of numbers", "[ops]") {
  // Beside 1e9 a double holds a score to 1e-7.
  Case<double> x(Sizes{1, 2, 1, 51, 67, 5, 4}, 800);
  x.bias(Shape{1, 1, 51, 67}, 1.0, -1e9);
  const OracleResult expected = oracle_attention(x.problem());
  for (Path path : {Path::materialized, Path::flash}) {
    const bool tiled = path == Path::flash;
    CAPTURE(tiled);
    const auto y = run(path, x);
    CHECK(relative_error(y.o, expected.o) < 1e-6L);
    CHECK(relative_error(y.dq, expected.dq) < 1e-6L);
    CHECK(relative_error(y.dk, expected.dk) < 1e-6L);
    CHECK(relative_error(y.dv, expected.dv) < 1e-6L);
  }
}

TEST_CASE("in float a row of nothing but -1e9 has equal weights, backward too", "[ops]") {
  // Beside 1e9 a float holds a score to 64: all are the same, as if q were 0.
  Case<float> x(Sizes{1, 2, 1, 51, 67, 5, 4}, 801);
  OracleProblem uniform = x.problem();
  std::fill(uniform.q.values.begin(), uniform.q.values.end(), Real{0});
  const OracleResult equal = oracle_attention(uniform);
  x.bias(Shape{1, 1, 51, 67}, 1.0, -1e9f);
  for (Path path : {Path::materialized, Path::flash}) {
    const bool tiled = path == Path::flash;
    CAPTURE(tiled);
    const auto y = run(path, x);
    CHECK(relative_error(y.o, equal.o) < 1e-5L);
    CHECK(relative_error(y.dv, equal.dv) < 1e-5L);
    CHECK(relative_error(y.dq, equal.dq) < 1e-5L);
  }
}

}  // namespace ops_attention_masks
