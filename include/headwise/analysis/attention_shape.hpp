// The shape of a multi-head attention as far as its cost goes, and how many pairs it sees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// What a call costs depends on these alone. Widths of 0 take the default that stands beside them.
struct AttentionShape {
  Index batch_size = 1;                     // B
  Index seq_len = 0;                        // L
  std::optional<Index> key_len = {};        // S; none: self-attention, S = L
  Index d_model = 0;                        // D
  Index num_heads = 1;                      // H
  Index num_kv_heads = 0;                   // G; H
  Index d_head = 0;                         // d; D / H
  Index d_value = 0;                        // dv; d
  Index kdim = 0;                           // D
  Index vdim = 0;                           // D
  bool causal = false;                      // query i sees key j only where j <= i + (S - L)
  Index window = 0;                         // 0: none
  std::span<const Index> key_lengths = {};  // [B]; empty: all S
  Index mask_biases = 0;                    // how many Mask::bias are added to the scores
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false;  // of the projections
  bool layer_norm = false, layer_norm_affine = false;   // before them; with gamma and beta
  bool weight_dropout = false, output_dropout = false;  // whether each is active

  /// Whether keys and values come from the query input.
  bool self_attention() const { return !key_len; }
  /// Keys.
  Index S() const { return key_len.value_or(seq_len); }
  /// Key/value heads.
  Index G() const { return num_kv_heads == 0 ? num_heads : num_kv_heads; }
  /// Width of a query and key head.
  Index d() const { return d_head == 0 ? d_model / num_heads : d_head; }
  /// Width of a value head.
  Index dv() const { return d_value == 0 ? d() : d_value; }
  /// Width of the input of W_K.
  Index k_in() const { return kdim == 0 ? d_model : kdim; }
  /// Width of the input of W_V.
  Index v_in() const { return vdim == 0 ? d_model : vdim; }
  /// H d, the columns of W_Q.
  Index q_width() const { return num_heads * d(); }
  /// G d, the columns of W_K.
  Index k_width() const { return G() * d(); }
  /// G dv, the columns of W_V.
  Index v_width() const { return G() * dv(); }
  /// H dv, the rows of W_O.
  Index context_width() const { return num_heads * dv(); }
  /// B L.
  Index query_rows() const { return batch_size * seq_len; }
  /// B S.
  Index key_rows() const { return batch_size * S(); }
};

namespace detail {

/// The sum of clamp(m, 0, K) over all m <= n.
constexpr std::int64_t clamped_sum(std::int64_t n, std::int64_t K) {
  if (n <= 0) return 0;
  if (n <= K) return n * (n + 1) / 2;
  return K * (K + 1) / 2 + (n - K) * K;
}

/// Pairs 0 <= i < L, 0 <= j < K with j - i <= t.
constexpr std::int64_t pairs_up_to(std::int64_t L, std::int64_t K, std::int64_t t) {
  return clamped_sum(L + t, K) - clamped_sum(t, K);
}

}  // namespace detail

/// The pairs (i, j) of one head that causality, window and `keys` keys leave, in closed form:
/// j - i between S - L - (window - 1) and S - L, or S - L + (window - 1) where not causal.
constexpr std::int64_t visible_pairs(Index L, Index S, Index keys, bool is_causal, Index window) {
  const std::int64_t offset = S - L;
  std::int64_t highest = keys;  // j - i is below the number of keys
  if (is_causal) highest = offset;
  if (window != 0) highest = std::min<Index>(highest, offset + window - 1);
  std::int64_t pairs = detail::pairs_up_to(L, keys, highest);
  if (window != 0) pairs -= detail::pairs_up_to(L, keys, offset - window);
  return std::max<std::int64_t>(pairs, 0);
}

/// The same for all heads and the whole batch.
inline std::int64_t visible_pairs(const AttentionShape& shape) {
  std::int64_t pairs = 0;
  if (shape.key_lengths.empty()) {
    pairs = shape.batch_size *
            visible_pairs(shape.seq_len, shape.S(), shape.S(), shape.causal, shape.window);
  }
  for (const Index keys : shape.key_lengths) {
    pairs += visible_pairs(shape.seq_len, shape.S(), keys, shape.causal, shape.window);
  }
  return shape.num_heads * pairs;
}

}  // namespace headwise::inline v0_1
