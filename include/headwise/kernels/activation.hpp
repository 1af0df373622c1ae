// Activations of one number and their slopes, for every type. All but relu are x share(x), where
// share rises from 0 to 1: that of gelu is the normal distribution, that of silu and gelu_tanh the
// logistic one. Then the slope is share(x) + x density(x).
//
// relu      max(x, 0)
// gelu      share Phi(x) = erfc(-x / sqrt(2)) / 2, density e^(-x^2 / 2) / sqrt(2 pi)
// silu      share s(x) = 1 / (1 + e^-x), density s(x) s(-x)
// gelu_tanh share s(z), z = 2 sqrt(2 / pi) (x + 0.044715 x^3), density z' s(z) s(-z):
//           (1 + tanh(u)) / 2 is s(2 u)
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <numbers>

#include "headwise/runtime/activation.hpp"
#include "headwise/simd/constants.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// 1 - erf(x) for a type that has no erfc of its own, to its epsilon where x <= 0: a series near 0,
/// further out a continued fraction.
template <class T>
T erfc_by_series(const T& x) {
  using std::exp;
  if (x < T(0)) return T(2) - erfc_by_series<T>(T(0) - x);
  const T scale = exp(T(0) - x * x) * T(std::numbers::inv_sqrtpi);
  if (x < T(2.5)) {
    T term = T(2) * x, sum = term;  // sum of 2 x (2 x^2)^n / (1 3 5 ... (2 n + 1))
    for (int n = 1; n < 60; ++n) {
      term = term * (T(2) * x * x) / T(2.0 * n + 1);
      sum = sum + term;
    }
    return T(1) - scale * sum;
  }
  T fraction = x;  // x + (1/2) / (x + (2/2) / (x + (3/2) / ...))
  for (int n = 60; n >= 1; --n) fraction = x + T(n / 2.0) / fraction;
  return scale / fraction;
}

/// 1 - erf(x).
template <class T>
T complementary_error(const T& x) {
  using std::erfc;
  if constexpr (requires {
                  { erfc(x) } -> std::same_as<T>;
                }) {
    return erfc(x);
  } else {
    return erfc_by_series<T>(x);
  }
}

template <class T>
T negated(const T& x) {
  if constexpr (requires { T(-x); }) {
    return T(-x);
  } else {
    return T(0) - x;
  }
}

/// The logistic distribution at z, and what it leaves to 1.
template <class T>
struct Logistic {
  bool negative;
  T power, sum;  // e^-|z|, 1 + e^-|z|

  explicit Logistic(const T& z)
      : negative(z < T(0)), power(power_of_e(negative ? z : negated(z))), sum(T(1) + power) {}
  T share() const { return (negative ? power : T(1)) / sum; }
  T rest() const { return (negative ? T(1) : power) / sum; }

 private:
  static T power_of_e(const T& x) {
    using std::exp;
    return exp(x);
  }
};

/// x <= 0, by the order that every scalar has; NaN is not. (A dual number of value 0 that moves
/// does not equal 0.)
template <class T>
bool at_most_zero(const T& x) {
  return x < T(1) && !(T(0) < x);
}

/// z = x (linear + cubic x^2) of gelu_tanh.
struct GeluTanh {
  static constexpr long double linear = 1.59576912160573071175978423973752747L;
  static constexpr long double cubic = linear * 0.044715L;
};

template <class T>
struct ShareAndDensity {
  T share, density;
};

/// Of every activation but relu.
template <class T>
T activation_share(Activation which, const T& x) {
  if (which == Activation::silu) return Logistic<T>(x).share();
  if (which == Activation::gelu) {
    return T(0.5) *
           complementary_error<T>(x * detail::nearest<T>(-0.70710678118654752440084436210484904L));
  }
  const T linear = detail::nearest<T>(GeluTanh::linear),
          cubic = detail::nearest<T>(GeluTanh::cubic);
  return Logistic<T>(x * (linear + cubic * (x * x))).share();
}

/// Of every activation but relu.
template <class T>
ShareAndDensity<T> share_and_density(Activation which, const T& x) {
  using std::exp;
  if (which == Activation::gelu) {
    return {activation_share<T>(which, x),
            exp(T(-0.5) * (x * x)) * detail::nearest<T>(0.39894228040143267793994605993438187L)};
  }
  if (which == Activation::silu) {
    const Logistic<T> of(x);
    const T share = of.share();
    return {share, share * of.rest()};
  }
  const T linear = detail::nearest<T>(GeluTanh::linear),
          cubic = detail::nearest<T>(GeluTanh::cubic);
  const T square = x * x;
  const Logistic<T> of(x * (linear + cubic * square));
  const T share = of.share(), both = share * of.rest();
  const T rise = linear + detail::nearest<T>(3 * GeluTanh::cubic) * square;  // dz / dx
  return {share, both == T(0) ? T(0) : T(rise * both)};
}

/// -infinity, of which all shares and slopes are 0: a product with it need not be.
template <class T>
bool below_all(const T& x) {
  return x < std::numeric_limits<T>::lowest();
}

/// f(x). That of -infinity is 0.
template <class T>
T activation_value(Activation which, const T& x) {
  if (below_all(x)) return T(0);
  if (which == Activation::relu) return at_most_zero(x) ? T(0) : x;
  const T share = activation_share<T>(which, x);
  return share == T(0) ? T(0) : T(x * share);
}

/// f(x), if it is asked for, and f'(x). That of relu at 0 is 0.
template <class T>
struct ValueAndSlope {
  T value, slope;

  ValueAndSlope(Activation which, const T& x, bool with_value) : value(x), slope(T(1)) {
    if (below_all(x) || (which == Activation::relu && at_most_zero(x))) value = slope = T(0);
    if (below_all(x) || which == Activation::relu) return;
    const auto [share, density] = share_and_density<T>(which, x);
    if (with_value) value = share == T(0) ? T(0) : T(x * share);
    slope = density == T(0) ? share : T(share + x * density);
  }
};

/// Operations of forward an element, and of backward where dx alone is asked for.
struct ActivationFlops {
  int forward, backward;

  explicit constexpr ActivationFlops(Activation which)
      : forward(which == Activation::relu        ? 0
                : which == Activation::gelu_tanh ? 8
                                                 : 4),
        backward(which == Activation::relu        ? 1
                 : which == Activation::gelu      ? 10
                 : which == Activation::gelu_tanh ? 15
                                                  : 8) {}
  /// A product with the gate's other input, two more backward and, but of relu, f(x) again.
  static constexpr int gated = 1;
  constexpr int gated_backward() const { return backward + (forward == 0 ? 2 : 3); }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
