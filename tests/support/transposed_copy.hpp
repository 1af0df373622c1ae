// Rows of keys as TransposedKeys.
#pragma once

#include <limits>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/transposed_keys.hpp"

namespace headwise_tests {

using namespace headwise;

/// The same keys in blocks, with a block behind them and heads of another tensor between; NaN
/// wherever there is no key.
template <class T>
struct TransposedCopy {
  Tensor<T, 5> storage;  // [B, 2 G, blocks and one more, d, 128]
  TransposedKeys<T> keys;

  explicit TransposedCopy(const In<T, 4>& k) {
    const auto [B, G, S, d] = k.shape().extents;
    const Index block = TransposedKeys<T>::block, count = TransposedKeys<T>::count(S);
    storage = Tensor<T, 5>(Shape{B, 2 * G, count + 1, d, block});
    for (T& x : storage) {
      if constexpr (NarrowFloat<T>) {
        x = convert_float<T>(std::numeric_limits<float>::quiet_NaN());
      } else {
        x = std::numeric_limits<T>::quiet_NaN();
      }
    }
    for_each_index(k.shape(), [&](const Shape<4>& at) {
      storage(at[0], 2 * at[1], at[2] / block, at[3], at[2] % block) = k(at);
    });
    Shape<5> steps = storage.strides();
    steps[1] *= 2;
    keys = {{storage.data(), Shape{B, G, count, d, block}, steps}, S};
  }
};

}  // namespace headwise_tests
