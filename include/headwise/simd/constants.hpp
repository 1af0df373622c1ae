// What the vector functions share over all instruction sets: which types have vectors, and the
// coefficients of their polynomials.
#pragma once

#include <concepts>
#include <cstdint>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd {

template <class T>
inline constexpr bool vectorised = std::same_as<T, float> || std::same_as<T, double>;

/// 2^f as a polynomial that is 1 at 0 and elsewhere nearest by relative error, over
/// [-1/2, 1/2]. Each coefficient is rounded before those above it are fitted, so that they make up
/// for its rounding; what is left is in the comments.
template <class T>
struct Exp2Constants;

template <>
struct Exp2Constants<float> {
  static constexpr int mantissa_bits = 23;
  // x + shift has round(x) + 127, the exponent's bits of 2^round(x), in its lowest bits.
  static constexpr float shift = 0x1.8p23f + 127;
  static constexpr float lowest = -126.0f;  // below, 2^x is denormal
  // 3.6e-9
  static constexpr float terms[] = {0x1.0p+0f,     0x1.62e43p-1f,   0x1.ebfbd8p-3f, 0x1.c6af78p-5f,
                                    0x1.3b30bp-7f, 0x1.5f0a66p-10f, 0x1.3f906cp-13f};
};

template <>
struct Exp2Constants<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr double shift = 0x1.8p52 + 1023;
  static constexpr double lowest = -1022.0;
  // 5.6e-18
  static constexpr double terms[] = {0x1.0p+0,
                                     0x1.62e42fefa39efp-1,
                                     0x1.ebfbdff82c5a5p-3,
                                     0x1.c6b08d704a122p-5,
                                     0x1.3b2ab6fb9ffb3p-7,
                                     0x1.5d87fe78a111cp-10,
                                     0x1.4309130f139cbp-13,
                                     0x1.ffcbfc595bcf6p-17,
                                     0x1.62bfc71ea7788p-20,
                                     0x1.b5253f6036401p-24,
                                     0x1.e61c1058a1947p-28,
                                     0x1.e9471c875b804p-32};
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd
