// Multi-head attention to second order, over random configurations: every mask, all that changes
// scores and is learned, grouped heads, dropout, queries that see no key, on both paths.
#include <map>

#include "support/catch.hpp"
#include "support/configuration_features.hpp"
#include "support/dual_attention.hpp"
#include "support/random_configuration.hpp"

namespace autograd_second_order {

using namespace headwise_tests;

namespace {

/// layer_norm bends at the scale of its rows' deviations: what the step of differences is
/// multiplied by.
long double least_spread(const RandomConfiguration& c, const Tensor1<double>& x) {
  const MultiHeadAttentionOptions& o = c.options;
  long double least = 1;
  for (Index row = 0; o.layer_norm && row < c.B * c.L; ++row) {
    long double mean = 0, variance = 0;
    for (Index n = 0; n < o.d_model; ++n) mean += x(row * o.d_model + n);
    mean /= static_cast<long double>(o.d_model);
    for (Index n = 0; n < o.d_model; ++n) {
      const long double apart = x(row * o.d_model + n) - mean;
      variance += apart * apart / static_cast<long double>(o.d_model);
    }
    least = std::min(least, std::sqrt(variance + 1e-5L));
  }
  return least;
}

DualErrors errors_of(const RandomConfiguration& c, Path path) {
  const auto errors = [&](const auto& pair) {
    auto x = normal_vector(pair.inputs(), c.seed + 1000000);
    put_scores(c, x);
    const long double spread = c.bare ? 1 : least_spread(c, x);
    return dual_errors(pair, x, c.seed, 0x1p-16L * spread);
  };
  return c.bare ? errors(AttentionPair{c, path}) : errors(ModulePair{c, path});
}

}  // namespace

TEST_CASE("attention on dual numbers has the derivatives of its backward, to second order",
          "[autograd]") {
  constexpr Index most_work = 30000;  // multiply-adds of a call in double
  std::map<std::string, int> met;
  int count = 0;
  DualErrors worst{};
  for (std::uint64_t seed = 1; count < 400; ++seed) {
    const RandomConfiguration c = random_configuration(seed);
    if (c.work() > most_work) continue;
    ++count;
    for (const std::string& feature : features(c)) {
      ++met[feature];
      if (c.bare) ++met["alone: " + feature];
    }
    const Path path = count % 2 == 0 ? Path::materialized : Path::flash;
    const DualErrors errors = errors_of(c, path);
    CAPTURE(seed, path == Path::flash, errors);
    CHECK(errors.ok());
    worst = {std::max(worst.value, errors.value), std::max(worst.slope, errors.slope),
             std::max(worst.adjoint, errors.adjoint), std::max(worst.bend, errors.bend),
             std::max(worst.symmetry, errors.symmetry)};
  }
  WARN(count << " configurations: worst " << worst);
  for (const char* feature : {"attention alone",
                              "self-attention",
                              "cross-attention",
                              "grouped",
                              "layer_norm",
                              "causal",
                              "window",
                              "key lengths",
                              "keep [L, S]",
                              "drop [L, S]",
                              "keep keys",
                              "drop keys",
                              "keep pairs",
                              "drop pairs",
                              "bias [L, S]",
                              "bias -1e9",
                              "bias -inf",
                              "two biases",
                              "dead rows",
                              "given scale",
                              "window and first keys",
                              "documents",
                              "mask function",
                              "softcap",
                              "weight dropout",
                              "output dropout",
                              "L 0",
                              "S 0"}) {
    CAPTURE(feature);
    CHECK(met[feature] >= 3);
  }
  // These move, in attention alone and in modules.
  for (const std::string feature : {"given scale", "alibi", "relative bias", "sinks",
                                    "learned biases", "three or four biases", "score function"}) {
    CAPTURE(feature);
    CHECK(met["alone: " + feature] >= 3);
    CHECK(met[feature] - met["alone: " + feature] >= 3);
  }
}

}  // namespace autograd_second_order
