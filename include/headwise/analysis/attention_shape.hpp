// The shape of a multi-head attention as far as its cost goes, and how many pairs it sees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "headwise/runtime/packed_starts.hpp"
#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// What a call costs depends on these alone. Widths of 0 take the default that stands beside them.
/// Every formula throws ArgumentError for a shape that no call can have, or whose cost is beyond
/// what can be counted.
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
  Index first_keys = 0;                     // how many first keys the window keeps
  std::span<const Index> key_lengths = {};  // [B]; empty: all S
  /// [sequences + 1]; of sequences packed in a batch of 1, as the call has them; empty: a batch.
  std::span<const Index> query_starts = {};
  std::span<const Index> key_starts = {};  // of keys that are not the queries' input
  Index mask_biases = 0;                   // how many Mask::bias are added to the scores
  bool softcap = false, alibi = false, relative_bias = false;  // what is done to scores
  bool own_sinks = false, own_slopes = false;  // of the module's own: they have gradients
  Index own_distances = 0;                     // numbers of a head in a table of the module's own
  bool score_function = false;                 // a function of the user's own, which is not counted
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false;  // of the projections
  bool layer_norm = false, layer_norm_affine = false;  // before them; with gamma and beta
  bool qk_norm = false, qk_norm_affine = false;  // of queries and keys; with gamma_Q and gamma_K
  Index rotary_width = 0;  // elements of a query and key that are turned by positions; 0: none
  bool weight_dropout = false, output_dropout = false;  // whether each is active
  bool saved_in_16_bits = false;  // by saved_in; Path::flash of float, which alone heeds it

  /// Whether keys and values come from the query input.
  bool self_attention() const { return !key_len; }
  /// Whether the sequences lie one behind the other.
  bool packed() const { return !query_starts.empty(); }
  /// Packed: where the keys of each sequence begin.
  std::span<const Index> starts_of_keys() const {
    return self_attention() ? query_starts : key_starts;
  }
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
  /// Numbers that a head of the module has of its own and pairs flow into: slope and distances.
  Index own_numbers_of_pairs() const { return (own_slopes ? 1 : 0) + own_distances; }
  /// All that it has of its own that changes its scores.
  Index own_scores() const { return (own_sinks ? 1 : 0) + own_numbers_of_pairs(); }
  /// B L.
  Index query_rows() const { return batch_size * seq_len; }
  /// B S.
  Index key_rows() const { return batch_size * S(); }
  /// B (H L + G S), rows of queries and keys of all heads.
  Index head_rows() const { return num_heads * query_rows() + G() * key_rows(); }
};

namespace detail::inline HEADWISE_CODE {

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

/// Throws ArgumentError unless a size is between its least value and 2^30.
constexpr void require_size(std::string_view function, std::string_view argument, Index size,
                            Index least) {
  if (size >= least && size <= Index{1} << 30) return;
  raise<ArgumentError>(function, ": ", argument, " is ", size, ", expected ", least, " to 2^30");
}

inline void require_key_lengths(std::string_view function, const AttentionShape& shape) {
  const auto count = static_cast<Index>(shape.key_lengths.size());
  const auto starts = shape.starts_of_keys();
  const Index sequences = shape.packed() ? static_cast<Index>(starts.size()) - 1 : shape.batch_size;
  require(count == 0 || count == sequences, function, "key_lengths has ", count,
          " lengths, expected ", sequences,
          shape.packed() ? " (one a sequence)" : " (the batch size)", " or none");
  for (std::size_t b = 0; b < shape.key_lengths.size(); ++b) {
    const Index length = shape.key_lengths[b];
    const Index most = shape.packed() ? starts[b + 1] - starts[b] : shape.S();
    require(length >= 0 && length <= most, function, "key_lengths holds ", length,
            ", expected 0 to ", most, " (the number of keys)");
  }
}

/// Throws ArgumentError unless starts, where there are any, are those of sequences.
inline void require_sequences(std::string_view function, const AttentionShape& shape) {
  if (!shape.packed()) {
    return require(shape.key_starts.empty(), function,
                   "key_starts is given without query_starts, expected both or none");
  }
  require(shape.batch_size == 1, function, "batch_size is ", shape.batch_size,
          ", expected 1 (packed sequences)");
  require(!shape.self_attention() || shape.key_starts.empty(), function,
          "key_starts is given, expected none (key_len is not: keys are the queries' rows)");
  require_packed_starts(function, shape.query_starts, shape.seq_len, "seq_len",
                        shape.starts_of_keys(), shape.S(), "key_len");
}

/// Throws ArgumentError unless there is a call of this shape whose cost, up to `times` the largest
/// of its terms, can be counted.
inline void require_shape_of_call(std::string_view function, const AttentionShape& s,
                                  double times = 1) {
  require_size(function, "batch_size", s.batch_size, 0);
  require_size(function, "seq_len", s.seq_len, 0);
  require_size(function, "key_len", s.S(), 0);
  require_size(function, "d_model", s.d_model, 0);
  require_size(function, "num_heads", s.num_heads, 1);
  require_size(function, "num_kv_heads", s.num_kv_heads, 0);
  require_size(function, "d_head", s.d_head, 0);
  require_size(function, "d_value", s.d_value, 0);
  require_size(function, "kdim", s.kdim, 0);
  require_size(function, "vdim", s.vdim, 0);
  require_size(function, "window", s.window, 0);
  require_size(function, "first_keys", s.first_keys, 0);
  require_size(function, "mask_biases", s.mask_biases, 0);
  require_size(function, "own_distances", s.own_distances, 0);
  require_size(function, "rotary_width", s.rotary_width, 0);
  require(s.num_heads % s.G() == 0, function, "num_kv_heads is ", s.num_kv_heads,
          ", expected a divisor of num_heads ", s.num_heads);
  require(s.d_head != 0 || s.d_model % s.num_heads == 0, function, "num_heads is ", s.num_heads,
          ", expected a divisor of d_model ", s.d_model, " (or give d_head)");
  require_sequences(function, s);
  require_key_lengths(function, s);
  const auto product = [](auto... sizes) { return (static_cast<double>(sizes) * ... * 1.0); };
  const double B = product(s.batch_size), H = product(s.num_heads), L = product(s.seq_len),
               S = product(s.S()),
               heads = H * product(s.d() + s.dv() + s.mask_biases + s.own_distances + 1);
  const double cost = B * L * S * heads +
                      (B * L + B * S + 1) * product(s.d_model + s.k_in() + s.v_in() + 1) * heads;
  require(64 * times * cost < 0x1p63, function,
          "the cost of this shape is beyond 2^63, expected smaller sizes");
}

}  // namespace detail::inline HEADWISE_CODE

/// The pairs (i, j) of one head that causality, window and `keys` keys leave, in closed form:
/// j - i between S - L - (window - 1) and S - L, or S - L + (window - 1) where not causal; and of
/// the first keys that a window keeps those that it does not hold.
constexpr std::int64_t visible_pairs(Index L, Index S, Index keys, bool is_causal, Index window,
                                     Index first_keys = 0) {
  detail::require_size("visible_pairs", "L", L, 0);
  detail::require_size("visible_pairs", "S", S, 0);
  detail::require_size("visible_pairs", "keys", keys, 0);
  detail::require_size("visible_pairs", "window", window, 0);
  detail::require_size("visible_pairs", "first_keys", first_keys, 0);
  const std::int64_t offset = S - L;
  std::int64_t highest = keys;  // j - i is below the number of keys
  if (is_causal) highest = offset;
  if (window != 0) highest = std::min<Index>(highest, offset + window - 1);
  std::int64_t pairs = detail::pairs_up_to(L, keys, highest);
  if (window != 0) pairs -= detail::pairs_up_to(L, keys, offset - window);
  pairs = std::max<std::int64_t>(pairs, 0);
  if (window == 0 || first_keys == 0) return pairs;
  const Index first = std::min<Index>(first_keys, keys);
  return pairs + visible_pairs(L, S, first, is_causal, 0) -
         visible_pairs(L, S, first, is_causal, window);
}

/// The same for all heads and the whole batch, or all packed sequences.
inline std::int64_t visible_pairs(const AttentionShape& shape) {
  detail::require_shape_of_call("visible_pairs", shape);
  const auto of_one = [&](Index L, Index S, Index keys) {
    return visible_pairs(L, S, keys, shape.causal, shape.window, shape.first_keys);
  };
  const std::span<const Index> lengths = shape.key_lengths, queries = shape.query_starts,
                               keys = shape.starts_of_keys();
  std::int64_t pairs = 0;
  if (shape.packed()) {
    for (std::size_t b = 1; b < queries.size(); ++b) {
      const Index S = keys[b] - keys[b - 1];
      pairs += of_one(queries[b] - queries[b - 1], S, lengths.empty() ? S : lengths[b - 1]);
    }
  } else if (lengths.empty()) {
    pairs = shape.batch_size * of_one(shape.seq_len, shape.S(), shape.S());
  } else {
    for (const Index length : lengths) pairs += of_one(shape.seq_len, shape.S(), length);
  }
  return shape.num_heads * pairs;
}

}  // namespace headwise::inline v0_1
