#include "headwise/ops/cross_entropy.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

using namespace headwise;
using headwise_tests::count_operations;
using headwise_tests::Counting;

namespace {

using Real = long double;
using Targets = Tensor1<std::int64_t>;
constexpr std::int64_t ignored = -100;

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed, double scale = 1) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(scale * philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// A target for each row, row 2 of every 5 ignored.
Targets some_targets(Index N, Index V) {
  Targets targets(N);
  for (Index n = 0; n < N; ++n) targets(n) = n % 5 == 2 ? ignored : (7 * n + 3) % V;
  return targets;
}

template <class T>
struct Result {
  T loss;
  Tensor1<T> lse;
  Tensor2<T> d_logits;
};

template <class T, class I>
Result<T> run(In<T, 2> logits, In<I, 1> targets, const CrossEntropyOptions& options = {},
              T d_loss = T(1), const Context& context = {}) {
  Result<T> result{T(0), Tensor1<T>(logits.extent(0)), Tensor2<T>(logits.shape())};
  result.loss = cross_entropy_forward(logits, targets, options, result.lse, context);
  cross_entropy_backward(d_loss, logits, targets, result.lse, options, result.d_logits, context);
  return result;
}
template <class T>
Result<T> run(const Tensor2<T>& logits, const Targets& targets,
              const CrossEntropyOptions& options = {}) {
  return run<T, std::int64_t>(In<T, 2>(logits), targets, options);
}

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

TEST_CASE(
    "cross_entropy has the same bits in place, strided, row by row, on any threads and of both "
    "token types",
    "[ops]") {
  for (Index V : {5, 65, 700}) {
    const Index N = 41;
    const auto logits = normal<float>(Shape{N, V}, 8, 2);
    const Targets targets = some_targets(N, V);
    const CrossEntropyOptions options{.reduction = Reduction::sum};
    const auto plain = run<float>(logits, targets, options);
    const auto same = [&](const Result<float>& other) {
      return other.loss == plain.loss && bitwise_equal(other.lse, plain.lse) &&
             bitwise_equal(other.d_logits, plain.d_logits);
    };
    for (Index threads : {2, 3, 16}) {
      ThreadPool pool(threads);
      CHECK(same(run<float, std::int64_t>(logits, targets, options, 1, {.executor = pool})));
    }
    Tensor1<std::int32_t> narrow(N);
    for (Index n = 0; n < N; ++n) narrow(n) = static_cast<std::int32_t>(targets(n));
    CHECK(same(run<float, std::int32_t>(logits, narrow, options)));

    Tensor2<float> in_place = logits, turned(Shape{V, N});
    cross_entropy_backward(1.0f, In<float, 2>(in_place), In<std::int64_t, 1>(targets), plain.lse,
                           options, in_place);
    CHECK(bitwise_equal(in_place, plain.d_logits));
    copy(logits, transpose(turned, 0, 1));
    const auto view = transpose(turned, 0, 1);
    CHECK(same(run<float, std::int64_t>(view, targets, options)));
    cross_entropy_backward(1.0f, In<float, 2>(view), In<std::int64_t, 1>(targets), plain.lse,
                           options, view);
    CHECK(bitwise_equal(In<float, 2>(view), In<float, 2>(plain.d_logits)));
    for (Index n : {0, 2, 40}) {
      const auto alone =
          run<float, std::int64_t>(slice(logits, 0, n, 1), slice(targets, 0, n, 1), options);
      CHECK(bitwise_equal(In<float, 1>(select(alone.d_logits, 0)),
                          In<float, 1>(select(plain.d_logits, n))));
      CHECK(alone.lse(0) == plain.lse(n));
    }
  }
}

TEST_CASE("cross_entropy shows NaN and overflow, and takes -infinity for a token that cannot be",
          "[ops]") {
  using Limits = std::numeric_limits<double>;
  const auto is_nan = [](double x) { return !(x == x); };
  for (Index V : {3, 65}) {
    for (Index place : {Index{0}, Index{1}, V - 1}) {
      CAPTURE(V, place);
      const Targets target(Shape{1}, {1});
      auto logits = normal<double>(Shape{Index{1}, V}, 9);
      for (double bad : {Limits::quiet_NaN(), Limits::infinity()}) {
        auto spoilt = logits;
        spoilt(0, place) = bad;
        const auto got = run<double>(spoilt, target);
        CHECK(is_nan(got.loss));
        bool shows = false;
        for (double d : got.d_logits) shows = shows || is_nan(d);
        CHECK(shows);
      }
      auto masked = logits;
      masked(0, place) = -Limits::infinity();
      const auto got = run<double>(masked, target);
      if (place == 1) {
        CHECK(got.loss == Limits::infinity());
        continue;
      }
      logits(0, place) = -1e5;
      const auto want = run<double>(logits, target);
      CHECK(got.loss == want.loss);
      CHECK(bitwise_equal(got.d_logits, want.d_logits));
      CHECK(got.d_logits(0, place) == 0);
    }
  }
}

TEST_CASE("the sum of a float's losses over many rows keeps its digits", "[ops]") {
  const Index N = 100000;
  Tensor2<float> logits(Shape{N, Index{2}});
  Targets targets(N);
  for (Index n = 0; n < N; ++n) logits(n, 0) = n % 2 == 0 ? 0.0f : 3.0f;
  const double of_each = (std::log(2.0) + std::log1p(std::exp(-3.0))) / 2;
  const double loss = static_cast<double>(run<float>(logits, targets).loss);
  CHECK(std::abs(loss - of_each) < 1.2e-7 * of_each);
}

TEST_CASE("cross_entropy tallies what a scalar that counts has counted", "[ops]") {
  auto logits = normal<Counting>(Shape{4, 21}, 10);
  const Targets targets(Shape{4}, {0, 3, 20, 7});
  for (Index n = 0; n < 4; ++n) logits(n, targets(n)) = Counting(-9);  // far from the greatest
  Tensor1<Counting> lse(4);
  FlopTally flops;
  auto counted = count_operations([&] {
    (void)cross_entropy_forward(In<Counting, 2>(logits), In<std::int64_t, 1>(targets), {}, lse,
                                {.flops = &flops});
  });
  CHECK(counted.total() == flops.useful);
  CHECK(flops.useful == 4 * (3 * 21 + 5));
  flops.reset();
  counted = count_operations([&] {
    cross_entropy_backward(Counting(1), In<Counting, 2>(logits), In<std::int64_t, 1>(targets), lse,
                           {.reduction = Reduction::sum}, logits, {.flops = &flops});
  });
  CHECK(counted.total() == flops.useful);
  CHECK(flops.useful == 4 * (4 * 21 + 2));
}
