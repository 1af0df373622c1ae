#include "headwise/ops/softmax.hpp"

#include <cmath>
#include <limits>

#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_softmax {

using namespace headwise;
using headwise_tests::count_operations;
using headwise_tests::Counting;

namespace {

template <class T>
Tensor2<T> normal(Index rows, Index columns, std::uint64_t seed) {
  Tensor2<T> x(Shape{rows, columns});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

Tensor2<double> softmax(const Tensor2<double>& x) {
  Tensor2<double> p(x.shape());
  softmax_forward(x, p);
  return p;
}

Tensor2<double> jacobian(In<double, 1> p) {
  Tensor2<double> j(Shape{p.extent(0), p.extent(0)});
  softmax_jacobian(p, j);
  return j;
}

const Tensor2<double> example(Shape{1, 3}, {2.0, 1.0, 0.1});

}  // namespace

TEST_CASE("softmax of 2, 1, 0.1 has its known values", "[ops]") {
  const Tensor2<double> expected(Shape{1, 3}, {0.65900114, 0.24243297, 0.09856589});
  CHECK(close_to(softmax(example), expected, 1e-8));
  const Tensor2<double> sharp = softmax(Tensor2<double>(Shape{1, 3}, {10, 0, 0}));
  CHECK(close_to(sharp, Tensor2<double>(Shape{1, 3}, {0.99990921, 4.54e-5, 4.54e-5}), 1e-8));
}

TEST_CASE("the Jacobian of softmax at 2, 1, 0.1 has its known values", "[ops]") {
  const Tensor2<double> p = softmax(example);
  const Tensor2<double> j = jacobian(select(p, 0));
  const Tensor2<double> expected(
      Shape{3, 3}, {0.22471864, -0.1597636, -0.06495503, -0.1597636, 0.18365923, -0.02389562,
                    -0.06495503, -0.02389562, 0.08885066});
  CHECK(close_to(j, expected, 4e-8));
  Tensor2<double> dx(Shape{1, 3});
  softmax_backward(Tensor2<double>(Shape{1, 3}, {0.5, -0.3, 0.2}), p, dx);
  CHECK(close_to(dx, Tensor2<double>(Shape{1, 3}, {0.14729739, -0.13975869, -0.0075387}), 1e-7));
}

TEST_CASE("rows of softmax are positive and sum to 1", "[ops]") {
  for (Index M : {1, 2, 7, 64, 257}) {
    const Tensor2<double> p = softmax(normal<double>(5, M, 1));
    for (Index n = 0; n < 5; ++n) {
      double sum = 0;
      for (Index m = 0; m < M; ++m) {
        CHECK(p(n, m) > 0);
        sum += p(n, m);
      }
      CHECK(std::abs(sum - 1) <=
            static_cast<double>(M + 2) * std::numeric_limits<double>::epsilon());
    }
  }
}

TEST_CASE("a constant added to a row changes nothing, and 1000 is no overflow", "[ops]") {
  Tensor2<double> x = normal<double>(3, 8, 2);
  for (double& element : x) element = std::ldexp(std::round(std::ldexp(element, 20)), -20);
  const Tensor2<double> p = softmax(x);
  for (double constant : {1.0, -7.0, 1000.0, -1000.0, 1048576.0}) {  // x + constant is exact
    Tensor2<double> moved = x;
    for (double& element : moved) element += constant;
    CHECK(bitwise_equal(softmax(moved), p));
  }
  CHECK(softmax(Tensor2<double>(Shape{1, 2}, {1000, 0}))(0, 0) == 1.0);
  CHECK(softmax(Tensor2<double>(Shape{1, 2}, {-1000, -1000}))(0, 1) == 0.5);
}

TEST_CASE("the Jacobian is symmetric, its rows sum to 0, and backward is its transpose at work",
          "[ops]") {
  for (Index M : {1, 2, 3, 9}) {
    CAPTURE(M);
    const Tensor2<double> p = softmax(normal<double>(1, M, 3)), dp = normal<double>(1, M, 4);
    const Tensor2<double> j = jacobian(select(p, 0));
    Tensor2<double> dx(Shape{1, M}), expected(Shape{1, M});
    for (Index a = 0; a < M; ++a) {
      double row = 0;
      for (Index b = 0; b < M; ++b) {
        CHECK(std::abs(j(a, b) - j(b, a)) <= 1e-16);
        row += j(a, b);
        expected(0, a) += j(b, a) * dp(0, b);
      }
      CHECK(std::abs(row) <= 1e-15);
    }
    softmax_backward(dp, p, dx);
    CHECK(close_to(dx, expected, 1e-14, {.floor = 1}));
  }
}

TEST_CASE("the Jacobian is the derivative of softmax", "[ops]") {
  const Tensor2<double> x = normal<double>(1, 5, 5);
  const Tensor2<double> p = softmax(x);
  const Tensor2<double> j = jacobian(select(p, 0));
  constexpr double step = 1e-5;  // errors of step^2 and epsilon / step
  for (Index b = 0; b < 5; ++b) {
    Tensor2<double> up = x, down = x;
    up(0, b) += step;
    down(0, b) -= step;
    const Tensor2<double> p_up = softmax(up), p_down = softmax(down);
    for (Index a = 0; a < 5; ++a) {
      CHECK(std::abs((p_up(0, a) - p_down(0, a)) / (2 * step) - j(a, b)) < 1e-9);
    }
  }
}

TEST_CASE("softmax runs in place and through any strides with the same bits", "[ops]") {
  const Tensor2<double> x = normal<double>(5, 7, 6), dp = normal<double>(5, 7, 7);
  const Tensor2<double> p = softmax(x);
  Tensor2<double> dx(x.shape());
  softmax_backward(dp, p, dx);

  Tensor2<double> in_place = x, gradient = dp;
  softmax_forward(in_place, in_place);
  CHECK(bitwise_equal(in_place, p));
  softmax_backward(gradient, p, gradient);
  CHECK(bitwise_equal(gradient, dx));

  Tensor2<double> x_columns(Shape{7, 5}), p_columns(Shape{7, 5}), dx_columns(Shape{7, 5});
  copy(x, transpose(x_columns, 0, 1));
  softmax_forward(transpose(x_columns, 0, 1), transpose(p_columns, 0, 1));
  CHECK(bitwise_equal(In<double, 2>(transpose(p_columns, 0, 1)), In<double, 2>(p)));
  softmax_backward(dp, transpose(p_columns, 0, 1), transpose(dx_columns, 0, 1));
  CHECK(bitwise_equal(In<double, 2>(transpose(dx_columns, 0, 1)), In<double, 2>(dx)));
}

TEST_CASE("softmax of no rows or no columns is empty", "[ops]") {
  for (const auto& shape : {Shape{0, 3}, Shape{3, 0}, Shape{0, 0}}) {
    const Tensor2<float> x(shape);
    Tensor2<float> p(shape), dx(shape);
    CHECK_NOTHROW(softmax_forward(x, p));
    CHECK_NOTHROW(softmax_backward(x, p, dx));
  }
}

TEST_CASE("softmax does 4 operations an element, forward and backward, and its tallies say so",
          "[ops]") {
  for (Index N : {1, 5}) {
    for (Index M : {1, 2, 7}) {
      CAPTURE(N, M);
      const Tensor2<Counting> x = normal<Counting>(N, M, 8);
      Tensor2<Counting> p(x.shape()), dx(x.shape());
      FlopTally forward, backward;
      const auto counted = count_operations([&] { softmax_forward(x, p, {.flops = &forward}); });
      const auto counted_backward =
          count_operations([&] { softmax_backward(x, p, dx, {.flops = &backward}); });
      CHECK(forward.useful == 4 * N * M);
      CHECK(backward.useful == 4 * N * M);
      CHECK(counted.additions == 2 * N * M);
      CHECK(counted.divisions == N * M);
      CHECK(counted.functions == N * M);
      CHECK(counted.total() == forward.useful);
      CHECK(counted_backward.total() == backward.useful);
    }
  }
}

}  // namespace ops_softmax
