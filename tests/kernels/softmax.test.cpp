#include "headwise/kernels/softmax.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "headwise/tensor/philox.hpp"
#include "support/catch.hpp"

namespace kernels_softmax {

using namespace headwise;

namespace {

template <class T>
std::vector<T> normal(Index n, std::uint64_t seed) {
  std::vector<T> x;
  for (Index i = 0; i < n; ++i) {
    x.push_back(static_cast<T>(philox_normal(philox_key(seed), static_cast<std::uint64_t>(i))));
  }
  return x;
}

bool sees(Index j) { return j % 3 != 1; }

/// p = softmax of the visible x, in long double.
template <class T>
std::vector<long double> expected_weights(const std::vector<T>& x) {
  long double sum = 0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    if (sees(static_cast<Index>(j))) sum += std::exp(static_cast<long double>(x[j]));
  }
  std::vector<long double> p;
  for (std::size_t j = 0; j < x.size(); ++j) {
    const bool visible = sees(static_cast<Index>(j));
    p.push_back(visible ? std::exp(static_cast<long double>(x[j])) / sum : 0.0L);
  }
  return p;
}

template <class T>
void check_row(Index n) {
  CAPTURE(sizeof(T), n);
  const std::vector<T> x = normal<T>(n, 1);
  const auto expected = expected_weights(x);
  // n roundings of the sum, one of each exp, of the difference and of the quotient.
  const auto bound = (static_cast<long double>(n) + 6) * std::numeric_limits<T>::epsilon();
  for (Index step : {1, 3}) {
    std::vector<T> row(static_cast<std::size_t>(n * step), T(-7));
    for (Index j = 0; j < n; ++j) {
      row[static_cast<std::size_t>(j * step)] = x[static_cast<std::size_t>(j)];
    }
    kernels::softmax_row(kernels::Row<T>{row.data(), step}, n, sees);
    for (Index k = 0; k < n * step; ++k) {
      const T value = row[static_cast<std::size_t>(k)];
      if (k % step != 0) {
        CHECK(value == T(-7));
        continue;
      }
      const long double p = expected[static_cast<std::size_t>(k / step)];
      CHECK(std::abs(static_cast<long double>(value) - p) <= bound * p);
    }
  }
}

template <class T>
void check_backward_row(Index n) {
  CAPTURE(sizeof(T), n);
  std::vector<T> p = normal<T>(n, 2), dp = normal<T>(n, 3);
  long double sum = 0, size = 0;
  const auto weights = expected_weights(p);
  for (std::size_t j = 0; j < p.size(); ++j) {
    p[j] = static_cast<T>(weights[j]);
    sum += static_cast<long double>(p[j]) * dp[j];
    size += std::abs(static_cast<long double>(p[j]) * dp[j]);
  }
  std::vector<T> apart(static_cast<std::size_t>(2 * n), T(-7)), in_place = dp;
  kernels::softmax_backward_row<T>({dp.data(), 1}, {p.data(), 1}, {apart.data(), 2}, n, sees);
  kernels::softmax_backward_row<T>({in_place.data(), 1}, {p.data(), 1}, {in_place.data(), 1}, n,
                                   sees);
  const auto epsilon = static_cast<long double>(std::numeric_limits<T>::epsilon());
  for (std::size_t j = 0; j < p.size(); ++j) {
    const long double expected = static_cast<long double>(p[j]) * (dp[j] - sum);
    const long double bound =
        (static_cast<long double>(n) + 4) * epsilon * p[j] * (size + std::abs(dp[j]));
    CHECK(std::abs(static_cast<long double>(apart[2 * j]) - expected) <= bound);
    CHECK(apart[2 * j] == in_place[j]);
    CHECK(apart[2 * j + 1] == T(-7));
    if (!sees(static_cast<Index>(j))) CHECK(apart[2 * j] == T(0));
  }
}

}  // namespace

TEST_CASE("softmax_row is exp over its sum among visible elements", "[kernels]") {
  for (Index n : {1, 2, 3, 5, 8, 17, 64}) {
    check_row<float>(n);
    check_row<double>(n);
    check_row<long double>(n);
  }
}

TEST_CASE("softmax_row of nothing visible is 0, whatever it held", "[kernels]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double row[3] = {std::numeric_limits<double>::quiet_NaN(), infinity, 5.0};
  kernels::softmax_row(kernels::Row<double>{row, 1}, 3, [](Index) { return false; });
  for (double p : row) CHECK(p == 0.0);
}

TEST_CASE("what softmax_row hides changes no bit of the rest, NaN and infinities too",
          "[kernels]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (double hidden :
       {0.0, 1e308, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    std::vector<double> plain = normal<double>(10, 4), row = plain;
    for (std::size_t j = 1; j < 10; j += 3) row[j] = hidden;
    kernels::softmax_row(kernels::Row<double>{plain.data(), 1}, 10, sees);
    kernels::softmax_row(kernels::Row<double>{row.data(), 1}, 10, sees);
    CHECK(row == plain);
  }
}

TEST_CASE("a NaN that is visible shows in every weight of its row", "[kernels]") {
  std::vector<double> row = normal<double>(4, 5);
  row[2] = std::numeric_limits<double>::quiet_NaN();
  kernels::softmax_row(kernels::Row<double>{row.data(), 1}, 4, [](Index) { return true; });
  for (double p : row) CHECK_FALSE(p == p);
}

TEST_CASE("softmax_row neither overflows nor underflows at the ends of the type", "[kernels]") {
  using Limits = std::numeric_limits<float>;
  std::vector<float> row = {Limits::max(), Limits::lowest(), Limits::max()};
  kernels::softmax_row(kernels::Row<float>{row.data(), 1}, 3, [](Index) { return true; });
  CHECK(row == std::vector<float>{0.5f, 0.0f, 0.5f});
  std::vector<float> low(3, Limits::lowest());
  kernels::softmax_row(kernels::Row<float>{low.data(), 1}, 3, [](Index) { return true; });
  for (float p : low) CHECK(p == 1.0f / 3);
}

TEST_CASE("softmax_backward_row is p (dp - sum of dp p), also in place", "[kernels]") {
  for (Index n : {1, 2, 3, 5, 17, 64}) {
    check_backward_row<float>(n);
    check_backward_row<double>(n);
    check_backward_row<long double>(n);
  }
}

TEST_CASE("no NaN passes softmax_backward_row at a hidden element", "[kernels]") {
  const double p[4] = {0.25, 0.0, 0.75, 0.0};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double dp[4] = {1.0, nan, 2.0, nan}, clean[4] = {1.0, 0.0, 2.0, 0.0};
  const auto visible = [](Index j) { return j % 2 == 0; };
  double dx[4], expected[4];
  kernels::softmax_backward_row<double>({dp, 1}, {p, 1}, {dx, 1}, 4, visible);
  kernels::softmax_backward_row<double>({clean, 1}, {p, 1}, {expected, 1}, 4, visible);
  for (int j = 0; j < 4; ++j) CHECK(dx[j] == expected[j]);
  CHECK(dx[1] == 0.0);
}

}  // namespace kernels_softmax
