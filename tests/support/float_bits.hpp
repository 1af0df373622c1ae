// A number's bits, and how far apart numbers lie.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace headwise_tests {

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

/// By its bits: the compiler may be told that there are no NaNs.
template <class T>
bool is_nan(T x) {
  const BitsOf<T> magnitude = std::bit_cast<BitsOf<T>>(x) << 1 >> 1;
  return magnitude > std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::infinity());
}

/// The distance of neighbouring numbers of type T where `exact` lies.
template <class T>
long double unit_in_last_place(long double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  using Limits = std::numeric_limits<T>;
  return std::ldexp(1.0L, std::max(exponent, Limits::min_exponent) - Limits::digits);
}

}  // namespace headwise_tests
