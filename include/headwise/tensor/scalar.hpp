// Which types numbers may have. float and double run vectorised; long double, or a type of one's
// own that counts or differentiates, runs the same source one element at a time.
#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1 {

/// Arithmetic, order, std::numeric_limits, conversion from double, and exp, log and sqrt found by
/// argument-dependent lookup or in std. No integers.
template <class T>
concept Scalar = std::numeric_limits<T>::is_specialized && !std::integral<T> &&
                 std::constructible_from<T, double> && requires(T a, T b) {
  a + b;
  a - b;
  a* b;
  a / b;
  a < b;
};

inline namespace HEADWISE_CODE {

/// x = -infinity, written by its bits: some compilers refuse the literal under -ffast-math, and
/// clang 19 lets no function return it. It is stored in results and for hidden scores, and computed
/// with in strict regions alone.
template <Scalar T>
void set_negative_infinity(T& x) {
  constexpr std::uint32_t single = 0xFF800000u;
  constexpr std::uint64_t twice = 0xFFF0000000000000u;
  if constexpr (std::same_as<T, float>) {
    std::memcpy(&x, &single, sizeof x);
  } else if constexpr (std::same_as<T, double>) {
    std::memcpy(&x, &twice, sizeof x);
  } else {
    x = T(std::bit_cast<double>(twice));
  }
}

HEADWISE_STRICT_MATH_BEGIN

/// Whether an option is a number to compute with: neither NaN nor infinite. By comparisons, for a
/// scalar type that counts its operations; strict, so that -ffast-math does not decide it unseen.
template <Scalar T>
bool is_finite_option(const T& value) {
  const T most = (std::numeric_limits<T>::max)(), least = std::numeric_limits<T>::lowest();
  return !(value < least) && !(most < value) && (value < most || least < value);
}

/// An option as an error shows it: its digits, or what a type that has none converts to.
template <Scalar T>
auto shown_option(const T& value) {
  if constexpr (std::floating_point<T>) {
    return value;
  } else if constexpr (requires { static_cast<double>(value); }) {
    return static_cast<double>(value);
  } else {
    return std::string_view("a number of another type");
  }
}

/// tanh(x); of a type that has none, by its exp.
template <Scalar T>
T hyperbolic_tangent(const T& x) {
  using std::exp;
  using std::tanh;
  if constexpr (requires { tanh(x); }) {
    return T(tanh(x));
  } else {
    const bool negative = x < T(0);
    const T power = T(exp(negative ? x + x : T(0) - x - x));  // e^(-2 |x|)
    const T most = (T(1) - power) / (T(1) + power);
    return negative ? T(0) - most : most;
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace HEADWISE_CODE

namespace detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// x as near as T comes: a long double, or what holds one, keeps its digits.
template <class T>
T nearest(long double x) {
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(x);
  } else if constexpr (std::numeric_limits<T>::digits > std::numeric_limits<double>::digits) {
    const auto high = static_cast<double>(x);
    return T(high) + T(static_cast<double>(x - high));
  } else {
    return T(static_cast<double>(x));
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace detail::inline HEADWISE_CODE
}  // namespace headwise::inline v0_1
