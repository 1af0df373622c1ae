// Heads split over workers: each holds the columns of W_Q, W_K and W_V and the rows of W_O that
// belong to its heads and sees the whole input; their outputs are summed.
// Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3.
#pragma once

#include "headwise/nn/multi_head_attention.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A module of heads first ... first + count - 1 of another, with copies of their weights: W_Q
/// [D, count d], W_K, W_V and W_O likewise, inputs and output as wide as those of the whole. Shards
/// that cover all heads once sum to the whole: outputs, and gradients of the input. The output
/// bias stays with the shard that holds head 0. Functions of pairs and dropout of the weights take
/// a shard's heads for what they are in the whole by a call's {.origin = {.head = first}}. What a
/// call gives for each head (masks, slopes) has to be sliced by the caller.
/// Throws ArgumentError unless the heads exist and whole groups stay together; and for a module
/// with layer_norm, which is not a matter of heads: normalise the input before; std::bad_alloc.
template <Scalar T>
MultiHeadAttention<T> head_shard(const MultiHeadAttention<T>& whole, Index first, Index count) {
  const MultiHeadAttentionOptions& o = whole.options();
  const Index group = o.num_heads / o.num_kv_heads;
  require(first >= 0 && count >= 1 && count <= o.num_heads - first, "head_shard", "first is ",
          first, " and count ", count, ", expected at least one of heads 0 to ", o.num_heads - 1);
  require(first % group == 0 && count % group == 0, "head_shard", "first is ", first, " and count ",
          count, ", expected multiples of ", group, " (heads that share keys)");
  require(!o.layer_norm, "head_shard",
          "the module has layer_norm, expected one without: normalise the input before");

  MultiHeadAttentionOptions part = o;
  part.num_heads = count;
  part.num_kv_heads = count / group;
  part.o_bias = o.o_bias && first == 0;
  MultiHeadAttention<T> shard(part);
  const MultiHeadAttentionParameters<T>& from = whole.parameters();
  MultiHeadAttentionParameters<T>& to = shard.parameters();
  const Index q0 = first * o.d_head, k0 = first / group * o.d_head, v0 = first / group * o.d_value;
  copy(slice(from.W_Q(), 1, q0, to.q_width), to.W_Q());
  copy(slice(from.W_K(), 1, k0, to.k_width), to.W_K());
  copy(slice(from.W_V(), 1, v0, to.v_width), to.W_V());
  copy(slice(from.w_o, 0, first * o.d_value, count * o.d_value), to.w_o);
  if (o.q_bias) copy(slice(from.b_q, 0, q0, to.q_width), to.b_q);
  if (o.k_bias) copy(slice(from.b_k, 0, k0, to.k_width), to.b_k);
  if (o.v_bias) copy(slice(from.b_v, 0, v0, to.v_width), to.b_v);
  if (part.o_bias) copy(In<T, 1>(from.b_o), to.b_o);
  copy(In<T, 1>(from.gamma_q), to.gamma_q);
  copy(In<T, 1>(from.gamma_k), to.gamma_k);
  if (o.sinks) copy(slice(from.sinks, 0, first, count), to.sinks);
  if (o.alibi) copy(slice(from.alibi_slopes, 0, first, count), to.alibi_slopes);
  if (o.relative_reach > 0) copy(slice(from.relative_bias, 0, first, count), to.relative_bias);
  return shard;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
