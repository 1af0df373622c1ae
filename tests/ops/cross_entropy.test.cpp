// Cross-entropy against its definition: loss, gradient, ignored rows.
#include <cmath>
#include <limits>

#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "ops/cross_entropy_case.hpp"
#include "support/catch.hpp"

namespace ops_cross_entropy {

using namespace headwise_tests;

namespace {

using Real = long double;

/// By the definition.
template <class T>
Result<Real> expected(const Tensor2<T>& logits, const Targets& targets,
                      const CrossEntropyOptions& options) {
  const Index N = logits.extent(0), V = logits.extent(1);
  Result<Real> result{0, Tensor1<Real>(N), Tensor2<Real>(logits.shape())};
  Real count = 0;
  for (Index n = 0; n < N; ++n) {
    if (targets(n) == options.ignore_index) continue;
    Real others = 0;
    const Real x_t = static_cast<Real>(logits(n, targets(n)));
    for (Index v = 0; v < V; ++v) {
      if (v != targets(n)) others += std::exp(static_cast<Real>(logits(n, v)) - x_t);
    }
    const Real loss = std::log1p(others);
    result.lse(n) = loss + x_t;
    result.loss += loss;
    count += 1;
    for (Index v = 0; v < V; ++v) {
      const Real p = std::exp(static_cast<Real>(logits(n, v)) - x_t - loss);
      result.d_logits(n, v) = v == targets(n) ? -others / (1 + others) : p;
    }
  }
  const bool mean = options.reduction == Reduction::mean && count > 0;
  if (mean) result.loss /= count;
  for (Real& d : result.d_logits) d = mean ? d / count : d;
  return result;
}

template <class T>
void check_against_definition(Index N, Index V, double scale) {
  CAPTURE(sizeof(T), N, V, scale);
  const auto logits = normal<T>(Shape{N, V}, 1, scale);
  const Targets targets = some_targets(N, V);
  // Roundings of x - max and of the logsumexp, each a unit of the greatest logit, and of the
  // chains.
  const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
  const double bound = unit * (40 + static_cast<double>(V) / 1024) * (1 + 5 * scale);
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const CrossEntropyOptions options{.reduction = reduction};
    const auto want = expected<T>(logits, targets, options);
    const auto got = run<T>(logits, targets, options);
    CHECK(std::abs(static_cast<Real>(got.loss) - want.loss) <= bound * (1 + std::abs(want.loss)));
    for (Index n = 0; n < N; ++n) {
      CHECK(std::abs(static_cast<Real>(got.lse(n)) - want.lse(n)) <= bound * (1 + 5 * scale));
    }
    bool close = true;  // each element by its own size
    for_each_index(logits.shape(), [&](const Shape<2>& at) {
      const Real error = std::abs(static_cast<Real>(got.d_logits(at)) - want.d_logits(at));
      close = close && error <= bound * std::abs(want.d_logits(at)) +
                                    static_cast<Real>(std::numeric_limits<T>::min());
    });
    CHECK(close);
  }
}

}  // namespace

TEST_CASE("cross_entropy equals its definition, each element of the gradient by its own size",
          "[ops]") {
  for (Index V : {1, 2, 3, 15, 31, 63, 64, 65, 97, 128, 1000}) {
    for (Index N : {1, 3, 19}) {
      check_against_definition<float>(N, V, 1);
      check_against_definition<double>(N, V, 1);
      check_against_definition<double>(N, V, 8);
    }
  }
  check_against_definition<long double>(7, 33, 3);
  check_against_definition<float>(3, 50000, 2);
  check_against_definition<double>(2, 50000, 2);
}

TEMPLATE_TEST_CASE("a target that is all but certain keeps the digits of its loss and gradient",
                   "[ops]", float, double, long double) {
  using T = TestType;
  const Index V = 65;
  const double units = 200 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (double gap : {1.0, 10.0, 30.0, 60.0}) {  // e^-60 is far below one unit of 1
    CAPTURE(sizeof(T), gap);
    Tensor2<T> logits(Shape{Index{1}, V});
    fill(logits, T(2 - gap));
    logits(0, 40) = T(2);
    const Targets target(Shape{1}, {40});
    const auto got = run<T>(logits, target);
    const auto want = expected<T>(logits, target, {});
    CHECK(std::abs(static_cast<Real>(got.loss) - want.loss) <= units * want.loss);
    CHECK(std::abs(static_cast<Real>(got.d_logits(0, 40)) - want.d_logits(0, 40)) <=
          -units * want.d_logits(0, 40));
  }
}

TEMPLATE_TEST_CASE("the gradient of large logits is as exact as that of small ones", "[ops]", float,
                   double, long double) {
  using T = TestType;
  const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (const Index V : {2, 3, 65, 300}) {
    for (const double offset : {0.0, 1e4, -1e4, 3e5}) {  // far above 1 / (distances of logits)
      CAPTURE(sizeof(T), V, offset);
      Tensor2<T> logits(Shape{Index{5}, V});  // multiples of 1 / 8, so that the sums are exact
      for (Index n = 0; n < logits.size(); ++n) {
        logits.data()[n] = T(offset + 0.125 * static_cast<double>(n * n % 37));
      }
      const Targets targets = some_targets(5, V);
      const auto got = run<T>(logits, targets);
      const auto want = expected<T>(logits, targets, {});
      for_each_index(logits.shape(), [&](const Shape<2>& at) {
        const Real error = std::abs(static_cast<Real>(got.d_logits(at)) - want.d_logits(at));
        CHECK(error <= 40 * unit * std::abs(want.d_logits(at)));
      });
    }
  }
}

TEST_CASE("the gradient of cross_entropy is the slope of forward", "[ops]") {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    auto logits = normal<Real>(Shape{6, 9}, 3, 2);
    const Targets targets = some_targets(6, 9);
    const CrossEntropyOptions options{.reduction = reduction};
    const Real d_loss = 1.75L;
    const auto d = run<Real, std::int64_t>(logits, targets, options, d_loss).d_logits;
    GradientCheck<Real> check({.tolerance = 1e-11, .stencil = Stencil::five_point});
    check.input("logits", logits, d);
    const auto report = check.run([&] {
      return d_loss *
             cross_entropy_forward(In<Real, 2>(logits), In<std::int64_t, 1>(targets), options, {});
    });
    CAPTURE(report);
    CHECK(report);
  }
}

TEST_CASE("rows of the gradient of cross_entropy sum to 0, and a shift of a row changes nothing",
          "[ops]") {
  auto logits = normal<double>(Shape{5, 77}, 4, 3);
  for (double& x : logits) x = std::ldexp(std::round(std::ldexp(x, 20)), -20);
  const Targets targets(Shape{5}, {0, 76, 30, 31, 32});
  const auto plain = run<double>(logits, targets);
  for (Index n = 0; n < 5; ++n) {
    double sum = 0;
    for (Index v = 0; v < 77; ++v) sum += plain.d_logits(n, v);
    CHECK(std::abs(sum) < 1e-16);
  }
  for (Index v = 0; v < 77; ++v) logits(3, v) += 4096;
  const auto moved = run<double>(logits, targets);
  CHECK(std::abs(moved.loss - plain.loss) < 1e-14 * plain.loss);
  CHECK(std::abs(moved.lse(3) - plain.lse(3) - 4096) < 1e-11);
  CHECK(close_to(moved.d_logits, plain.d_logits, 1e-11));  // 4096's own digits in the logsumexp
}

TEST_CASE("an ignored row changes nothing, whatever it holds, and its gradient is 0", "[ops]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto logits = normal<double>(Shape{7, 66}, 5);
  Targets targets(Shape{7}, {1, ignored, 65, 3, ignored, 4, 5});
  for (Index v = 0; v < 66; ++v) logits(1, v) = logits(4, v) = nan;
  const auto whole = run<double>(logits, targets);
  Tensor2<double> kept(Shape{5, 66});
  Targets kept_targets(5);
  for (Index n = 0, m = 0; n < 7; ++n) {
    if (targets(n) == ignored) continue;
    copy(In<double, 1>(select(logits, n)), select(kept, m));
    kept_targets(m++) = targets(n);
  }
  const auto part = run<double>(kept, kept_targets);
  CHECK(std::abs(whole.loss - part.loss) < 1e-15);
  for (Index n = 0, m = 0; n < 7; ++n) {
    if (targets(n) == ignored) {
      CHECK(whole.lse(n) == 0);
      for (Index v = 0; v < 66; ++v) CHECK(whole.d_logits(n, v) == 0);
      continue;
    }
    CHECK(bitwise_equal(In<double, 1>(select(whole.d_logits, n)),
                        In<double, 1>(select(part.d_logits, m++))));
  }
}

TEST_CASE("where every row is ignored, or there is none, loss and gradient are 0", "[ops]") {
  const auto logits = normal<float>(Shape{3, 8}, 6);
  const Targets all(Shape{3}, {ignored, ignored, ignored});
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const auto got = run<float>(logits, all, {.reduction = reduction});
    CHECK(got.loss == 0.0f);
    for (float d : got.d_logits) CHECK(d == 0.0f);
    CHECK(
        run<float>(Tensor2<float>(Shape{0, 8}), Targets(Index{0}), {.reduction = reduction}).loss ==
        0.0f);
    CHECK(run<float>(Tensor2<float>(Shape{3, 0}), all, {.reduction = reduction}).loss == 0.0f);
  }
}

TEST_CASE("the ignored target is any number, also one that is a column", "[ops]") {
  const auto logits = normal<double>(Shape{4, 5}, 7);
  const Targets targets(Shape{4}, {1, 3, 1, 4});
  const auto without = run<double>(logits, Targets(Shape{4}, {ignored, 3, ignored, 4}));
  const auto with = run<double>(logits, targets, {.ignore_index = 1});
  CHECK(with.loss == without.loss);
  CHECK(bitwise_equal(with.d_logits, without.d_logits));
}

}  // namespace ops_cross_entropy
