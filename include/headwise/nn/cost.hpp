// The cost of a MultiHeadAttention's call, for the formulas of analysis/.
#pragma once

#include <algorithm>

#include "headwise/analysis/attention_shape.hpp"
#include "headwise/nn/multi_head_attention_options.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The shape of a call with L queries; S keys where they are separate, none with self-attention. Of
/// packed sequences the batch is 1 and L all rows. The key lengths of the call's mask and its
/// starts are viewed. Throws ArgumentError for options that make no module.
template <Scalar T>
AttentionShape attention_shape(const MultiHeadAttentionOptions& options,
                               const MultiHeadAttentionCall<T>& call, Index batch_size,
                               Index seq_len, std::optional<Index> key_len = {}) {
  const MultiHeadAttentionOptions o = options.resolved();
  AttentionShape shape;
  shape.batch_size = batch_size;
  shape.seq_len = seq_len;
  shape.key_len = key_len;
  shape.d_model = o.d_model;
  shape.num_heads = o.num_heads;
  shape.num_kv_heads = o.num_kv_heads;
  shape.d_head = o.d_head;
  shape.d_value = o.d_value;
  shape.kdim = o.kdim;
  shape.vdim = o.vdim;
  shape.causal = call.mask.is_causal();
  constexpr Index longest = Index{1} << 30;  // of a sequence: beyond it they leave the same pairs
  shape.window = std::min<Index>(call.mask.window(), longest);
  shape.first_keys = std::min<Index>(call.mask.first_keys(), longest);
  shape.key_lengths = call.mask.key_lengths();
  shape.query_starts = call.query_starts;
  shape.key_starts = call.key_starts;
  shape.mask_biases = static_cast<Index>(call.mask.biases().size());
  shape.softcap = call.score.softcap.has_value();
  shape.alibi = !call.score.alibi_slopes.absent();
  shape.relative_bias = !call.score.relative_bias.absent();
  shape.score_function = !call.score.function.absent();
  shape.own_sinks = o.sinks;
  shape.own_slopes = o.alibi;
  shape.own_distances = o.relative_reach > 0 ? 2 * o.relative_reach + 1 : 0;
  shape.q_bias = o.q_bias;
  shape.k_bias = o.k_bias;
  shape.v_bias = o.v_bias;
  shape.o_bias = o.o_bias;
  shape.layer_norm = o.layer_norm;
  shape.layer_norm_affine = o.layer_norm_affine;
  shape.qk_norm = o.qk_norm;
  shape.qk_norm_affine = o.qk_norm_affine;
  shape.rotary_width = o.rotary ? o.rotary->width_of(o.d_head) : 0;
  shape.weight_dropout = call.weight_dropout.active();
  shape.output_dropout = call.output_dropout.active();
  return shape;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
