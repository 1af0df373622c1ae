// The slopes of ALiBi as its paper gives them.
#pragma once

#include <cmath>

#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// ALiBi's slopes [heads], for ScoreOptions::alibi_slopes: 2^(-8 n / H), n = 1 ... H, where the
/// number of heads H is a power of 2; else those of the next lower power, and behind them every
/// other one of the next higher. Throws ArgumentError for less than one head, std::bad_alloc.
/// Source: Press, Smith and Lewis, "Train Short, Test Long", 2022, arXiv 2108.12409, section 3.
template <Scalar T>
Tensor<T, 1> alibi_slopes(Index heads) {
  require(heads >= 1, "alibi_slopes", "heads is ", heads, ", expected >= 1");
  Index power = 1;
  while (power <= heads / 2) power *= 2;
  Tensor<T, 1> slopes({heads});
  const auto slope = [](Index n, Index of) {
    return T(std::exp2(-8.0 * static_cast<double>(n) / static_cast<double>(of)));
  };
  for (Index n = 0; n < power; ++n) slopes(n) = slope(n + 1, power);
  for (Index n = power; n < heads; ++n) slopes(n) = slope(2 * (n - power) + 1, 2 * power);
  return slopes;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
