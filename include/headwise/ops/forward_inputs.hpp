// What a forward call of flash attention reads: rows of keys, or keys that lie transposed.
#pragma once

#include "headwise/ops/attention_options.hpp"
#include "headwise/tensor/transposed_keys.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// What a forward call reads: keys and values that may be stored in 16 bits, and queries.
template <class Q, class U>
struct ForwardInputs {
  In<Q, 4> q;
  In<U, 4> k, v;
  In<U, 5> blocks = {};  // of TransposedKeys, of which k is the first block

  /// Of blocks that are those of their keys.
  static ForwardInputs of(const In<Q, 4>& q, const TransposedKeys<U>& keys, const In<U, 4>& v) {
    const Shape<5>& steps = keys.blocks.strides();
    return {q,
            {keys.blocks.data(), keys.shape(), Shape{steps[0], steps[1], steps[4], steps[3]}},
            v,
            keys.blocks};
  }
  /// What an output must not share memory with.
  Footprint key_bytes() const {
    return blocks.absent() ? Footprint("k", k) : Footprint("k", blocks);
  }
};

/// Head h of batch element b of a forward call.
template <class T, class Q, class U>
kernels::AttentionHead<T> forward_head(const AttentionSizes& sizes, const ForwardInputs<Q, U>& in,
                                       const AttentionOptions<T>& options, Index b, Index h) {
  auto head = attention_head<T>(sizes, in.q, in.k, in.v, options, b, h);
  if (!in.blocks.absent()) head.key_blocks = in.blocks.stride(2);
  return head;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
