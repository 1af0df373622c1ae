// Counter-based random numbers: a number is a function of a key and a position, so that any
// thread, tiling or recomputation draws the same one and nothing needs to be stored.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Philox4x32: 128 random bits from a 128-bit counter and a 64-bit key.
///
/// `rounds` 10 is the published default, 7 the fewest that pass BigCrush.
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
template <int rounds = 10>
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  std::uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
  std::uint32_t low = key[0], high = key[1];
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * a;
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * c;
    a = static_cast<std::uint32_t>(odd >> 32) ^ b ^ low;
    b = static_cast<std::uint32_t>(odd);
    c = static_cast<std::uint32_t>(even >> 32) ^ d ^ high;
    d = static_cast<std::uint32_t>(even);
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return {a, b, c, d};
}

/// The two halves of a seed.
constexpr std::array<std::uint32_t, 2> philox_key(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

/// A key of its own for each (seed, stream, step): what is drawn under one says nothing about
/// what is drawn under another.
constexpr std::array<std::uint32_t, 2> philox_key(std::uint64_t seed, std::uint32_t stream,
                                                  std::uint64_t step) {
  constexpr std::uint32_t keys = 0x68656164;  // "head": apart from what else this seed draws
  const auto words = philox<10>(
      {static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), stream, keys},
      philox_key(seed));
  return {words[0], words[1]};
}

/// A number in (0, 1] from 53 random bits.
constexpr double unit_interval(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t bits = ((std::uint64_t{high} << 32) | low) >> 11;
  return (static_cast<double>(bits) + 1.0) * 0x1.0p-53;
}

/// The standard normal number at `position` of the stream named by the key (Box and Muller).
inline double philox_normal(std::array<std::uint32_t, 2> key, std::uint64_t position) {
  const auto words = philox<10>(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0u, 0u},
      key);
  const double radius = std::sqrt(-2.0 * std::log(unit_interval(words[0], words[1])));
  return radius * std::cos(2.0 * std::numbers::pi * unit_interval(words[2], words[3]));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
