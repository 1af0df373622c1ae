// Cross-attention whose keys and values are kept: projected once, then attended to by queries that
// come one by one, or a few at a time, with the bits of the whole call. What is attended to does
// not grow by a step; for self-attention, where it does, there is multi_head_attention_step.
#pragma once

#include <span>
#include <type_traits>

#include "headwise/nn/multi_head_attention_step.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The cache drops no key.
template <class T>
void require_no_window(std::string_view function, const KeyValueCache<T>& cache) {
  require(cache.options().window == 0, function, "cache has a window of ", cache.options().window,
          ", expected none: cross-attention sees every key");
}

/// All rules of cross_attention_append.
template <class T, class W, class U>
void require_cross_keys(const MultiHeadAttentionOptions& o,
                        const MultiHeadAttentionParameters<T, W>& p, const In<U, 3>& key,
                        const In<U, 3>& value, std::span<const Index> counts,
                        const KeyValueCache<T>& cache) {
  constexpr std::string_view function = "cross_attention_append";
  const Index B = cache.options().batch_size, n = key.extent(1);
  require_whole(function, o, p);
  require_cache_of(function, o, cache);
  require_shape(function, "key", key, Shape{B, n, o.kdim}, "batch of the cache, kdim");
  require_shape(function, "value", value, Shape{B, n, o.vdim}, "batch and length of key, vdim");
  require_counts(function, counts, B, n);
  cache.require_room(function, n, counts);
  require_no_window(function, cache);
}

/// All rules of cross_attention_step.
template <class T, class W, class U>
void require_cross_step(const MultiHeadAttentionOptions& o,
                        const MultiHeadAttentionParameters<T, W>& p, const In<U, 3>& query,
                        const MultiHeadAttentionCall<T>& call, const KeyValueCache<T>& cache) {
  constexpr std::string_view function = "cross_attention_step";
  const Index B = cache.options().batch_size, n = query.extent(1), S = cache.length();
  require_whole(function, o, p);
  require_cache_of(function, o, cache);
  require_no_window(function, cache);
  require_shape(function, "query", query, Shape{B, n, o.d_model}, "batch of the cache, d_model");
  require(!call.packed() && call.key_starts.empty(), function,
          "query_starts or key_starts are given, expected none: a cache holds a batch");
  require(call.path == Path::flash, function,
          "path is materialized, expected flash: a step keeps no weights");
  require(call.origin.key == 0, function, "origin.key is ", call.origin.key,
          ", expected 0: keys have their positions in the cache");
  require(!call.mask.has_key_lengths() || cache.same_lengths(), function,
          "Mask::key_lengths is given, expected none: the cache's sequences have lengths of "
          "their own");
  call.mask.require_fits(function, B, o.num_heads, n, S);
  require_asked(function, o, p, call);
}

/// Steps 2 and 3 of keys and values, into the cache.
template <class T, class W>
void append_cross_keys(const MultiHeadAttentionOptions& o,
                       const MultiHeadAttentionParameters<T, W>& p, In<T, 3> key_in,
                       In<T, 3> value_in, std::span<const Index> counts, KeyValueCache<T>& cache,
                       const Context& context) {
  const Index B = key_in.extent(0), n = key_in.extent(1), G = o.num_kv_heads;
  Tensor<T, 3> key_copy, value_copy;
  const In<T, 3> key = uniform_rows(key_in, key_copy, context.memory);
  const In<T, 3> value = uniform_rows(value_in, value_copy, context.memory);
  auto k = Tensor<T, 3>::uninitialized({B, n, p.k_width}, context.memory);
  auto v = Tensor<T, 3>::uninitialized({B, n, p.v_width}, context.memory);
  // 2 linear
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(key), p.W_K(), p.b_k, merge_rows(k),
                                                context);
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(value), p.W_V(), p.b_v, merge_rows(v),
                                                context);
  // 3 split_heads, 3a rms_norm, 3b rotary
  const Out<T, 4> heads = split_heads(k, G);
  if (o.qk_norm) {
    rms_norm_forward(In<T, 4>(heads), p.gamma_k, T(o.qk_norm_epsilon), heads, {}, context);
  }
  if (o.rotary) rotate_new_tokens(*o.rotary, n, cache, context, heads);
  cache.append(heads, split_heads(v, G), counts);
}

/// Steps 1 to 3 of queries: `step.q`.
template <class T, class W>
void project_cross_query(const MultiHeadAttentionOptions& o,
                         const MultiHeadAttentionParameters<T, W>& p, const Position& origin,
                         MultiHeadAttentionCache<T>& step, const Context& context) {
  const Index B = step.query.extent(0), n = step.query.extent(1);
  // 1 layer_norm, 2 linear
  normalise_query(o, p, step, context);
  step.q = Tensor<T, 3>::uninitialized({B, n, p.q_width}, context.memory);
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(step.projected_query()), p.W_Q(), p.b_q,
                                                merge_rows(step.q), context);
  // 3 split_heads, 3a rms_norm, 3b rotary
  const Out<T, 4> heads = split_heads(step.q, o.num_heads);
  if (o.qk_norm) {
    rms_norm_forward(In<T, 4>(heads), p.gamma_q, T(o.qk_norm_epsilon), heads, {}, context);
  }
  if (!o.rotary) return;
  RotaryOptions options = *o.rotary;
  options.offset += origin.query;
  Rotations<T>(options, o.d_head, n, context.memory).apply(heads, 0, false, context);
}

/// y [B, n, D] of queries over what the cache holds.
template <class T, class W>
Tensor<T, 3> attend_to_cross_keys(const MultiHeadAttentionOptions& o,
                                  const MultiHeadAttentionParameters<T, W>& p, In<T, 3> query,
                                  const MultiHeadAttentionCall<T>& call,
                                  const KeyValueCache<T>& cache, const Context& context) {
  const Index B = query.extent(0), n = query.extent(1);
  MultiHeadAttentionCache<T> step;
  step.query = uniform_rows(query, step.query_copy, context.memory);
  project_cross_query(o, p, call.origin, step, context);
  // 4 attention, 5 merge_heads
  AttentionOptions<T> options = attention_options(call, p);
  Tensor<Index, 1> lengths;  // [B]; where they differ
  if (!cache.same_lengths()) {
    lengths = Tensor<Index, 1>::uninitialized({B}, context.memory);
    for (Index b = 0; b < B; ++b) lengths(b) = cache.length(b);
    const std::span<const Index> view(lengths.data(), static_cast<std::size_t>(B));
    options.mask.add(Mask::key_lengths(view));
  }
  step.context = Tensor<T, 3>::uninitialized({B, n, o.context_width()}, context.memory);
  cache.with_keys([&](const auto& k, const auto& v) {
    flash_attention_forward(In<T, 4>(split_heads(step.q, o.num_heads)), k, v, options,
                            split_heads(step.context, o.num_heads), {}, context);
  });
  // 6 linear, 7 dropout
  auto y = Tensor<T, 3>::uninitialized({B, n, o.d_model}, context.memory);
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(step.context), p.w_o, p.b_o,
                                                merge_rows(y), context);
  if (call.output_dropout.active()) {
    dropout_forward(In<T, 2>(merge_rows(y)), call.output_dropout, merge_rows(y), context);
  }
  return y;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Projects n more keys and values of each sequence into a cache, for cross_attention_step: all
/// that is attended to at once, or piece by piece, with the same bits.
///
/// attention
/// key      [B, n, kdim]   in
/// value    [B, n, vdim]   in
/// counts   [B]            how many of the n are sequence b's, its first; the rest may hold
///                         anything, and are not kept; {}: all
/// cache                   without a window; an empty one is key_value_cache(attention, B, S).
///                         Rotary positions of keys are their places in it
///
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the cache is as it
/// was.
template <Scalar T, KeptAs<T> W>
void cross_attention_append(const MultiHeadAttention<T, W>& attention,
                            In<std::type_identity_t<T>, 3> key,
                            In<std::type_identity_t<T>, 3> value, std::span<const Index> counts,
                            KeyValueCache<T>& cache, const Context& context = {}) {
  const auto& p = attention.parameters();
  detail::require_cross_keys<T>(attention.options(), p, key, value, counts, cache);
  detail::append_cross_keys<T>(attention.options(), p, key, value, counts, cache, context);
}
/// The same of n keys of each sequence.
template <Scalar T, KeptAs<T> W>
void cross_attention_append(const MultiHeadAttention<T, W>& attention,
                            In<std::type_identity_t<T>, 3> key,
                            In<std::type_identity_t<T>, 3> value, KeyValueCache<T>& cache,
                            const Context& context = {}) {
  cross_attention_append<T>(attention, key, value, std::span<const Index>(), cache, context);
}

/// y [B, n, D] of queries [B, n, D] over keys and values that a cache holds: inference.
///
/// attention
/// query   [B, n, D]   in
/// call                what forward takes, except packed sequences, the materialised path and an
///                     origin of keys. Masks fit [B, H, n, S], S = cache.length()
/// cache               filled by cross_attention_append; nothing of it changes
///
/// The bits are those of attention.forward(query, key, value, call) of the keys and values that
/// were appended, or of the rounded ones where the cache stores 16 bits. Where sequences hold
/// different numbers of them, of which S is the greatest, they are those with Mask::key_lengths
/// beside the call's mask, which must have none then.
///
/// Queries may come in any pieces, with the bits of all together: masks of pairs are given the
/// piece's rows, and call.origin.query says where its first query stands to rotary positions and
/// functions. Not so where a piece counts for itself: causal, windows, documents and biases by
/// distance have its last query meet the last key, and dropout begins with its first.
///
/// Work: the projections of n queries, and n S pairs.
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> cross_attention_step(const MultiHeadAttention<T, W>& attention,
                                  In<std::type_identity_t<T>, 3> query,
                                  const MultiHeadAttentionCall<std::type_identity_t<T>>& call,
                                  const KeyValueCache<T>& cache, const Context& context = {}) {
  const auto& p = attention.parameters();
  detail::require_cross_step<T>(attention.options(), p, query, call, cache);
  return detail::attend_to_cross_keys<T>(attention.options(), p, query, call, cache, context);
}
/// The same of all defaults.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> cross_attention_step(const MultiHeadAttention<T, W>& attention,
                                  In<std::type_identity_t<T>, 3> query,
                                  const KeyValueCache<T>& cache, const Context& context = {}) {
  return cross_attention_step<T>(attention, query, MultiHeadAttentionCall<T>{}, cache, context);
}

/// Both of inputs in 16 bits, of which y has the type.
///@{
template <NarrowFloat U, KeptAs<float> W>
void cross_attention_append(const MultiHeadAttention<float, W>& attention, In<U, 3> key,
                            In<std::type_identity_t<U>, 3> value, std::span<const Index> counts,
                            KeyValueCache<float>& cache, const Context& context = {}) {
  detail::require_cross_keys<float>(attention.options(), attention.parameters(), key, value, counts,
                                    cache);
  const Tensor<float, 3> wide_key = detail::widened_tensor(key, context);
  const Tensor<float, 3> wide_value = detail::widened_tensor(value, context);
  cross_attention_append(attention, wide_key, wide_value, counts, cache, context);
}
template <NarrowFloat U, KeptAs<float> W>
void cross_attention_append(const MultiHeadAttention<float, W>& attention, In<U, 3> key,
                            In<std::type_identity_t<U>, 3> value, KeyValueCache<float>& cache,
                            const Context& context = {}) {
  cross_attention_append(attention, key, value, std::span<const Index>(), cache, context);
}
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> cross_attention_step(const MultiHeadAttention<float, W>& attention, In<U, 3> query,
                                  const MultiHeadAttentionCall<float>& call,
                                  const KeyValueCache<float>& cache, const Context& context = {}) {
  detail::require_cross_step<float>(attention.options(), attention.parameters(), query, call,
                                    cache);
  return detail::narrow_step(query, context, [&](In<float, 3> wide) {
    return cross_attention_step(attention, wide, call, cache, context);
  });
}
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> cross_attention_step(const MultiHeadAttention<float, W>& attention, In<U, 3> query,
                                  const KeyValueCache<float>& cache, const Context& context = {}) {
  return cross_attention_step(attention, query, MultiHeadAttentionCall<float>{}, cache, context);
}
///@}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
