// What a step of decoding is asked for, and the rules of it.
#pragma once

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/nn/new_tokens.hpp"

namespace headwise::inline v0_1 {

/// One step of decoding. What it views must outlive the call.
template <Scalar T>
struct MultiHeadAttentionStepCall {
  /// [B]: how many of the n tokens are sequence b's, its first; the rest may hold anything. {}: all
  LastingSpan<Index> counts = {};
  std::optional<T> scale = {};  // 1 / sqrt(d_head)
  ScoreOptions<T> score = {};   // softcap, biases by distance, sinks, a function of one's own
  /// Beside causal and the window of the cache: functions; where it has no window, also keep and
  /// drop masks and biases, which fit [B, H, n, cache.length() + n], a row a new token, a column a
  /// position. Of sequence b the first counts[b] rows are read, and no column behind its own tokens
  AttentionMask<T> mask = {};
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The cache is one of the module's heads.
template <class T>
void require_cache_of(std::string_view function, const MultiHeadAttentionOptions& o,
                      const KeyValueCache<T>& cache) {
  const KeyValueCacheOptions& c = cache.options();
  const bool fits =
      c.num_kv_heads == o.num_kv_heads && c.d_head == o.d_head && c.d_value == o.d_value;
  require(fits, function, "cache is of ", c.num_kv_heads, " heads of widths ", c.d_head, " and ",
          c.d_value, ", expected ", o.num_kv_heads, " of ", o.d_head, " and ", o.d_value,
          " (the module)");
}

/// All rules of a step of self-attention, before anything is computed.
template <class T, class W, class U>
void require_new_tokens(std::string_view function, const MultiHeadAttentionOptions& o,
                        const MultiHeadAttentionParameters<T, W>& p, const In<U, 3>& x,
                        std::span<const Index> counts, const KeyValueCache<T>& cache) {
  const Index B = cache.options().batch_size;
  require_whole(function, o, p);
  require_shape(function, "x", x, Shape{B, x.extent(1), o.d_model}, "batch of the cache, d_model");
  require_cache_of(function, o, cache);
  require_counts(function, counts, B, x.extent(1));
  cache.require_room(function, x.extent(1), counts);
}

/// What hides their pairs goes with the cache and fits n new tokens.
template <class T>
void require_step_mask(std::string_view function, const AttentionMask<T>& mask, Index num_heads,
                       Index n, const KeyValueCache<T>& cache) {
  const KeyValueCacheOptions& c = cache.options();
  require(mask.window() == 0 && !mask.has_key_lengths() && !mask.documents().present(), function,
          "mask holds a window, key lengths or documents, expected functions, keep and drop masks "
          "and biases: windows and lengths are the cache's");
  require(c.window == 0 || (mask.pair_masks().empty() && mask.biases().empty()), function,
          "mask holds keep or drop masks or biases beside a window of the cache, expected "
          "functions: not all keys are held");
  mask.require_fits(function, c.batch_size, num_heads, n, cache.length() + n);
}

/// What a step is asked for fits the heads, n new tokens and the cache.
template <class T, class W>
void require_scores_and_mask(std::string_view function, const MultiHeadAttentionStepCall<T>& call,
                             const MultiHeadAttentionOptions& o,
                             const MultiHeadAttentionParameters<T, W>& p, Index n,
                             const KeyValueCache<T>& cache) {
  require_step_mask(function, call.mask, o.num_heads, n, cache);
  const ScoreOptions<T>& score = call.score;
  require_finite_scale(function, call.scale);
  score.require_softcap(function);
  score.require_heads(function, o.num_heads);
  require_own_scores(function, o, p, score);
}

/// All rules of multi_head_attention_step.
template <class T, class W, class U>
void require_step_call(const MultiHeadAttentionOptions& o,
                       const MultiHeadAttentionParameters<T, W>& p, const In<U, 3>& x,
                       const MultiHeadAttentionStepCall<T>& call, const KeyValueCache<T>& cache) {
  constexpr std::string_view function = "multi_head_attention_step";
  require(o.fused(), function,
          "kdim or vdim differ from d_model, expected a module of self-attention");
  require_new_tokens<T>(function, o, p, x, call.counts, cache);
  require_scores_and_mask(function, call, o, p, x.extent(1), cache);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
