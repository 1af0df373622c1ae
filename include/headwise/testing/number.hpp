// What a number is, told by its bits: -ffast-math lets a compiler assume that no NaN and no
// infinity exists, whereupon std::isnan is false for all and a comparison that counts NaN passes.
// The bits are read from memory and pass an empty asm, through which no such assumption is seen.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::detail {

enum class NumberKind { finite, infinite, nan };

/// The error that is reported where no difference can be formed. Not an infinity, so that it
/// compares truthfully under any flag.
inline constexpr double no_error_bound = (std::numeric_limits<double>::max)();

inline namespace HEADWISE_CODE {

/// The unsigned integer that lies at an address, unknown to the optimiser.
template <class Bits>
Bits hidden_bits(const void* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof bits);
  asm volatile("" : "+r"(bits));
  return bits;
}

/// By reference: clang under -ffast-math may treat a NaN that is passed by value as no value.
template <class T>
NumberKind number_kind(const T& value) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  const auto kind = [](auto magnitude, auto infinity) {
    if (magnitude < infinity) return NumberKind::finite;
    return magnitude == infinity ? NumberKind::infinite : NumberKind::nan;
  };
  if constexpr (std::is_same_v<T, float>) {
    return kind(hidden_bits<std::uint32_t>(bytes) & 0x7FFFFFFFu, 0x7F800000u);
  } else if constexpr (std::is_same_v<T, double>) {
    return kind(hidden_bits<std::uint64_t>(bytes) & ~(std::uint64_t{1} << 63),
                std::uint64_t{0x7FF} << 52);
  } else if constexpr (std::is_same_v<T, long double> && std::numeric_limits<T>::digits == 64) {
    const auto fraction = hidden_bits<std::uint64_t>(bytes);
    const auto exponent = hidden_bits<std::uint16_t>(bytes + 8);
    if ((exponent & 0x7FFF) != 0x7FFF) return NumberKind::finite;
    return fraction << 1 == 0 ? NumberKind::infinite : NumberKind::nan;
  } else {
    const double narrowed = static_cast<double>(value);  // 16-bit structs, other long doubles
    return number_kind(narrowed);
  }
}

template <class T>
bool is_finite_number(const T& value) {
  return number_kind(value) == NumberKind::finite;
}

/// Whether two numbers have the same representation. The padding of an x87 long double is not it.
template <class T>
bool same_bits(const T& a, const T& b) {
  constexpr bool padded = std::is_same_v<T, long double> && std::numeric_limits<T>::digits == 64;
  return std::memcmp(&a, &b, padded ? 10 : sizeof(T)) == 0;
}

/// Of 16 bits, too.
template <class T>
long double widest(const T& value) {
  if constexpr (NarrowFloat<T>) {
    return static_cast<long double>(convert_float<double>(value));
  } else {
    return static_cast<long double>(value);
  }
}

inline std::string format_number(const long double& value, int digits = 3) {
  const NumberKind kind = number_kind(value);
  if (kind == NumberKind::nan) return "nan";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*Lg", digits, value);
  return text.data();
}

/// Two numbers with as many digits as it takes to tell them apart.
inline std::array<std::string, 2> format_apart(const long double& a, const long double& b) {
  std::array<std::string, 2> texts;
  for (int digits : {6, 9, 12, 17, 21}) {
    texts = {format_number(a, digits), format_number(b, digits)};
    if (texts[0] != texts[1]) break;
  }
  return texts;
}

inline std::string format_error(double error) {
  return error == no_error_bound ? "not finite" : format_number(error);
}

template <int R>
std::vector<Index> index_of(const Shape<R>& index) {
  return {std::begin(index.extents), std::end(index.extents)};
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1::detail
