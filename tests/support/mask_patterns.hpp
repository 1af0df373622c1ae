// Callables for mask functions: pairs and bounds without any order.
#pragma once

#include <cstdint>

#include "headwise/kernels/mask_function.hpp"

namespace headwise_tests {

using namespace headwise;

/// A coin for each pair, the same whoever throws it: true for all but one of `odds`.
struct CoinPattern {
  std::uint64_t seed, odds;

  bool operator()(const Position& at) const {
    std::uint64_t bits = seed;
    for (const Index n : {at.batch, at.head, at.query, at.key}) {
      bits = (bits + static_cast<std::uint64_t>(n) + 1) * 0x9E3779B97F4A7C15u;
      bits ^= bits >> 29;
    }
    return bits % odds != 0;
  }
};

/// Bounds that rise and fall with the query, which may lie beyond S keys, be empty, or end before
/// they begin; all keys for each query where they are not `bounded`.
struct ScatteredBounds {
  Index S;
  bool bounded = true;

  KeyRange operator()(const Position& query) const {
    if (!bounded) return {0, S};
    const Index n = 7 * query.query + 3 * query.head + query.batch, begin = 29 * n % (S + 9) - 4;
    if (n % 11 == 5) return {begin, begin - 2};
    if (n % 11 == 8) return {-1000, 1000 + S};
    return {begin, begin + 1 + 13 * n % (S / 2 + 1)};
  }
};

/// A view that asks about all keys.
inline MaskFunctionRef without_bounds(MaskFunctionRef function) {
  function.bounds = nullptr;
  return function;
}

}  // namespace headwise_tests
