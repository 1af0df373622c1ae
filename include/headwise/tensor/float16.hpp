// Floating-point numbers of 16 bits, and conversions between them and those of 32 and 64.
//
// A conversion works on the bits alone, so that it is the same under every compiler flag, rounding
// mode and flush-to-zero setting. The 2-byte types are storage: they hold bits and compute nothing.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1 {

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Float16 {
  std::uint16_t bits = 0;                                        // as IEEE 754 lays them out
  friend constexpr bool operator==(Float16, Float16) = default;  // of the bits: NaN equals itself
};

/// The upper half of a binary32: 1 sign, 8 exponent, 7 fraction bits.
struct BFloat16 {
  std::uint16_t bits = 0;  // the upper half of the binary32
  friend constexpr bool operator==(BFloat16, BFloat16) = default;
};

/// A number of 16 bits: stored, not computed with.
template <class T>
concept NarrowFloat = std::same_as<T, Float16> || std::same_as<T, BFloat16>;

/// What numbers are kept as: the type that is computed with, or one of 16 bits.
enum class StoredAs : std::uint8_t { same, bf16, fp16 };

/// A type that numbers can be stored as.
template <class T>
concept StoredFloat = std::same_as<T, double> || std::same_as<T, float> ||
    std::same_as<T, Float16> || std::same_as<T, BFloat16>;

/// What the matrices of a module that computes in T may be kept as: T, or 16 bits of a float.
template <class W, class T>
concept KeptAs = std::same_as<W, T> ||(NarrowFloat<W>&& std::same_as<T, float>);

/// What numbers that are kept as W are computed with.
template <class W>
using ComputedAs = std::conditional_t<NarrowFloat<W>, float, W>;

namespace detail {

template <class T>
inline constexpr StoredAs stored_as = std::same_as<T, BFloat16>  ? StoredAs::bf16
                                      : std::same_as<T, Float16> ? StoredAs::fp16
                                                                 : StoredAs::same;

/// f(std::type_identity<U>()), U being what numbers of T are kept as: of 16 bits for float alone.
template <class T, class F>
constexpr auto with_stored_type(StoredAs as, const F& f) {
  if constexpr (std::same_as<T, float>) {
    if (as == StoredAs::bf16) return f(std::type_identity<BFloat16>());
    if (as == StoredAs::fp16) return f(std::type_identity<Float16>());
  }
  return f(std::type_identity<T>());
}

struct FloatFormat {
  int exponent_bits;
  int fraction_bits;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

constexpr std::uint64_t low_bits(int count) { return (std::uint64_t{1} << count) - 1; }

/// The nearest number of another format; of two equally near, the one with an even last bit.
///
/// Subnormal numbers are kept, what is too large becomes infinite. A NaN stays one and keeps the
/// leading bits of its payload.
constexpr std::uint64_t convert_float_bits(std::uint64_t bits, FloatFormat from, FloatFormat to) {
  const std::uint64_t sign = (bits >> (from.exponent_bits + from.fraction_bits)) & 1;
  const std::uint64_t signed_zero = sign << (to.exponent_bits + to.fraction_bits);
  const std::uint64_t infinity = low_bits(to.exponent_bits) << to.fraction_bits;
  const std::uint64_t exponent = (bits >> from.fraction_bits) & low_bits(from.exponent_bits);
  const std::uint64_t fraction = bits & low_bits(from.fraction_bits);

  if (exponent == low_bits(from.exponent_bits)) {
    if (fraction == 0) return signed_zero | infinity;
    const int widen = to.fraction_bits - from.fraction_bits;
    const std::uint64_t payload = widen >= 0 ? fraction << widen : fraction >> -widen;
    const std::uint64_t quiet = std::uint64_t{1} << (to.fraction_bits - 1);
    return signed_zero | infinity | (payload == 0 ? quiet : payload);
  }
  if (exponent == 0 && fraction == 0) return signed_zero;

  // The number is significand 2^scale, and its leading bit is worth 2^top.
  const bool subnormal = exponent == 0;
  const std::uint64_t significand =
      subnormal ? fraction : fraction | (std::uint64_t{1} << from.fraction_bits);
  const int scale = (subnormal ? 1 : static_cast<int>(exponent)) - from.bias() - from.fraction_bits;
  const int top = static_cast<int>(std::bit_width(significand)) - 1 + scale;
  if (top > to.bias()) return signed_zero | infinity;

  // What the target's last bit is worth, 2^last, decides how many bits of the significand go.
  const int lowest_top = 1 - to.bias();
  const int last = (top < lowest_top ? lowest_top : top) - to.fraction_bits;
  const int drop = last - scale;
  if (drop > 62) return signed_zero;
  std::uint64_t rounded = drop <= 0 ? significand << -drop : significand >> drop;
  if (drop > 0) {
    const std::uint64_t rest = significand & low_bits(drop);
    const std::uint64_t half = std::uint64_t{1} << (drop - 1);
    if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  }
  // The leading bit of a normal number counts as one step of the exponent, and so does a carry:
  // the largest subnormal rounds up to the smallest normal, the largest finite to infinity.
  const int exponent_steps = top < lowest_top ? 0 : top - lowest_top;
  return signed_zero | ((static_cast<std::uint64_t>(exponent_steps) << to.fraction_bits) + rounded);
}

template <StoredFloat T>
inline constexpr FloatFormat float_format = std::same_as<T, double>    ? FloatFormat{11, 52}
                                            : std::same_as<T, float>   ? FloatFormat{8, 23}
                                            : std::same_as<T, Float16> ? FloatFormat{5, 10}
                                                                       : FloatFormat{8, 7};

template <StoredFloat T>
using float_bits =
    std::conditional_t<sizeof(T) == 8, std::uint64_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

}  // namespace detail

/// The same number in another floating-point type: rounded to nearest, ties to even.
///
/// from   float, double, Float16 or BFloat16
///
/// Subnormal numbers, infinities, the sign of zero and NaN are kept; what is too large becomes
/// infinite. Each step rounds once: double to Float16 does not pass through float.
template <StoredFloat To, StoredFloat From>
constexpr To convert_float(From from) {
  if constexpr (std::same_as<To, From>) {
    return from;
  } else if constexpr (std::same_as<To, float> && std::same_as<From, BFloat16>) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(from.bits) << 16);
  } else if constexpr (std::same_as<To, BFloat16> && std::same_as<From, float>) {
    const auto bits = std::bit_cast<std::uint32_t>(from);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    // Half of the last bit that stays, less one where that bit is 0: ties go to even.
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const std::uint32_t payload = bits >> 16 | ((bits >> 16 & 0x7f) == 0 ? 0x40 : 0);
    return {static_cast<std::uint16_t>(nan ? payload : rounded)};
  } else {
    const std::uint64_t bits = std::bit_cast<detail::float_bits<From>>(from);
    return std::bit_cast<To>(static_cast<detail::float_bits<To>>(
        detail::convert_float_bits(bits, detail::float_format<From>, detail::float_format<To>)));
  }
}

namespace detail {

/// x in another type: to and from 16 bits the nearest number, else as static_cast rounds it.
template <class To, class From>
constexpr To number_as(const From& x) {
  if constexpr (std::same_as<To, From>) {
    return x;
  } else if constexpr (NarrowFloat<To> || NarrowFloat<From>) {
    return convert_float<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace detail

}  // namespace headwise::inline v0_1
