#include "headwise/ops/layer_norm.hpp"

#include <cmath>
#include <limits>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_layer_norm {

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
Tensor2<T> layer_norm(const Tensor2<T>& x, In<T, 1> gamma, In<T, 1> beta, T epsilon = T(1e-5)) {
  Tensor2<T> y(x.shape());
  layer_norm_forward(x, {gamma, beta}, epsilon, y, {{}, {}});
  return y;
}

/// By the definition, in long double.
template <class T>
Tensor2<Real> expected(const Tensor2<T>& x, In<T, 1> gamma, In<T, 1> beta, T epsilon) {
  const Index D = x.extent(1);
  Tensor2<Real> y(x.shape());
  for (Index n = 0; n < x.extent(0); ++n) {
    Real mean = 0, variance = 0;
    for (Index i = 0; i < D; ++i) mean += static_cast<Real>(x(n, i)) / static_cast<Real>(D);
    for (Index i = 0; i < D; ++i) {
      variance += (x(n, i) - mean) * (x(n, i) - mean) / static_cast<Real>(D);
    }
    for (Index i = 0; i < D; ++i) {
      y(n, i) = (x(n, i) - mean) / std::sqrt(variance + epsilon) *
                    (gamma.absent() ? Real{1} : static_cast<Real>(gamma(i))) +
                (beta.absent() ? Real{0} : static_cast<Real>(beta(i)));
    }
  }
  return y;
}

template <class T>
void check_forward(Index N, Index D, double offset) {
  CAPTURE(sizeof(T), N, D, offset);
  const auto x = normal<T>(Shape{N, D}, 1, offset);
  const auto gamma = normal<T>(Shape{D}, 2), beta = normal<T>(Shape{D}, 3);
  const T epsilon = T(1e-5);
  // The mean is rounded to a unit of x; rstd is at most 1 / sqrt(epsilon) at D = 1, of no effect.
  const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
  const double bound = unit * (static_cast<double>(D) + 8) * (4 + std::abs(offset)) * 4;
  const CloseToOptions floor{.floor = 1};
  for (int affine = 0; affine < 4; ++affine) {
    const In<T, 1> g = (affine & 1) != 0 ? In<T, 1>(gamma) : In<T, 1>();
    const In<T, 1> b = (affine & 2) != 0 ? In<T, 1>(beta) : In<T, 1>();
    CHECK(close_to(layer_norm<T>(x, g, b, epsilon), expected<T>(x, g, b, epsilon), bound, floor));
  }
}

struct Gradients {
  Tensor2<Real> dx;
  Tensor1<Real> dgamma, dbeta;
};

Gradients backward(In<Real, 2> dy, In<Real, 2> x, In<Real, 1> gamma, Real epsilon) {
  const Index N = x.extent(0), D = x.extent(1);
  Tensor2<Real> y(x.shape());
  Tensor1<Real> mean(Shape{N}), rstd(Shape{N});
  layer_norm_forward(x, {gamma, {}}, epsilon, y, {mean, rstd});
  Gradients g{Tensor2<Real>(x.shape()), Tensor1<Real>(Shape{D}), Tensor1<Real>(Shape{D})};
  layer_norm_backward(dy, x, gamma, {mean, rstd}, g.dx, {g.dgamma, g.dbeta});
  return g;
}

}  // namespace

TEST_CASE("layer_norm equals its definition in long double, also in rows far from 0", "[ops]") {
  for (Index D : {1, 2, 3, 7, 64, 257}) {
    for (Index N : {1, 5}) {
      check_forward<float>(N, D, 0);
      check_forward<double>(N, D, 0);
      check_forward<double>(N, D, 1e6);
      check_forward<long double>(N, D, -1e6);
    }
  }
}

TEST_CASE("rows of layer_norm have mean 0 and variance 1, and a shift changes nothing", "[ops]") {
  auto x = normal<double>(Shape{4, 33}, 4);
  for (double& element : x) element = std::ldexp(std::round(std::ldexp(element, 20)), -20);
  const auto y = layer_norm<double>(x, {}, {}, 1e-12);
  for (Index n = 0; n < 4; ++n) {
    double sum = 0, squares = 0;
    for (Index i = 0; i < 33; ++i) {
      sum += y(n, i);
      squares += y(n, i) * y(n, i);
    }
    CHECK(std::abs(sum) < 1e-13);
    CHECK(std::abs(squares / 33 - 1) < 1e-11);  // epsilon takes 1e-12
  }
  auto moved = x;
  for (double& element : moved) element += 4096;
  CHECK(close_to(layer_norm<double>(moved, {}, {}, 1e-12), y, 1e-11));
}

TEST_CASE("layer_norm keeps mean and rstd for backward, and their absence changes no bit",
          "[ops]") {
  const auto x = normal<double>(Shape{3, 8}, 5);
  Tensor2<double> y(x.shape());
  Tensor1<double> mean(Shape{3}), rstd(Shape{3});
  layer_norm_forward(x, {{}, {}}, 1e-5, y, {mean, rstd});
  CHECK(bitwise_equal(layer_norm<double>(x, {}, {}), y));
  for_each_index(x.shape(), [&](const Shape<2>& i) {
    CHECK(std::abs((x(i) - mean(i[0])) * rstd(i[0]) - y(i)) <= 1e-15 * (1 + std::abs(y(i))));
  });
}

TEST_CASE("the gradients of layer_norm are the slopes of forward", "[ops]") {
  for (Index D : {3, 8}) {
    for (bool has_gamma : {false, true}) {
      CAPTURE(D, has_gamma);
      auto x = normal<Real>(Shape{4, D}, 6);
      auto gamma = normal<Real>(Shape{D}, 7), beta = normal<Real>(Shape{D}, 8);
      const auto dy = normal<Real>(Shape{4, D}, 9);
      const In<Real, 1> g = has_gamma ? In<Real, 1>(gamma) : In<Real, 1>();
      const Gradients gradients = backward(dy, x, g, 1e-3L);
      GradientCheck<Real> check({.tolerance = 1e-11, .stencil = Stencil::five_point});
      check.input("x", x, gradients.dx);
      if (has_gamma) check.input("gamma", gamma, gradients.dgamma);
      check.input("beta", beta, gradients.dbeta);
      const auto report = check.run([&] {
        return weighted_sum(In<Real, 2>(dy), In<Real, 2>(layer_norm<Real>(x, g, beta, 1e-3L)));
      });
      CAPTURE(report);
      CHECK(report);
    }
  }
}

TEST_CASE("dx of layer_norm sums to 0 in each row and is 0 for rows of one element", "[ops]") {
  const auto x = normal<Real>(Shape{5, 17}, 10), dy = normal<Real>(Shape{5, 17}, 11);
  const auto dx = backward(dy, x, {}, 1e-5L).dx;
  for (Index n = 0; n < 5; ++n) {
    Real sum = 0;
    for (Index i = 0; i < 17; ++i) sum += dx(n, i);
    CHECK(std::abs(sum) < 1e-17L);
  }
  const auto single = normal<Real>(Shape{3, 1}, 12), d_single = normal<Real>(Shape{3, 1}, 13);
  for (Real element : backward(d_single, single, {}, 1e-5L).dx) CHECK(element == 0);
  for (Real y : layer_norm<Real>(single, {}, {})) CHECK(y == 0);
}

TEST_CASE("dgamma and dbeta are added to, and computed only where asked for", "[ops]") {
  const auto x = normal<Real>(Shape{4, 6}, 14), dy = normal<Real>(Shape{4, 6}, 15);
  const auto gamma = normal<Real>(Shape{6}, 16), start = normal<Real>(Shape{6}, 17);
  const Gradients fresh = backward(dy, x, gamma, 1e-5L);
  Tensor2<Real> y(x.shape());
  Tensor1<Real> mean(Shape{4}), rstd(Shape{4});
  layer_norm_forward(x, {gamma, {}}, 1e-5L, y, {mean, rstd});
  for (int asked = 0; asked < 4; ++asked) {
    Tensor1<Real> dgamma = start, dbeta = start;
    Tensor2<Real> dx = dy;  // in place
    layer_norm_backward(dx, x, gamma, {mean, rstd}, dx,
                        {(asked & 1) != 0 ? InOut<Real, 1>(dgamma) : InOut<Real, 1>(),
                         (asked & 2) != 0 ? InOut<Real, 1>(dbeta) : InOut<Real, 1>()});
    CHECK(bitwise_equal(dx, fresh.dx));
    for (Index i = 0; i < 6; ++i) {
      CHECK(std::abs(dgamma(i) - start(i) - ((asked & 1) != 0 ? fresh.dgamma(i) : 0)) < 1e-17L);
      CHECK(std::abs(dbeta(i) - start(i) - ((asked & 2) != 0 ? fresh.dbeta(i) : 0)) < 1e-17L);
    }
  }
}

TEST_CASE("layer_norm has the same bits in place, strided, row by row and on any threads",
          "[ops]") {
  const auto x = normal<float>(Shape{9, 13}, 18);
  const auto gamma = normal<float>(Shape{13}, 19);
  const auto y = layer_norm<float>(x, gamma, gamma);
  auto in_place = x;
  layer_norm_forward(in_place, {gamma, gamma}, 1e-5f, in_place, {{}, {}});
  CHECK(bitwise_equal(in_place, y));
  Tensor2<float> turned(Shape{13, 9}), pooled(x.shape());
  copy(x, transpose(turned, 0, 1));
  layer_norm_forward(transpose(turned, 0, 1), {gamma, gamma}, 1e-5f, transpose(turned, 0, 1),
                     {{}, {}});
  CHECK(bitwise_equal(In<float, 2>(transpose(turned, 0, 1)), In<float, 2>(y)));
  ThreadPool pool(3);
  layer_norm_forward(x, {gamma, gamma}, 1e-5f, pooled, {{}, {}}, {.executor = pool});
  CHECK(bitwise_equal(pooled, y));
  for (Index n = 0; n < 9; ++n) {
    const auto alone = layer_norm<float>(contiguous(slice(x, 0, n, 1)), gamma, gamma);
    CHECK(bitwise_equal(In<float, 2>(alone), In<float, 2>(slice(y, 0, n, 1))));
  }
}

TEST_CASE("a row of layer_norm whose dy is 0 reaches no gradient, NaN and infinities too",
          "[ops]") {
  const auto x = normal<double>(Shape{3, 4}, 31), row = normal<double>(Shape{1, 4}, 32);
  auto dy = normal<double>(Shape{3, 4}, 33);
  fill<double, 2>(slice(dy, 0, 1, 1), 0.0);
  const auto gradients_of = [&](const Tensor2<double>& input) {
    Tensor2<double> y(x.shape()), all({5, 4});  // dx, dgamma, dbeta
    Tensor1<double> mean(3), rstd(3);
    const In<double, 1> gamma = select(row, 0);
    layer_norm_forward(input, {gamma, {}}, 1e-5, y, {mean, rstd});
    layer_norm_backward(In<double, 2>(dy), input, gamma, {mean, rstd}, slice(all, 0, 0, 3),
                        {select(slice(all, 0, 3, 1), 0), select(slice(all, 0, 4, 1), 0)});
    return all;
  };
  const auto clean = gradients_of(x);
  for (const double poison :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    auto poisoned = x;
    poisoned(1, 2) = poison;
    CHECK(bitwise_equal(gradients_of(poisoned), clean));
  }
}

TEST_CASE("the tallies of layer_norm are what it computes, with and without gamma and beta",
          "[ops]") {
  for (const Shape<2>& shape : {Shape{1, 1}, Shape{5, 7}}) {
    const auto& [N, D] = shape.extents;
    const auto x = normal<Counting>(Shape{N, D}, 21), dy = normal<Counting>(Shape{N, D}, 22);
    const auto one = normal<Counting>(Shape{D}, 23);
    for (int affine = 0; affine < 4; ++affine) {
      const bool has_gamma = (affine & 1) != 0, has_beta = (affine & 2) != 0;
      CAPTURE(N, D, has_gamma, has_beta);
      const In<Counting, 1> gamma = has_gamma ? In<Counting, 1>(one) : In<Counting, 1>();
      const In<Counting, 1> beta = has_beta ? In<Counting, 1>(one) : In<Counting, 1>();
      Tensor2<Counting> y(x.shape()), dx(x.shape());
      Tensor1<Counting> mean(Shape{N}), rstd(Shape{N}), dgamma(Shape{D}), dbeta(Shape{D});
      FlopTally forward, backward;
      const auto counted = count_operations([&] {
        layer_norm_forward(x, {gamma, beta}, Counting(1e-5), y, {mean, rstd}, {.flops = &forward});
      });
      CHECK(counted.total() == N * (D * (7 + has_gamma + has_beta) + 16));
      CHECK(forward.useful == counted.total());
      const auto counted_backward = count_operations([&] {
        layer_norm_backward(dy, x, gamma, {mean, rstd}, dx,
                            {has_gamma ? InOut<Counting, 1>(dgamma) : InOut<Counting, 1>(),
                             has_beta ? InOut<Counting, 1>(dbeta) : InOut<Counting, 1>()},
                            {.flops = &backward});
      });
      CHECK(backward.useful == N * (D * (11 + 6 * has_gamma + has_beta) + 2));
      // A sum over N rows is N - 1 additions, and one that joins it to what the gradient holds.
      CHECK(counted_backward.total() == backward.useful);
    }
  }
}

}  // namespace ops_layer_norm
