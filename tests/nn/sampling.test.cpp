#include "headwise/nn/sampling.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "support/catch.hpp"

namespace nn_sampling {

using namespace headwise;

namespace {

const double infinity = std::numeric_limits<double>::infinity();

Tensor1<double> normal(Index V, std::uint64_t seed) {
  Tensor1<double> logits(V);
  for (Index v = 0; v < V; ++v) {
    logits(v) = philox_normal(philox_key(seed), static_cast<std::uint64_t>(v));
  }
  return logits;
}

/// How often each token is chosen over `draws` steps.
std::vector<double> frequencies(const Tensor1<double>& logits, SamplingOptions options, int draws) {
  std::vector<double> counts(static_cast<std::size_t>(logits.size()));
  for (int n = 0; n < draws; ++n) {
    options.step = static_cast<std::uint64_t>(n);
    ++counts[static_cast<std::size_t>(sample_token(logits, options))];
  }
  return counts;
}

/// sum (observed - expected)^2 / expected; infinite where what cannot be was observed.
double chi_square(const std::vector<double>& observed, const std::vector<double>& probability,
                  int draws) {
  double sum = 0;
  for (std::size_t v = 0; v < observed.size(); ++v) {
    const double expected = probability[v] * draws;
    if (expected == 0 && observed[v] != 0) return infinity;
    if (expected != 0) sum += (observed[v] - expected) * (observed[v] - expected) / expected;
  }
  return sum;
}

std::vector<double> normalised(std::vector<double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

}  // namespace

TEST_CASE("tokens are chosen as often as temperature, top_k and top_p say, by chi-square", "[nn]") {
  constexpr int draws = 20000;
  // Probabilities 0.4, 0.3, 0.15, 0.1, 0.05, in another order.
  const std::vector<double> p = {0.15, 0.4, 0.05, 0.3, 0.1};
  Tensor1<double> logits(5);
  for (Index v = 0; v < 5; ++v) logits(v) = std::log(p[static_cast<std::size_t>(v)]) + 17;
  const auto check = [&](const SamplingOptions& options, std::vector<double> weights) {
    CAPTURE(options.temperature, options.top_k, options.top_p);
    // 18.5: the 0.1 % point of 4 degrees of freedom, for fixed seeds.
    CHECK(chi_square(frequencies(logits, options, draws), normalised(weights), draws) < 18.5);
  };
  check({.seed = 1}, p);
  check({.temperature = 2, .seed = 2},
        {std::sqrt(0.15), std::sqrt(0.4), std::sqrt(0.05), std::sqrt(0.3), std::sqrt(0.1)});
  check({.temperature = 0.5, .seed = 3}, {0.0225, 0.16, 0.0025, 0.09, 0.01});
  check({.top_k = 2, .seed = 4}, {0, 0.4, 0, 0.3, 0});
  check({.top_k = 4, .seed = 5}, {0.15, 0.4, 0, 0.3, 0.1});
  check({.top_p = 0.75, .seed = 6}, {0.15, 0.4, 0, 0.3, 0});
  check({.top_p = 0.69, .seed = 7}, {0, 0.4, 0, 0.3, 0});
  check({.top_k = 3, .top_p = 0.6, .seed = 8},
        {0, 0.4, 0, 0.3, 0});  // of 0.85: 0.51 is reached by two
  check({.top_p = 0.01, .seed = 9}, {0, 1, 0, 0, 0});
  // The measure itself: another distribution is found out.
  CHECK(chi_square(frequencies(logits, {.temperature = 1.1, .seed = 1}, draws), p, draws) > 40);
}

TEST_CASE(
    "at temperature 0, or with top_k 1, the greatest logit is chosen, of equal ones the first",
    "[nn]") {
  auto logits = normal(1000, 1);
  logits(700) = logits(300) = logits(900) = 50;
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 0}, SamplingOptions{.top_k = 1},
        SamplingOptions{.temperature = 1e20, .top_k = 1}, SamplingOptions{.top_p = 1e-9},
        SamplingOptions{.temperature = 0, .top_k = 5, .top_p = 0.5}}) {
    CHECK(sample_token(logits, options) == 300);
  }
  const auto drawn = frequencies(logits, {.temperature = 1e-300, .top_k = 2}, 100);
  CHECK(drawn[300] + drawn[700] == 100);  // the third of the equal ones is not among the first two
  CHECK(drawn[300] > 20);
  CHECK(drawn[700] > 20);
}

TEST_CASE("a token is a function of logits, options, seed and step", "[nn]") {
  const auto logits = normal(100, 2);
  std::set<Index> of_steps, of_seeds;
  for (std::uint64_t n = 0; n < 50; ++n) {
    const Index token = sample_token(logits, {.seed = 5, .step = n});
    CHECK(sample_token(logits, {.seed = 5, .step = n}) == token);
    of_steps.insert(token);
    of_seeds.insert(sample_token(logits, {.seed = n, .step = 5}));
    // What leaves every token changes none.
    CHECK(sample_token(logits, {.top_k = 100, .seed = 5, .step = n}) == token);
    CHECK(sample_token(logits, {.top_k = 1000, .seed = 5, .step = n}) == token);
    CHECK(sample_token(logits, {.top_p = 1 - 1e-15, .seed = 5, .step = n}) == token);
  }
  CHECK(sample_token(logits) == sample_token(logits, SamplingOptions{}));
  CHECK(of_steps.size() > 20);
  CHECK(of_seeds.size() > 20);
  int others = 0;  // the upper half of a step counts
  for (std::uint64_t n = 0; n < 50; ++n) {
    const std::uint64_t far = n + (std::uint64_t{1} << 32);
    if (sample_token(logits, {.step = n}) != sample_token(logits, {.step = far})) ++others;
  }
  CHECK(others > 40);
}

TEST_CASE("a constant added to all logits, another type and strides choose the same tokens",
          "[nn]") {
  Tensor1<float> logits(90), moved(180);
  for (Index v = 0; v < 90; ++v) {
    logits(v) = static_cast<float>((v * 37) % 90) / 16;
    moved(2 * v) = logits(v) + 64;
  }
  const In<float, 1> every_other(moved.data(), Shape{90}, Shape{2});
  Tensor1<double> wide(90);
  for (Index v = 0; v < 90; ++v) wide(v) = static_cast<double>(logits(v));
  for (std::uint64_t n = 0; n < 50; ++n) {
    const SamplingOptions options{.temperature = 0.7, .top_k = 40, .top_p = 0.9, .step = n};
    CHECK(sample_token(every_other, options) == sample_token(logits, options));
    CHECK(sample_token(wide, options) == sample_token(logits, options));
  }
}

TEST_CASE("a logit of -infinity is never chosen, and one token is chosen always", "[nn]") {
  auto logits = normal(8, 3);
  logits(0) = logits(3) = logits(7) = -infinity;
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1e300}, SamplingOptions{.temperature = 1e300, .top_k = 7},
        SamplingOptions{.temperature = 1e300, .top_p = 0.999}}) {
    const auto counts = frequencies(logits, options, 500);
    for (std::size_t v : {0u, 3u, 7u}) CHECK(counts[v] == 0);
    for (std::size_t v : {1u, 2u, 4u, 5u, 6u}) CHECK(counts[v] > 30);
  }
  for (double x : {-1e300, 0.0, 1e300}) {
    const Tensor1<double> one(Shape{1}, {x});
    for (double temperature : {0.0, 1e-300, 1.0}) {
      CHECK(sample_token(one, {.temperature = temperature}) == 0);
    }
  }
}

TEST_CASE("among many tokens, top_k leaves the greatest and top_p the fewest that suffice",
          "[nn]") {
  const Index V = 5000;
  auto logits = normal(V, 4);
  std::vector<Index> order(static_cast<std::size_t>(V));
  std::iota(order.begin(), order.end(), Index{0});
  std::sort(order.begin(), order.end(), [&](Index a, Index b) { return logits(a) > logits(b); });
  for (Index k : {1, 63, 64, 65, 600}) {
    std::set<Index> allowed(order.begin(), order.begin() + k), seen;
    for (std::uint64_t n = 0; n < 300; ++n) {
      const Index token = sample_token(logits, {.temperature = 50, .top_k = k, .step = n});
      CHECK(allowed.count(token) == 1);
      seen.insert(token);
    }
    CHECK(seen.size() > static_cast<std::size_t>(std::min<Index>(k, 200)) / 2);
  }
  double total = 0, sum = 0;
  for (double x : logits) total += std::exp(x);
  std::set<Index> allowed;
  for (std::size_t n = 0; sum < 0.5 * total; ++n) {
    sum += std::exp(logits(order[n]));
    allowed.insert(order[n]);
  }
  REQUIRE(allowed.size() > 512);  // more than is ranked at first
  for (std::uint64_t n = 0; n < 300; ++n) {
    CHECK(allowed.count(sample_token(logits, {.top_p = 0.5, .step = n})) == 1);
  }
}

}  // namespace nn_sampling
