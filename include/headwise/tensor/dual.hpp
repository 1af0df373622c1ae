// Numbers that carry a derivative: a + b e with e e = 0. What computes on them differentiates as it
// goes (forward mode), and on Dual<Dual<T>> twice. It holds one direction; it records nothing.
//
//   f(Dual(x, u)) = f(x) + f'(x) u e
//
// Every function is inlined and branches on nothing, so that a loop over scalars made dual in
// registers vectorises as one over scalars does.
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <numbers>
#include <type_traits>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1 {

HEADWISE_STRICT_MATH_BEGIN

/// A value and its derivative. A plain number is a constant: its derivative is 0.
///
/// Order is that of the values. Equal are two whose values and derivatives are: x == 0 says that x
/// may be left out of a sum, which a zero that moves may not.
///
/// A term of a chain rule whose inner derivative is 0 is 0, also where the outer one is infinite:
/// sqrt of the constant 0 is the constant 0. e^x that is 0 is a constant, for x = -infinity.
///
/// Source  Griewank and Walther, Evaluating Derivatives (2008), chapter 3.
template <class T>
struct Dual {
  T value{};       // what a plain number would be
  T derivative{};  // along the one direction

  /// The constant 0.
  constexpr Dual() = default;
  /// A number that moves: a + b e.
  HEADWISE_INLINE constexpr Dual(const T& a, const T& b) : value(a), derivative(b) {}
  /// A constant.
  template <class U>
  requires(std::is_arithmetic_v<U> || std::same_as<U, T>) HEADWISE_INLINE constexpr Dual(const U& a)
      : value(static_cast<T>(a)) {}
  /// The value alone.
  template <std::floating_point U>
  HEADWISE_INLINE explicit constexpr operator U() const {
    return static_cast<U>(value);
  }

  HEADWISE_INLINE friend constexpr Dual operator+(const Dual& a, const Dual& b) {
    return {a.value + b.value, a.derivative + b.derivative};
  }
  HEADWISE_INLINE friend constexpr Dual operator-(const Dual& a, const Dual& b) {
    return {a.value - b.value, a.derivative - b.derivative};
  }
  HEADWISE_INLINE friend constexpr Dual operator-(const Dual& a) {
    return {-a.value, -a.derivative};
  }
  HEADWISE_INLINE friend constexpr Dual operator*(const Dual& a, const Dual& b) {
    return {a.value * b.value, a.value * b.derivative + a.derivative * b.value};
  }
  HEADWISE_INLINE friend constexpr Dual operator/(const Dual& a, const Dual& b) {
    const T quotient = a.value / b.value;
    return {quotient, (a.derivative - quotient * b.derivative) / b.value};
  }

  // With a plain number: no products with its derivative.
  template <class U>
  requires std::is_arithmetic_v<U> HEADWISE_INLINE friend constexpr Dual operator*(const Dual& a,
                                                                                   const U& b) {
    const T factor = static_cast<T>(b);
    return {a.value * factor, a.derivative * factor};
  }
  template <class U>
  requires std::is_arithmetic_v<U> HEADWISE_INLINE friend constexpr Dual operator*(const U& a,
                                                                                   const Dual& b) {
    return b * a;
  }
  template <class U>
  requires std::is_arithmetic_v<U> HEADWISE_INLINE friend constexpr Dual operator/(const Dual& a,
                                                                                   const U& b) {
    const T divisor = static_cast<T>(b);
    return {a.value / divisor, a.derivative / divisor};
  }

  /// What the operator says, stored.
  ///@{
  HEADWISE_INLINE constexpr Dual& operator+=(const Dual& b) { return *this = *this + b; }
  HEADWISE_INLINE constexpr Dual& operator-=(const Dual& b) { return *this = *this - b; }
  HEADWISE_INLINE constexpr Dual& operator*=(const Dual& b) { return *this = *this * b; }
  HEADWISE_INLINE constexpr Dual& operator/=(const Dual& b) { return *this = *this / b; }
  ///@}

  HEADWISE_INLINE friend constexpr bool operator==(const Dual& a, const Dual& b) {
    return a.value == b.value && a.derivative == b.derivative;
  }
  HEADWISE_INLINE friend constexpr bool operator<(const Dual& a, const Dual& b) {
    return a.value < b.value;
  }
  HEADWISE_INLINE friend constexpr bool operator>(const Dual& a, const Dual& b) { return b < a; }
  HEADWISE_INLINE friend constexpr bool operator<=(const Dual& a, const Dual& b) {
    return a.value <= b.value;
  }
  HEADWISE_INLINE friend constexpr bool operator>=(const Dual& a, const Dual& b) { return b <= a; }

  /// As std::max and std::min: of equal values, the first.
  HEADWISE_INLINE friend constexpr Dual(max)(const Dual& a, const Dual& b) {
    return select(a < b, b, a);
  }
  HEADWISE_INLINE friend constexpr Dual(min)(const Dual& a, const Dual& b) {
    return select(b < a, b, a);
  }
  /// At 0, the derivative from the right.
  HEADWISE_INLINE friend constexpr Dual abs(const Dual& x) { return select(x < Dual(0), -x, x); }
  HEADWISE_INLINE friend constexpr Dual fabs(const Dual& x) { return abs(x); }

  HEADWISE_INLINE friend Dual exp(const Dual& x) {
    using std::exp;
    const T power = exp(x.value);
    return {power, power == T(0) ? T(0) : T(power * x.derivative)};
  }
  HEADWISE_INLINE friend Dual log(const Dual& x) {
    using std::log;
    return {log(x.value), chain(T(1) / x.value, x.derivative)};
  }
  HEADWISE_INLINE friend Dual log1p(const Dual& x) {
    using std::log1p;
    return {log1p(x.value), chain(T(1) / (T(1) + x.value), x.derivative)};
  }
  HEADWISE_INLINE friend Dual sqrt(const Dual& x) {
    using std::sqrt;
    const T root = sqrt(x.value);
    return {root, chain(T(0.5) / root, x.derivative)};
  }
  HEADWISE_INLINE friend Dual sin(const Dual& x) {
    using std::cos, std::sin;
    return {sin(x.value), cos(x.value) * x.derivative};
  }
  HEADWISE_INLINE friend Dual cos(const Dual& x) {
    using std::cos, std::sin;
    return {cos(x.value), -sin(x.value) * x.derivative};
  }
  HEADWISE_INLINE friend Dual tanh(const Dual& x) {
    using std::tanh;
    const T y = tanh(x.value);
    return {y, (T(1) - y) * (T(1) + y) * x.derivative};
  }
  HEADWISE_INLINE friend Dual erf(const Dual& x) {
    using std::erf;
    return {erf(x.value), error_slope(x.value) * x.derivative};
  }
  HEADWISE_INLINE friend Dual erfc(const Dual& x) {
    using std::erfc;
    return {erfc(x.value), -error_slope(x.value) * x.derivative};
  }
  /// x^y, x above 0 where y is no constant.
  HEADWISE_INLINE friend Dual pow(const Dual& x, const Dual& y) {
    using std::log, std::pow;
    const T power = pow(x.value, y.value);
    const T by_x = chain(y.value * pow(x.value, y.value - T(1)), x.derivative);
    return {power, by_x + chain(power * log(x.value), y.derivative)};
  }
  template <class U>
  requires std::is_arithmetic_v<U> HEADWISE_INLINE friend Dual pow(const Dual& x, const U& y) {
    using std::pow;
    const T exponent = static_cast<T>(y);
    const T slope = exponent * pow(x.value, exponent - T(1));
    return {pow(x.value, exponent), exponent == T(0) ? T(0) : chain(slope, x.derivative)};
  }

 private:
  /// Part by part: two selections that have vectors, where one of a struct has none.
  HEADWISE_INLINE static constexpr Dual select(bool condition, const Dual& yes, const Dual& no) {
    return {condition ? yes.value : no.value, condition ? yes.derivative : no.derivative};
  }
  /// slope u, and 0 where u is 0.
  HEADWISE_INLINE static constexpr T chain(const T& slope, const T& u) {
    return u == T(0) ? T(0) : T(slope * u);
  }
  /// d erf / dx = 2 e^(-x^2) / sqrt(pi)
  HEADWISE_INLINE static T error_slope(const T& x) {
    using std::exp;
    return exp(-(x * x)) * static_cast<T>(2 * std::numbers::inv_sqrtpi_v<long double>);
  }
};

HEADWISE_STRICT_MATH_END

/// Whether T is a Dual.
template <class T>
inline constexpr bool is_dual = false;
/// True for Dual<T>.
template <class T>
inline constexpr bool is_dual<Dual<T>> = true;

}  // namespace headwise::inline v0_1

/// The limits of T, as dual numbers that do not vary.
template <class T>
class std::numeric_limits<headwise::Dual<T>> : public std::numeric_limits<T> {
  using Number = headwise::Dual<T>;
  using Base = std::numeric_limits<T>;

 public:
  /// What T has under that name, as a constant.
  ///@{
  static constexpr Number(min)() { return Number((Base::min)()); }
  static constexpr Number(max)() { return Number((Base::max)()); }
  static constexpr Number lowest() { return Number(Base::lowest()); }
  static constexpr Number epsilon() { return Number(Base::epsilon()); }
  static constexpr Number round_error() { return Number(Base::round_error()); }
  static constexpr Number infinity() { return Number(Base::infinity()); }
  static constexpr Number quiet_NaN() { return Number(Base::quiet_NaN()); }
  static constexpr Number signaling_NaN() { return Number(Base::signaling_NaN()); }
  static constexpr Number denorm_min() { return Number(Base::denorm_min()); }
  ///@}
};
