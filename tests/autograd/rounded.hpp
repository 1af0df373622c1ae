// What a cache in 16 bits rounds, as operations of the tape, whose slope is 1.
#pragma once

#include "headwise/autograd/functions.hpp"
#include "headwise/ops/saved_in.hpp"
#include "support/rounded.hpp"

namespace headwise_tests {

using namespace headwise;

/// Rounded as a cache is, with the slope 1.
template <class T, int R>
Variable<T, R> rounded(const Variable<T, R>& x, const Saved& saved) {
  if constexpr (std::same_as<T, float>) {
    const auto forward = [saved](In<float, R> in, Out<float, R> y) {
      copy(in, y);
      if (saved.as() == StoredAs::bf16) return round_all<BFloat16>(y);
      round_all<Float16>(y);
    };
    const auto backward = [](In<float, R> dy, In<float, R>, Out<float, R> dx) { copy(dy, dx); };
    if (!saved.exact()) return apply(x.shape(), forward, backward, x);
  }
  return x;
}

}  // namespace headwise_tests
