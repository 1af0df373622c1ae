#include "headwise/kernels/layer_norm.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "headwise/tensor/philox.hpp"
#include "support/catch.hpp"

namespace kernels_layer_norm {

using namespace headwise;

namespace {

template <class T>
std::vector<T> normal(Index n, std::uint64_t seed, T offset = T(0)) {
  std::vector<T> x;
  for (Index i = 0; i < n; ++i) {
    x.push_back(offset +
                static_cast<T>(philox_normal(philox_key(seed), static_cast<std::uint64_t>(i))));
  }
  return x;
}

template <class T>
std::vector<T> spread(const std::vector<T>& x, Index step) {
  std::vector<T> result(x.size() * static_cast<std::size_t>(step), T(-7));
  for (std::size_t n = 0; n < x.size(); ++n) result[n * static_cast<std::size_t>(step)] = x[n];
  return result;
}

struct Moments {
  long double mean, variance;
};

template <class T>
Moments moments_of(const std::vector<T>& x) {
  long double sum = 0, squares = 0;
  for (T element : x) sum += element;
  const long double mean = sum / static_cast<long double>(x.size());
  for (T element : x) squares += (element - mean) * (element - mean);
  return {mean, squares / static_cast<long double>(x.size())};
}

template <class T>
void check_moments(Index D, T offset) {
  CAPTURE(sizeof(T), D, offset);
  const std::vector<T> x = normal<T>(D, 1, offset);
  const T epsilon = T(1e-5);
  const Moments expected = moments_of(x);
  const long double rstd = 1 / std::sqrt(expected.variance + epsilon);
  for (Index step : {1, 2}) {
    const std::vector<T> row = spread(x, step);
    const auto got = kernels::row_moments<T>({row.data(), step}, D, epsilon);
    const auto unit = static_cast<long double>(std::numeric_limits<T>::epsilon());
    const long double size = std::abs(expected.mean) + 4;
    // The mean is a sum of D terms. Its error e adds e^2 to the variance, which falls by rounding
    // of the differences: relative to their size, not to that of x.
    const long double mean_error = (static_cast<long double>(D) / 2 + 1) * unit * size;
    CHECK(std::abs(got.mean - expected.mean) <= mean_error);
    const long double variance_error =
        mean_error * mean_error + (static_cast<long double>(D) + 4) * unit * expected.variance;
    const long double relative = variance_error / (2 * (expected.variance + epsilon)) + 4 * unit;
    CHECK(std::abs(got.rstd - rstd) <= relative * rstd);
  }
}

}  // namespace

TEST_CASE("a constant row has no variance, however far from 0 it lies", "[kernels]") {
  const auto check = [](auto constant) {
    using T = decltype(constant);
    for (Index D : {1, 3, 17, 100, 768, 1000}) {
      const std::vector<T> x(static_cast<std::size_t>(D), constant);
      const auto got = kernels::row_moments<T>({x.data(), 1}, D, T(0.0625));
      CAPTURE(sizeof(T), D, constant);
      CHECK(got.mean == constant);
      CHECK(got.rstd == T(4));
    }
  };
  for (double constant : {0.0, 0.1, -1000.1, 12345.678, 1e6 + 0.7, -1e10, 1e18}) {
    check(static_cast<float>(constant));
    check(constant);
    check(static_cast<long double>(constant));
  }
}

TEST_CASE("row_moments are the mean and 1 / sqrt(variance + epsilon) of the row", "[kernels]") {
  for (Index D : {1, 2, 3, 5, 17, 64, 257}) {
    check_moments<float>(D, 0);
    check_moments<double>(D, 0);
    check_moments<long double>(D, 0);
  }
}

TEST_CASE("row_moments keep their digits in a row far from 0", "[kernels]") {
  check_moments<float>(64, 1000.0f);
  check_moments<double>(64, 1e6);
  check_moments<double>(64, -1e6);
  check_moments<long double>(64, 1e6L);
}

TEST_CASE("normalise_row is (x - mean) rstd gamma + beta at any steps, in place too", "[kernels]") {
  constexpr Index D = 7;
  const auto x = normal<double>(D, 2), gamma = normal<double>(D, 3), beta = normal<double>(D, 4);
  const kernels::RowMoments<double> moments{0.25, 1.5};
  const auto gammas = spread(gamma, 3), betas = spread(beta, 2);
  for (int affine = 0; affine < 4; ++affine) {
    const bool has_gamma = (affine & 1) != 0, has_beta = (affine & 2) != 0;
    CAPTURE(has_gamma, has_beta);
    auto y = spread(x, 4);
    kernels::normalise_row<double>({y.data(), 4}, D, moments,
                                   {has_gamma ? gammas.data() : nullptr, 3},
                                   {has_beta ? betas.data() : nullptr, 2}, {y.data(), 4});
    for (Index n = 0; n < 4 * D; ++n) {
      const double value = y[static_cast<std::size_t>(n)];
      if (n % 4 != 0) {
        CHECK(value == -7.0);
        continue;
      }
      const auto k = static_cast<std::size_t>(n / 4);
      double expected = (x[k] - 0.25) * 1.5;
      if (has_gamma) expected *= gamma[k];
      if (has_beta) expected += beta[k];
      CHECK(std::abs(value - expected) <= 1e-15 * (1 + std::abs(expected)));
    }
  }
}

TEST_CASE("layer_norm_backward_row is the transposed Jacobian of the row, written out",
          "[kernels]") {
  for (Index D : {1, 2, 3, 8, 17}) {
    const auto x = normal<long double>(D, 5), dy = normal<long double>(D, 6),
               gamma = normal<long double>(D, 7);
    const long double epsilon = 1e-5L;
    const Moments exact = moments_of(x);
    const long double rstd = 1 / std::sqrt(exact.variance + epsilon);
    for (bool has_gamma : {false, true}) {
      CAPTURE(D, has_gamma);
      std::vector<long double> dx(x.size());
      kernels::layer_norm_backward_row<long double>(
          {dy.data(), 1}, {x.data(), 1}, D, {exact.mean, rstd},
          {has_gamma ? gamma.data() : nullptr, 1}, {dx.data(), 1});
      for (std::size_t j = 0; j < x.size(); ++j) {
        // d y_i / d x_j = rstd gamma_i (i == j) - rstd gamma_i (1 + xhat_i xhat_j) / D
        long double expected = 0, size = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const long double xhat_i = (x[i] - exact.mean) * rstd,
                            xhat_j = (x[j] - exact.mean) * rstd;
          const long double g = has_gamma ? dy[i] * gamma[i] : dy[i];
          const long double jacobian =
              rstd * ((i == j ? 1.0L : 0.0L) - (1 + xhat_i * xhat_j) / static_cast<long double>(D));
          expected += g * jacobian;
          size += std::abs(g * jacobian) + rstd * std::abs(g);
        }
        CHECK(std::abs(dx[j] - expected) <=
              static_cast<long double>(D + 8) * std::numeric_limits<long double>::epsilon() * size);
      }
    }
  }
}

}  // namespace kernels_layer_norm
