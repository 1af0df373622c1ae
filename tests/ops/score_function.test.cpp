// A score function of the user's own, in the tiles and on the readable path.
#include <cmath>

#include "headwise/kernels/score_function.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace ops_score_function {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {
    {1, 1, 1, 1, 1, 1, 1},    {3, 4, 2, 7, 5, 3, 2},     {2, 2, 1, 47, 65, 8, 17},
    {1, 1, 1, 131, 67, 5, 3}, {1, 2, 2, 50, 193, 3, 16}, beyond_tiles,
};

/// (w0 + 0.1 b) s + w1 cos(s) + 0.01 (h + 1) (i - j), as a user writes it.
constexpr auto bent = [](auto s, const Position& at, const auto& w) {
  using std::cos;
  const double share = 0.1 * static_cast<double>(at.batch);
  const double slope = 0.01 * static_cast<double>((at.head + 1) * (at.query - at.key));
  using S = decltype(s);
  return (w[0] + S(static_cast<float>(share))) * s + w[1] * cos(s) + S(static_cast<float>(slope));
};

template <class T>
auto bent_function() {
  return score_function(std::array<T, 2>{T(0.75), T(-0.5)}, bent);
}

/// The same to the oracle, with its derivative by hand.
template <class T>
PairChange bent_by_hand() {
  return [](Index b, Index h, Index i, Index j, Real s) {
    const Real factor = 0.75L + Real{static_cast<float>(0.1 * static_cast<double>(b))};
    const Real bias = static_cast<float>(0.01 * static_cast<double>((h + 1) * (i - j)));
    return ChangedScore{factor * s - 0.5L * std::cos(s) + bias, factor + 0.5L * std::sin(s)};
  };
}

template <class T>
struct Run {
  Outputs<T> y;
  Tensor<T, 1> parameters{Shape{2}};
};

template <class T>
Run<T> run_bent(Path path, Case<T>& x, const Context& context = {}) {
  const auto f = bent_function<T>();
  x.options.score.function = f;
  Run<T> result{run(path, x, context)};
  AttentionGradients<T> to{result.y.dq, result.y.dk, result.y.dv};
  to.score.d_function = result.parameters;
  if (path == Path::flash) {
    flash_attention_backward<T>(x.d_o, {x.q, x.k, x.v}, result.y.o, result.y.lse, x.options, to,
                                context);
  } else {
    attention_backward<T>(x.d_o, {x.q, x.k, x.v}, result.y.weights, x.options, to, context);
  }
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("a score function of ones own equals the oracle, with its gradients", "[ops]",
                   float, double) {
  std::uint64_t seed = 900;
  for (const Sizes& sizes : shapes) {
    for (const bool masked : {false, true}) {
      Case<TestType> x(sizes, ++seed);
      if (masked) x.causal(), x.square(true), x.dropout(0.2);
      CAPTURE(sizes.format(), masked);
      OracleProblem problem = x.problem();
      problem.change = bent_by_hand<TestType>();
      const OracleResult expected = oracle_attention(problem);
      Field parameters(2);
      const auto [B, H, G, L, S, d, dv] = sizes;
      for (Index n = 0; n < B * H * L * S; ++n) {
        const Real s = problem.scale * expected.products[n], flow = expected.flow[n];
        const Real terms = expected.flow.sums[static_cast<std::size_t>(n)];
        parameters.add(0, flow * s, terms * std::abs(s));
        parameters.add(1, flow * std::cos(s), terms);
      }
      const Real tolerance = 4 * Real{std::numeric_limits<TestType>::epsilon()} *
                             (std::sqrt(static_cast<Real>(B * H * L * S)) + expected.condition);
      for (const Path path : {Path::materialized, Path::flash}) {
        CAPTURE(path == Path::flash);
        const Run<TestType> got = run_bent(path, x);
        CHECK(disagreement(got.y, expected, sizes) == "");
        CHECK(relative_error<TestType, 1>(got.parameters, parameters) <= tolerance);
      }
    }
  }
}

TEST_CASE("what flows into biases passes the function behind them, and then the softcap", "[ops]") {
  Case<double> x(Sizes{1, 2, 1, 11, 13, 4, 3}, 950);
  x.softcap(1.5), x.bias(Shape{1, 2, 11, 13});
  const auto f =
      score_function<double>([](auto s, const Position&) { return s * (1.0 + 0.2 * s); });
  x.options.score.function = f;
  Tensor4<double> d_bias(Shape{1, 2, 11, 13});
  const auto loss = [&] {
    const Outputs<double> y = run(Path::materialized, x);
    Real sum = 0;
    for (Index n = 0; n < y.o.size(); ++n) sum += Real{y.o.data()[n]} * x.d_o.data()[n];
    return sum;
  };
  for (const Path path : {Path::materialized, Path::flash}) {
    Outputs<double> y = run(path, x);
    std::fill(d_bias.begin(), d_bias.end(), 0.0);
    AttentionGradients<double> to{y.dq, y.dk, y.dv};
    to.score.d_biases[0] = d_bias;
    if (path == Path::flash) {
      flash_attention_backward<double>(x.d_o, {x.q, x.k, x.v}, y.o, y.lse, x.options, to);
    } else {
      attention_backward<double>(x.d_o, {x.q, x.k, x.v}, y.weights, x.options, to);
    }
    auto& bias = const_cast<double&>(x.options.mask.biases()[0].values(0, 1, 7, 2));
    const double was = bias;
    bias = was + 1e-6;
    const Real up = loss();
    bias = was - 1e-6;
    const Real down = loss();
    bias = was;
    CAPTURE(path == Path::flash);
    CHECK(std::abs((up - down) / 2e-6L - d_bias(0, 1, 7, 2)) < 1e-8L);
    double& q = x.q(0, 1, 7, 1);
    const double q_was = q;
    q = q_was + 1e-6;
    const Real q_up = loss();
    q = q_was - 1e-6;
    const Real q_down = loss();
    q = q_was;
    CHECK(std::abs((q_up - q_down) / 2e-6L - y.dq(0, 1, 7, 1)) < 1e-8L);
  }
}

TEMPLATE_TEST_CASE("a score function gives the same bits on any number of threads", "[ops]", float,
                   double) {
  Case<TestType> x(Sizes{2, 4, 2, 150, 270, 5, 3}, 960);
  x.causal();
  ThreadPool one(1);
  const auto alone = run_bent(Path::flash, x, Context{one});
  for (const Index threads : {2, 3}) {
    ThreadPool pool(threads);
    const auto together = run_bent(Path::flash, x, Context{pool});
    CHECK(bit_difference(together.y, alone.y) == "");
    CHECK(same_bits<TestType, 1>(together.parameters, alone.parameters));
  }
}

TEST_CASE("a score function is asked of no pair that is not there", "[ops]") {
  static const Sizes sizes{2, 4, 2, 75, 130, 3, 5};
  static bool outside = false;
  const auto f = score_function<float>([](auto s, const Position& at) {
    outside = outside || at.batch < 0 || at.batch >= sizes.B || at.head < 0 || at.head >= sizes.H ||
              at.query < 0 || at.query >= sizes.L || at.key < 0 || at.key >= sizes.S;
    return s;
  });
  for (const Path path : {Path::materialized, Path::flash}) {
    Case<float> x(sizes, 970);
    x.window(9);
    const Outputs<float> plain = run(path, x);
    x.options.score.function = f;
    ThreadPool pool(1);
    CHECK(bit_difference(run(path, x, Context{pool}), plain) == "");
    CHECK_FALSE(outside);
  }
}

TEST_CASE("a softcap written as a score function is the built-in one", "[ops]") {
  Case<double> x(Sizes{1, 2, 2, 50, 193, 3, 16}, 980);
  x.softcap(2);
  const OracleResult expected = oracle_attention(x.problem());
  x.options.score.softcap = {};
  const auto cap = score_function<double>([](auto s, const Position&) {
    using std::tanh;
    return 2.0 * tanh(s / 2.0);
  });
  x.options.score.function = cap;
  CHECK(disagreement(run(Path::flash, x), expected, x.sizes) == "");
  CHECK(disagreement(run(Path::materialized, x), expected, x.sizes) == "");
}

}  // namespace ops_score_function
