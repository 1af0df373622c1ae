#include "headwise/ops/rms_norm.hpp"

#include <cmath>
#include <limits>

#include "headwise/ops/layer_norm.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_rms_norm {

using namespace headwise;
using headwise_tests::count_operations;
using headwise_tests::Counting;

namespace {

using Real = long double;

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed, double offset = 0) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(offset + philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

template <class T>
Tensor2<T> rms_norm(In<T, 2> x, In<T, 1> gamma, T epsilon = T(1e-5)) {
  Tensor2<T> y(x.shape());
  rms_norm_forward(x, gamma, epsilon, y, {});
  return y;
}

template <class T>
struct Gradients {
  Tensor2<T> dx;
  Tensor1<T> dgamma;
};
template <class T>
Gradients<T> backward(In<T, 2> dy, In<T, 2> x, In<T, 1> gamma, T epsilon = T(1e-5),
                      const Context& context = {}) {
  Tensor2<T> y(x.shape());
  Tensor1<T> rstd(Shape{x.extent(0)});
  rms_norm_forward(x, gamma, epsilon, y, rstd, context);
  Gradients<T> g{Tensor2<T>(x.shape()), Tensor1<T>(Shape{x.extent(1)})};
  rms_norm_backward(dy, x, gamma, rstd, g.dx, g.dgamma, context);
  return g;
}

template <class T>
void check_forward(Index N, Index D, double offset) {
  CAPTURE(sizeof(T), N, D, offset);
  const auto x = normal<T>(Shape{N, D}, 1, offset);
  const auto gamma = normal<T>(Shape{D}, 2);
  const T epsilon = T(1e-5);
  for (const bool has_gamma : {false, true}) {
    Tensor2<Real> expected(x.shape());
    for (Index n = 0; n < N; ++n) {
      Real squares = 0;
      for (Index i = 0; i < D; ++i) squares += static_cast<Real>(x(n, i)) * x(n, i);
      for (Index i = 0; i < D; ++i) {
        expected(n, i) = x(n, i) / std::sqrt(squares / static_cast<Real>(D) + epsilon) *
                         (has_gamma ? static_cast<Real>(gamma(i)) : 1);
      }
    }
    // A sum of D squares, a root, a quotient and two products.
    const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
    CHECK(close_to(rms_norm<T>(x, has_gamma ? In<T, 1>(gamma) : In<T, 1>(), epsilon), expected,
                   (static_cast<double>(D) / 2 + 4) * unit));
  }
}

}  // namespace

TEST_CASE("rms_norm equals its definition in long double", "[ops]") {
  for (const Index D : {1, 2, 3, 7, 64, 65, 257}) {
    for (const Index N : {1, 5}) {
      check_forward<float>(N, D, 0);
      check_forward<float>(N, D, 100);
      check_forward<double>(N, D, 0);
      check_forward<long double>(N, D, -1e6);
    }
  }
}

TEST_CASE("rows of rms_norm have mean square 1, and a factor changes nothing", "[ops]") {
  const auto x = normal<double>(Shape{4, 33}, 4);
  const auto y = rms_norm<double>(x, {}, 1e-13);
  for (Index n = 0; n < 4; ++n) {
    double squares = 0;
    for (Index i = 0; i < 33; ++i) squares += y(n, i) * y(n, i);
    CHECK(std::abs(squares / 33 - 1) < 1e-11);
  }
  auto larger = x;
  for (double& element : larger) element *= 1024;
  CHECK(close_to(rms_norm<double>(larger, {}, 1e-13), y, 1e-11));
}

TEST_CASE("rms_norm of rows whose mean is 0 is layer_norm", "[ops]") {
  auto x = normal<double>(Shape{3, 34}, 5);
  for (Index n = 0; n < 3; ++n) {
    for (Index i = 0; i < 17; ++i) x(n, 2 * i + 1) = -x(n, 2 * i);
  }
  const auto gamma = normal<double>(Shape{34}, 6);
  Tensor2<double> y(x.shape());
  layer_norm_forward(x, {gamma, {}}, 1e-5, y, {{}, {}});
  CHECK(close_to(rms_norm<double>(x, gamma), y, 1e-15));
}

TEST_CASE("the gradients of rms_norm are the slopes of forward", "[ops]") {
  for (const Index D : {1, 3, 8}) {
    for (const bool has_gamma : {false, true}) {
      CAPTURE(D, has_gamma);
      auto x = normal<Real>(Shape{4, D}, 6);
      auto gamma = normal<Real>(Shape{D}, 7);
      const auto dy = normal<Real>(Shape{4, D}, 9);
      const In<Real, 1> g = has_gamma ? In<Real, 1>(gamma) : In<Real, 1>();
      const auto gradients = backward<Real>(dy, x, g, 1e-3L);
      GradientCheck<Real> check({.tolerance = 1e-11, .stencil = Stencil::five_point});
      check.input("x", x, gradients.dx);
      if (has_gamma) check.input("gamma", gamma, gradients.dgamma);
      const auto report = check.run(
          [&] { return weighted_sum(In<Real, 2>(dy), In<Real, 2>(rms_norm<Real>(x, g, 1e-3L))); });
      CAPTURE(report);
      CHECK(report);
    }
  }
}

TEMPLATE_TEST_CASE("the gradients of rms_norm by vectors are those in long double", "[ops]", float,
                   double) {
  using T = TestType;
  for (const Index D : {1, 5, 64, 65, 130}) {
    CAPTURE(D);
    const auto x = normal<T>(Shape{5, D}, 10, 1), dy = normal<T>(Shape{5, D}, 11);
    const auto gamma = normal<T>(Shape{D}, 12);
    const auto got = backward<T>(dy, x, gamma);
    const auto wanted = backward<Real>(convert<Real>(In<T, 2>(dy)), convert<Real>(In<T, 2>(x)),
                                       convert<Real>(In<T, 1>(gamma)), static_cast<Real>(T(1e-5)));
    const double bound = 40 * static_cast<double>(std::numeric_limits<T>::epsilon());
    CHECK(close_to(got.dx, wanted.dx, bound, {.floor = 1}));
    CHECK(close_to(got.dgamma, wanted.dgamma, bound, {.floor = 1}));
  }
}

TEST_CASE("dx of rms_norm is orthogonal to its row where epsilon is small", "[ops]") {
  const auto x = normal<Real>(Shape{5, 17}, 13), dy = normal<Real>(Shape{5, 17}, 14);
  const auto dx = backward<Real>(dy, x, {}, 1e-30L).dx;
  for (Index n = 0; n < 5; ++n) {
    Real sum = 0;
    for (Index i = 0; i < 17; ++i) sum += dx(n, i) * x(n, i);
    CHECK(std::abs(sum) < 1e-16L);
  }
}

TEST_CASE("dgamma of rms_norm is added to, and each gradient computed only where asked for",
          "[ops]") {
  const auto x = normal<float>(Shape{40, 70}, 14), dy = normal<float>(Shape{40, 70}, 15);
  const auto gamma = normal<float>(Shape{70}, 16), start = normal<float>(Shape{70}, 17);
  const auto fresh = backward<float>(dy, x, gamma);
  Tensor2<float> y(x.shape());
  Tensor1<float> rstd(Shape{40});
  rms_norm_forward(x, gamma, 1e-5f, y, rstd);
  CHECK(bitwise_equal(y, rms_norm<float>(x, gamma)));  // rstd changes no bit
  Tensor1<float> dgamma = start, alone(Shape{70});
  Tensor2<float> dx = dy;  // in place
  rms_norm_backward(dx, x, gamma, rstd, dx, dgamma);
  CHECK(bitwise_equal(dx, fresh.dx));
  for (Index i = 0; i < 70; ++i) CHECK(dgamma(i) == start(i) + fresh.dgamma(i));
  rms_norm_backward(dy, x, gamma, rstd, {}, alone);
  CHECK(bitwise_equal(alone, fresh.dgamma));
  rms_norm_backward(dy, x, gamma, rstd, dx, {});
  CHECK(bitwise_equal(dx, fresh.dx));
}

TEST_CASE("layer_norm_backward without dx gives the gradients alone, to the same bits", "[ops]") {
  const auto x = normal<float>(Shape{40, 70}, 18), dy = normal<float>(Shape{40, 70}, 19);
  const auto gamma = normal<float>(Shape{70}, 20);
  Tensor2<float> y(x.shape()), dx(x.shape());
  Tensor1<float> mean(40), rstd(40), dgamma(70), dbeta(70), dgamma_alone(70), dbeta_alone(70);
  layer_norm_forward(x, {gamma, {}}, 1e-5f, y, {mean, rstd});
  FlopTally both, alone, rest;
  layer_norm_backward(dy, x, gamma, {mean, rstd}, dx, {dgamma, dbeta}, {.flops = &both});
  layer_norm_backward(dy, x, gamma, {mean, rstd}, {}, {dgamma_alone, dbeta_alone},
                      {.flops = &alone});
  layer_norm_backward(dy, x, gamma, {mean, rstd}, dx, {}, {.flops = &rest});
  CHECK(bitwise_equal(dgamma, dgamma_alone));
  CHECK(bitwise_equal(dbeta, dbeta_alone));
  CHECK(both.useful == alone.useful + rest.useful);
}

TEST_CASE("rms_norm has the same bits in place, strided, row by row and on any threads", "[ops]") {
  const auto x = normal<float>(Shape{9, 133}, 18), dy = normal<float>(Shape{9, 133}, 20);
  const auto gamma = normal<float>(Shape{133}, 19);
  const auto y = rms_norm<float>(x, gamma);
  auto in_place = x;
  rms_norm_forward(in_place, gamma, 1e-5f, in_place, {});
  CHECK(bitwise_equal(in_place, y));
  Tensor2<float> turned(Shape{133, 9});
  copy(x, transpose(turned, 0, 1));
  rms_norm_forward(transpose(turned, 0, 1), gamma, 1e-5f, transpose(turned, 0, 1), {});
  CHECK(bitwise_equal(In<float, 2>(transpose(turned, 0, 1)), In<float, 2>(y)));
  for (Index n = 0; n < 9; ++n) {
    const auto alone = rms_norm<float>(contiguous(slice(x, 0, n, 1)), gamma);
    CHECK(bitwise_equal(In<float, 2>(alone), In<float, 2>(slice(y, 0, n, 1))));
  }
  const auto many = normal<float>(Shape{500, 133}, 21), d_many = normal<float>(Shape{500, 133}, 22);
  ThreadPool pool(3);
  const auto one = backward<float>(d_many, many, gamma),
             three = backward<float>(d_many, many, gamma, 1e-5f, {.executor = pool});
  CHECK(bitwise_equal(one.dx, three.dx));
  CHECK(bitwise_equal(one.dgamma, three.dgamma));
}

TEMPLATE_TEST_CASE("a row of rms_norm whose dy is 0 reaches no gradient, NaN and infinities too",
                   "[ops]", double, long double) {
  using T = TestType;
  const auto x = normal<T>(Shape{3, 4}, 31);
  const auto gamma = normal<T>(Shape{4}, 32);
  auto dy = normal<T>(Shape{3, 4}, 33);
  fill<T, 2>(slice(dy, 0, 1, 1), T(0));
  const auto clean = backward<T>(dy, x, gamma);
  for (const T poison : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
    auto poisoned = x;
    poisoned(1, 2) = poison;
    const auto got = backward<T>(dy, poisoned, gamma);
    CHECK(close_to(got.dx, clean.dx, 0));
    CHECK(close_to(got.dgamma, clean.dgamma, 0));
    for (Index n = 0; n < 4; ++n) CHECK(got.dx(1, n) == 0);
  }
}

TEST_CASE("rms_norm of rows without elements has rstd 0, and of no rows nothing", "[ops]") {
  Tensor2<double> empty(Shape{3, 0}), none(Shape{0, 3});
  Tensor1<double> rstd(Shape{3}, {7, 7, 7}), no_rstd(Shape{0}), dgamma(Shape{3});
  rms_norm_forward(empty, {}, 1e-5, empty, rstd);
  for (const double r : rstd) CHECK(r == 0);
  CHECK_NOTHROW(rms_norm_backward(none, none, {}, no_rstd, none, dgamma));
  for (const double d : dgamma) CHECK(d == 0);
}

TEMPLATE_TEST_CASE("rows of norms whose squares overflow have rstd 0 and give 0", "[ops]", float,
                   double) {
  using T = TestType;
  Tensor<T, 2> x(Shape{1, 9});
  for (Index n = 0; n < 9; ++n) x(0, n) = T(n) * std::sqrt((std::numeric_limits<T>::max)());
  Tensor<T, 1> mean(Shape{1}), rstd(Shape{1}, {7});
  Tensor<T, 2> y(Shape{1, 9});
  const auto is_zero = [&] {
    CHECK(rstd(0) == 0);
    for (const T number : y) CHECK(number == 0);
  };
  rms_norm_forward<T>(x, {}, T(1e-5), y, rstd);
  is_zero();
  rstd(0) = 7;
  layer_norm_forward<T>(x, {}, T(1e-5), y, {mean, rstd});
  is_zero();
}

TEST_CASE("the tallies of rms_norm are what it computes, with and without gamma", "[ops]") {
  for (const Shape<2>& shape : {Shape{1, 1}, Shape{5, 7}}) {
    const auto& [N, D] = shape.extents;
    const auto x = normal<Counting>(Shape{N, D}, 21), dy = normal<Counting>(Shape{N, D}, 22);
    const auto one = normal<Counting>(Shape{D}, 23);
    for (const bool has_gamma : {false, true}) {
      CAPTURE(N, D, has_gamma);
      const In<Counting, 1> gamma = has_gamma ? In<Counting, 1>(one) : In<Counting, 1>();
      Tensor2<Counting> y(x.shape()), dx(x.shape());
      Tensor1<Counting> rstd(Shape{N}), dgamma(Shape{D});
      FlopTally forward, back;
      const auto counted = count_operations(
          [&] { rms_norm_forward(x, gamma, Counting(1e-5), y, rstd, {.flops = &forward}); });
      CHECK(counted.total() == N * (D * (3 + has_gamma) + 4));
      CHECK(forward.useful == counted.total());
      const auto counted_back = count_operations([&] {
        rms_norm_backward(dy, x, gamma, rstd, dx,
                          has_gamma ? InOut<Counting, 1>(dgamma) : InOut<Counting, 1>(),
                          {.flops = &back});
      });
      CHECK(back.useful == N * (D * (7 + 5 * has_gamma) + 1));
      CHECK(counted_back.total() == back.useful);
    }
  }
}

}  // namespace ops_rms_norm
