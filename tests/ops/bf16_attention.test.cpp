// Both attentions by products of bf16, against the oracle.
//
// The inputs are numbers of bf16 already, so that q k^T, d_o v^T and with them scores and weights
// are those of float. What is rounded is p and ds, each by at most 2^-8 of itself, and in tiles so
// is the sum that p is divided by, which is that of rounded ones:
//
//   lse                       2^-8 in tiles, for it is the logarithm of that sum
//   o = p v, dv = p^T d_o     2^-8 of the sum of |p v|, of |p d_o|, in tiles twice that for p's sum
//   delta = d_o o             in tiles of that o: 2^-8 of its terms |d_o p v|
//   ds = p (dp - delta)       so 2^-8 of p times the terms of dp and delta, rounded as much again
//   dq = ds k, dk = ds^T q    2 times 2^-8 of the sum of the absolute values of all of these
//
// So c 2^-8 of an element's own sum of absolute values bounds its error, c = 2 but for o and dv of
// kept weights, where it is 1; 2^-6 of that for products of errors, and beside it what float loses.
// (Of dq and dk in tiles all of it at once would be 3. The largest found: o 1.20, dv 1.05, dq 0.77,
// dk 0.73. Where few numbers are summed, cutting them off comes to 2.)
#include <cmath>
#include <limits>

#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/mask_recipes.hpp"
#include "support/other_products.hpp"

namespace ops_bf16_attention {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {{1, 1, 1, 1, 1, 1, 1},
                                   {3, 4, 2, 7, 5, 3, 2},
                                   {3, 2, 2, 1, 67, 4, 9},
                                   {2, 4, 2, 49, 67, 33, 17},
                                   {1, 2, 1, 97, 48, 16, 5},
                                   {1, 2, 2, 33, 131, 17, 32},
                                   beyond_tiles};

Case<float> case_of_bf16(const Sizes& sizes, std::uint64_t seed) {
  Case<float> x(sizes, seed);
  for (Tensor4<float>* t : {&x.q, &x.k, &x.v, &x.d_o}) {
    for (float& value : *t) value = bf16_factor(value);
  }
  return x;
}

/// The greatest error of an element beyond `loss` of the greatest sum, in units of 2^-8 of its own
/// sum of absolute values.
Real error_in_bf16(const Tensor4<float>& got, const Field& expected, Real loss) {
  const Real lost = loss * expected.size();
  Real worst = 0;
  for (Index n = 0; n < got.size(); ++n) {
    const Real error = std::abs(Real{got.data()[n]} - expected[n]) - lost;
    const Real sum = expected.sums[static_cast<std::size_t>(n)];
    if (!(error <= worst * sum * 0x1p-8L)) worst = error / (sum * 0x1p-8L);
  }
  return worst;
}

void check_all(const Case<float>& x) {
  const OracleResult y = oracle_attention(x.problem());
  const Sizes& s = x.sizes;
  const Index n = std::max({s.d, s.dv, s.S, s.L * (s.H / s.G)});
  const Real loss =  // as in support/attention_outputs.hpp
      4 * Real{std::numeric_limits<float>::epsilon()} * (std::sqrt(Real(n)) + y.condition);
  constexpr Real more = 1 + 0x1p-6L;
  for (const Bf16Unit unit : supported_bf16_units()) {
    for (Path path : {Path::materialized, Path::flash}) {
      const bool tiled = path == Path::flash;
      const Outputs<float> got = run(path, x, {.products = bf16_products(unit)});
      CAPTURE(name_of(unit), tiled);
      if (tiled) {
        const Real rounded = 0x1p-8L * more / y.lse.size();
        CHECK(relative_error(In<float, 4>(slice(got.lse, 3, 0, 1)), y.lse) <= loss + rounded);
      } else {
        CHECK(relative_error(In<float, 4>(got.weights), y.weights) <= loss);
      }
      const Real roundings = tiled ? 2 : 1;
      CHECK(error_in_bf16(got.o, y.o, loss) <= roundings * more);
      CHECK(error_in_bf16(got.dv, y.dv, loss) <= roundings * more);
      CHECK(error_in_bf16(got.dq, y.dq, loss) <= 2 * more);
      CHECK(error_in_bf16(got.dk, y.dk, loss) <= 2 * more);
    }
  }
}

}  // namespace

TEST_CASE("both attentions by bf16 equal the oracle to their rounding, for every mask", "[ops]") {
  std::uint64_t seed = 4000;
  for (const Recipe<float>& recipe : mask_recipes<float>()) {
    for (const Sizes& sizes : shapes) {
      Case<float> x = case_of_bf16(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format(), seed);
      check_all(x);
    }
  }
}

TEST_CASE("both attentions by bf16 equal the oracle whatever changes their scores", "[ops]") {
  std::uint64_t seed = 4500;
  for (const Recipe<float>& recipe : score_recipes()) {
    for (const Sizes& sizes : shapes) {
      Case<float> x = case_of_bf16(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format(), seed);
      check_all(x);
    }
  }
}

TEST_CASE("both attentions by bf16 equal the oracle for wide heads", "[ops]") {
  const Index d = GENERATE(31, 64, 127, 129), dv = GENERATE(33, 64, 130);
  Case<float> x = case_of_bf16(Sizes{1, 2, 1, 53, 71, d, dv}, 4600);
  x.causal();
  CAPTURE(x.sizes.format());
  check_all(x);
}

TEST_CASE("a query that sees no key has 0 and logsumexp -infinity by bf16 and its pieces too",
          "[ops]") {
  Index dead = 0;
  for (const Recipe<float>& recipe : mask_recipes<float>()) {
    for (const Sizes& sizes : {Sizes{3, 4, 2, 49, 37, 5, 3}, Sizes{1, 2, 1, 97, 48, 16, 5}}) {
      Case<float> x(sizes, 4700);
      recipe.apply(x);
      for (const auto& [name, products] : supported_products()) {
        const Context context{.products = products};
        const auto kept = run(Path::materialized, x, context), tiled = run(Path::flash, x, context);
        Index wrong = 0;
        for_each_index(Shape{sizes.B, sizes.H, sizes.L}, [&](const Shape<3>& row) {
          const auto [b, h, i] = row.extents;
          if (x.sees_any(b, h, i)) return;
          ++dead;
          wrong += tiled.lse(b, h, i, 0) == -std::numeric_limits<float>::infinity() ? 0 : 1;
          for (Index j = 0; j < sizes.S; ++j) wrong += kept.weights(b, h, i, j) == 0 ? 0 : 1;
          for (const auto* y : {&kept, &tiled}) {
            for (Index c = 0; c < sizes.dv; ++c) wrong += y->o(b, h, i, c) == 0 ? 0 : 1;
            for (Index c = 0; c < sizes.d; ++c) wrong += y->dq(b, h, i, c) == 0 ? 0 : 1;
          }
        });
        CAPTURE(recipe.name, sizes.format(), name);
        CHECK(wrong == 0);
      }
    }
  }
  CHECK(dead > 100);
}

TEST_CASE("by bf16 tiles lose few digits of dq more than kept weights do, where values have a mean",
          "[ops]") {
  Case<float> x(Sizes{1, 2, 1, 96, 160, 32, 32}, 4740);
  for (Tensor4<float>* t : {&x.k, &x.v}) {
    for (float& value : *t) value += 10;
  }
  const OracleResult y = oracle_attention(x.problem());
  const auto error_of = [&](const Outputs<float>& got) {
    Real squares = 0;
    for (Index n = 0; n < got.dq.size(); ++n) {
      squares += (Real{got.dq.data()[n]} - y.dq[n]) * (Real{got.dq.data()[n]} - y.dq[n]);
    }
    return std::sqrt(squares);
  };
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    CAPTURE(name_of(unit));
    CHECK(error_of(run(Path::flash, x, context)) <=
          1.5L * error_of(run(Path::materialized, x, context)));
  }
}

TEST_CASE("each direction of both attentions rounds where its own call asks for it", "[ops]") {
  Case<float> x(Sizes{1, 2, 1, 53, 71, 17, 33}, 4750);
  x.causal();
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context rounding{.products = bf16_products(unit)};
    for (Path path : {Path::materialized, Path::flash}) {
      const auto run_by = [&](const Context& forward, const Context& backward) {
        return run<float>(path, x.q, x.k, x.v, x.d_o, x.options, forward, backward);
      };
      const Outputs<float> exact = run_by({}, {}), rounded = run_by({}, rounding);
      const bool tiled = path == Path::flash;
      CAPTURE(name_of(unit), tiled);
      CHECK(same_bits<float, 4>(rounded.o, exact.o));
      CHECK(!same_bits<float, 4>(rounded.dq, exact.dq));
      CHECK(!same_bits<float, 4>(rounded.dk, exact.dk));
      CHECK(!same_bits<float, 4>(rounded.dv, exact.dv));
      CHECK(!same_bits<float, 4>(run_by(rounding, {}).o, exact.o));
    }
  }
}

TEST_CASE("attention of double has the bits that it has without products of bf16", "[ops]") {
  Case<double> x(Sizes{2, 4, 2, 49, 67, 33, 17}, 4800);
  x.causal(), x.dropout(0.2);
  for (Path path : {Path::materialized, Path::flash}) {
    const Outputs<double> exact = run(path, x);
    for (const Bf16Unit unit : supported_bf16_units()) {
      CHECK(bit_difference(run(path, x, {.products = bf16_products(unit)}), exact) == "");
    }
  }
}

}  // namespace ops_bf16_attention
