// What the vector functions share over all instruction sets: which types have vectors, what pairs
// are, and the coefficients of their polynomials.
#pragma once

#include <concepts>
#include <cstdint>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::simd {

template <class T>
inline constexpr bool vectorised = std::same_as<T, float> || std::same_as<T, double>;

/// Two neighbours along the inner index of a product, as bf16, the first in the lower half.
struct BFloat16Pair {
  std::uint32_t bits;
};

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
  // Below, a weight is nothing beside the greatest one, 1, or a sum of 1, a sink's among it, and
  // what is multiplied by it may be denormal: it counts as 0 in attention, as
  // docs/features/two_paths.md says.
  static constexpr float lowest_of_factors = -64.0f;
  // log2(e) in two parts: the product of the first with a number of 18 bits is exact.
  static constexpr float log2e_high = 0x1.7p+0f, log2e_low = 0x1.547652p-8f;
  static constexpr int low_bits = 15;  // a square without them has 18
  // 3.6e-9
  static constexpr float terms[] = {0x1.0p+0f,     0x1.62e43p-1f,   0x1.ebfbd8p-3f, 0x1.c6af78p-5f,
                                    0x1.3b30bp-7f, 0x1.5f0a66p-10f, 0x1.3f906cp-13f};
};

template <>
struct Exp2Constants<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr double shift = 0x1.8p52 + 1023;
  static constexpr double lowest = -1022.0;
  static constexpr double lowest_of_factors = -512.0;
  static constexpr double log2e_high = 0x1.715p+0, log2e_low = 0x1.1d94ae0bf85dep-14;
  static constexpr int low_bits = 33;  // a square without them has 40
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

/// log(m) for m between the roots of 1/2 and of 2: the terms of (log(m) - 2 s) / s^3 in s^2, where
/// s = (m - 1) / (m + 1), by relative error and rounded as above. ln(2) stands in two parts, of
/// which the first times an exponent is exact.
template <class T>
struct LogConstants;

template <>
struct LogConstants<float> {
  static constexpr int mantissa_bits = 23;
  static constexpr float root_of_half = 0x1.6a09e6p-1f;
  static constexpr float shift = 0x1.8p23f;  // a whole number n in its lowest bits makes shift + n
  static constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  // 3.0e-7, of which at most a hundredth is in the logarithm
  static constexpr float terms[] = {0x1.55555cp-1f, 0x1.997bacp-2f, 0x1.2ef3f6p-2f};
};

template <>
struct LogConstants<double> {
  static constexpr int mantissa_bits = 52;
  static constexpr double root_of_half = 0x1.6a09e667f3bcdp-1;
  static constexpr double shift = 0x1.8p52;
  static constexpr double ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
  // 4.6e-16
  static constexpr double terms[] = {
      0x1.5555555555558p-1, 0x1.9999999995352p-2, 0x1.2492492de968ep-2, 0x1.c71c62ece14f2p-3,
      0x1.7462b3049e1b2p-3, 0x1.39fe8d2e1810dp-3, 0x1.2b567be2e69dfp-3};
};

/// What a normal distribution has beyond t, over e^(-t^2 / 2): a quotient of two polynomials that
/// is 1/2 at 0 and elsewhere nearest by relative error, up to where the power is 0. All terms are
/// above 0, so that no digit is lost in the sums. With what the coefficients are rounded by:
template <class T>
struct NormalConstants;

template <>
struct NormalConstants<float> {
  static constexpr float bound = 14.5f;  // e^(-bound^2 / 2) is 0
  // 4.6e-8
  static constexpr float over[] = {0.5f, 0x1.c00f4ap-2f, 0x1.7617bep-3f, 0x1.4b38ccp-5f,
                                   0x1.0ba8f0p-8f};
  static constexpr float under[] = {1.0f,           0x1.ac49d2p+0f, 0x1.333f32p+0f,
                                    0x1.df2ec4p-2f, 0x1.9f26eap-4f, 0x1.4f753ap-7f};
};

template <>
struct NormalConstants<double> {
  static constexpr double bound = 38.7;
  // 1.2e-16
  static constexpr double over[] = {0.5,
                                    0x1.8c8162598299ap-1,
                                    0x1.2fd0aa33c7c96p-1,
                                    0x1.27ca9c189fdecp-2,
                                    0x1.8f4c227df4e7dp-4,
                                    0x1.81f1d515e43b8p-6,
                                    0x1.0b109c9d98019p-8,
                                    0x1.0006ee6b8aba2p-11,
                                    0x1.36e59c0e55316p-15,
                                    0x1.719f512ea47cbp-20};
  static constexpr double under[] = {1.0,
                                     0x1.2c61c5fc12252p+1,
                                     0x1.4793e0e998435p+1,
                                     0x1.b65697275ec58p+0,
                                     0x1.8fb73ff518c5fp-1,
                                     0x1.047dfd72a2fddp-2,
                                     0x1.edae50fe8b76cp-5,
                                     0x1.51c2a68cdbc20p-7,
                                     0x1.41c9824706ad2p-10,
                                     0x1.85a6c86b23d51p-14,
                                     0x1.cf40bdb65eb68p-19};
};

/// Beyond these |x|, e^-|x| is 0, and e^-|z| of gelu_tanh.
template <class T>
struct LogisticConstants {
  static constexpr T bound = sizeof(T) == 4 ? T(105) : T(750);
  static constexpr T tanh_bound = sizeof(T) == 4 ? T(11) : T(22);
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::simd
