// exp for all lanes at once.
#pragma once

#include <bit>
#include <cmath>
#include <numbers>

#include "headwise/simd/vector.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd {

HEADWISE_STRICT_MATH_BEGIN

/// How e^x is taken apart: x = n ln 2 + r with |r| <= ln 2 / 2, e^x = 2^n e^r.
template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float overflow = 88.722839f;    // above: infinity
  static constexpr float underflow = -103.97208f;  // below: 0
  static constexpr float round = 0x1.8p23f;        // x + round - round is the nearest integer
  static constexpr float ln2_high = 0x1.62ep-1f;   // 12 bits: n * ln2_high is exact
  static constexpr float ln2_low = 0x1.0bfbe8p-15f;
  static constexpr int mantissa_bits = 23;
  static constexpr int exponent_bias = 127;
  // e^r by its Taylor series: the first term left out is below 6e-9.
  static constexpr float series[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                                     1.0f / 6,    1.0f / 2,   1.0f};
};

template <>
struct ExpConstants<double> {
  static constexpr double overflow = 709.782712893384;
  static constexpr double underflow = -745.1332191019412;
  static constexpr double round = 0x1.8p52;
  static constexpr double ln2_high = 0x1.62e42fee00000p-1;
  static constexpr double ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr int mantissa_bits = 52;
  static constexpr int exponent_bias = 1023;
  // The first term left out is below 5e-18.
  static constexpr double series[] = {1.0 / 6227020800,
                                      1.0 / 479001600,
                                      1.0 / 39916800,
                                      1.0 / 3628800,
                                      1.0 / 362880,
                                      1.0 / 40320,
                                      1.0 / 5040,
                                      1.0 / 720,
                                      1.0 / 120,
                                      1.0 / 24,
                                      1.0 / 6,
                                      1.0 / 2,
                                      1.0};
};

/// e^x lane by lane, within 2 units in the last place over the whole range, denormal results
/// included; e^0 is exactly 1, e^-inf is 0, NaN stays NaN.
template <Scalar T, class Isa>
HEADWISE_INLINE typename Simd<T, Isa>::Vector exp(typename Simd<T, Isa>::Vector x) {
  if constexpr (!vectorised<T>) {
    using std::exp;
    return exp(x);
  } else {
    using S = Simd<T, Isa>;
    using C = ExpConstants<T>;
    using Vector = typename S::Vector;
    using IntVector = typename S::IntVector;
    using BitVector = typename S::BitVector;  // wraps for x far out of range, unsigned
    // 1. n = round(x / ln 2): its integer stands in the low bits of the rounded sum.
    const Vector shifted = x * std::numbers::log2e_v<T> + C::round;
    const Vector n = shifted - C::round;
    const BitVector n_bits =
        __builtin_bit_cast(BitVector, shifted) - std::bit_cast<typename S::Bits>(C::round);
    // 2. r = x - n ln 2, in two steps so that no digit is lost.
    const Vector r = (x - n * C::ln2_high) - n * C::ln2_low;
    // 3. e^r = 1 + r (1 + r (1/2 + ...))
    Vector series = S::broadcast(C::series[0]);
    for (std::size_t k = 1; k < std::size(C::series); ++k) series = series * r + C::series[k];
    series = series * r + T(1);
    // 4. Times 2^n in two steps, for 2^n alone may be out of range where the product is not.
    const BitVector half =
        __builtin_bit_cast(BitVector, __builtin_bit_cast(IntVector, n_bits) >> 1);
    const BitVector rest = n_bits - half;
    const Vector scale_half =
        __builtin_bit_cast(Vector, (half + C::exponent_bias) << C::mantissa_bits);
    const Vector scale_rest =
        __builtin_bit_cast(Vector, (rest + C::exponent_bias) << C::mantissa_bits);
    Vector result = series * scale_half * scale_rest;
    result = S::select(x < C::underflow, S::zero(), result);
    result =
        S::select(x > C::overflow, S::broadcast((std::numeric_limits<T>::max)()) * T(2), result);
    return result;
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd
