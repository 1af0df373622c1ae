// What a user's score function, or a table of distances, may do that arithmetic by itself would not
// bear: -infinity for every key, slopes that are infinite, callables that own memory.
#include <atomic>
#include <cmath>
#include <concepts>
#include <limits>
#include <vector>

#include "headwise/kernels/score_function.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace ops_score_function_edges {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {
    {1, 1, 1, 3, 3, 1, 1}, {2, 4, 2, 47, 65, 8, 17}, {1, 2, 1, 131, 67, 5, 3}, beyond_tiles};

/// Every third query is left nothing, and every fifth key is for nobody.
bool left(Index i, Index j) { return i % 3 != 1 && j % 5 != 2; }

constexpr auto nothing_left = [](auto s, const Position& at) {
  using S = decltype(s);
  return left(at.query, at.key) ? s : S(-std::numeric_limits<float>::infinity());
};

/// Copies are counted; a vector makes it no plain data.
struct Counted {
  std::vector<float> factors{0.5f};
  static inline int copies = 0;

  Counted() = default;
  Counted(const Counted& other) : factors(other.factors) { ++copies; }
  template <class S>
  S operator()(S s, const Position&) const {
    return factors[0] * s;
  }
};

/// Of queries i + 1 and keys j + 1, one number each: how often it is given another than their
/// product.
struct Auditor {
  static inline std::atomic<int> strange = 0;
  template <class S>
  S operator()(S s, const Position& at) const {
    const S product = S(static_cast<float>((at.query + 1) * (at.key + 1)));
    if (s < product || product < s) ++strange;
    return s / S(1000.0f);
  }
};

/// Calls functions by their plain names alone; and notes whether one of another type answers.
struct PlainNames {
  static inline bool of_one_type = true;
  template <class S>
  S operator()(S s, const Position&) const {
    of_one_type = of_one_type && std::same_as<decltype(exp(s)), S> &&
                  std::same_as<decltype(tanh(s)), S> && std::same_as<decltype(abs(s)), S> &&
                  std::same_as<decltype(sqrt(s)), S> && std::same_as<decltype(log(s)), S>;
    return exp(s) + tanh(s) * sqrt(abs(s));
  }
};

}  // namespace

TEMPLATE_TEST_CASE("functions that a score function calls by their plain names are of its type",
                   "[ops]", float, double, long double) {
  const auto plain = score_function<TestType>(PlainNames());
  PlainNames::of_one_type = true;
  (void)plain.value(TestType(0.5), {});
  (void)plain.derivative(TestType(0.5), TestType(1), {}, {});
  CHECK(PlainNames::of_one_type);
}

TEMPLATE_TEST_CASE("a query whose scores a function makes all -infinity is one that sees no key",
                   "[ops]", float, double) {
  const auto f = score_function<TestType>(nothing_left);
  std::uint64_t seed = 990;
  for (const Sizes& sizes : shapes) {
    for (const bool sinks : {false, true}) {
      CAPTURE(sizes.format(), sinks);
      Case<TestType> x(sizes, ++seed);
      if (sinks) x.sinks();
      OracleProblem problem = x.problem();
      problem.visible = [](Index, Index, Index i, Index j) { return left(i, j); };
      OracleResult expected = oracle_attention(problem);
      x.options.score.function = f;
      if (sinks) {  // which takes all weight of what was seen, where the oracle has seen nothing
        const auto [B, H, G, L, S, d, dv] = sizes;
        for (Index row = 0; row < B * H * L; ++row) {
          const Real sink = (*x.logits)(row / L % H);
          if (row % L % 3 == 1) expected.lse[row] = sink;
        }
      }
      for (const Path path : {Path::materialized, Path::flash}) {
        CAPTURE(path == Path::flash);
        CHECK(disagreement(run(path, x), expected, sizes) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("a query whose scores a table makes all -infinity is one that sees no key",
                   "[ops]", float, double) {
  constexpr Index reach = 9;  // what is farther away than 8 is -infinity
  Tensor2<TestType> table(Shape{Index{1}, 2 * reach + 1});
  for (const Index end : {Index{0}, 2 * reach}) set_negative_infinity(table(0, end));
  std::uint64_t seed = 1090;
  for (const Sizes& sizes : {Sizes{1, 2, 1, 47, 5, 3, 4}, Sizes{2, 2, 2, 150, 20, 8, 8},
                             Sizes{1, 2, 1, 70, 140, 16, 5}, Sizes{1, 1, 1, 1, 30, 4, 4}}) {
    CAPTURE(sizes.format());
    Case<TestType> x(sizes, ++seed);
    OracleProblem problem = x.problem();
    problem.visible = [&](Index, Index, Index i, Index j) {
      return std::abs(j - i - (sizes.S - sizes.L)) < reach;
    };
    const OracleResult expected = oracle_attention(problem);
    x.options.score.relative_bias = table;
    for (const Path path : {Path::materialized, Path::flash}) {
      CAPTURE(path == Path::flash);
      CHECK(disagreement(run(path, x), expected, sizes) == "");
    }
  }
}

TEMPLATE_TEST_CASE("where nothing flows the slope of a score function may be infinite", "[ops]",
                   float, double) {
  const auto root = score_function<TestType>([](auto s, const Position&) {
    using std::abs;
    using std::sqrt;
    return sqrt(abs(s));
  });
  Case<TestType> x(Sizes{1, 2, 1, 47, 65, 3, 4}, 995);
  x.options.score.function = root;
  for (Index h = 0; h < 2; ++h) {  // all scores of query 1 are 0, where the root is steepest
    for (Index c = 0; c < 3; ++c) x.q(0, h, 1, c) = 0;
    for (Index c = 0; c < 4; ++c) x.d_o(0, h, 1, c) = 0;
  }
  OracleProblem problem = x.problem();
  problem.change = [](Index, Index, Index i, Index, Real s) {
    const Real root_of_s = std::sqrt(std::abs(s));
    return ChangedScore{root_of_s, i == 1 ? 0 : std::copysign(Real{0.5}, s) / root_of_s};
  };
  const OracleResult expected = oracle_attention(problem);
  for (const Path path : {Path::materialized, Path::flash}) {
    CAPTURE(path == Path::flash);
    CHECK(disagreement(run(path, x), expected, x.sizes) == "");
  }
}

TEMPLATE_TEST_CASE("a score function is given the scores of pairs and no other number", "[ops]",
                   float, double) {
  const auto audited = score_function<TestType>(Auditor{});
  for (const bool window : {false, true}) {
    for (const Index L : {1, 7, 67, 515}) {
      Case<TestType> x(Sizes{1, 2, 1, L, 517, 1, 3}, 998);
      x.causal();
      if (window) x.window(40);
      for_each_index(x.q.shape(), [&](const auto& at) { x.q(at) = TestType(at[2] + 1); });
      for_each_index(x.k.shape(), [&](const auto& at) { x.k(at) = TestType(at[2] + 1); });
      x.options.scale = TestType(1);
      x.options.score.function = audited;
      for (const Path path : {Path::materialized, Path::flash}) {
        Auditor::strange = 0;
        run(path, x);
        CAPTURE(path, window, L);
        CHECK(Auditor::strange == 0);
      }
    }
  }
}

TEST_CASE("a score function that owns memory is not copied by a call", "[ops]") {
  const auto halved = score_function<float>(Counted());
  const Sizes sizes{1, 2, 1, 131, 67, 5, 3};
  Case<float> x(sizes, 997);
  OracleProblem problem = x.problem();
  problem.change = [](Index, Index, Index, Index, Real s) { return ChangedScore{s / 2, 0.5L}; };
  const OracleResult expected = oracle_attention(problem);
  x.options.score.function = halved;
  Counted::copies = 0;
  for (const Path path : {Path::materialized, Path::flash}) {
    CHECK(disagreement(run(path, x), expected, sizes) == "");
  }
  CHECK(Counted::copies == 0);
}

}  // namespace ops_score_function_edges
