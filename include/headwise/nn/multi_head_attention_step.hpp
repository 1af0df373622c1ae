// Causal self-attention of new tokens over a cache of those before: decoding with the bits of the
// whole sequence, for sequences of any lengths beside each other.
#pragma once

#include "headwise/nn/multi_head_attention_step_call.hpp"
#include "headwise/nn/narrow_ends.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Step 3b of n new tokens, each at the position that it has in its sequence: in `heads`, the
/// queries' and the keys', or the keys' alone, [B, heads, n, d].
template <class T, std::same_as<Out<T, 4>>... Heads>
void rotate_new_tokens(const RotaryOptions& options, Index n, const KeyValueCache<T>& cache,
                       const Context& context, const Heads&... heads) {
  const Index B = cache.options().batch_size, d = cache.options().d_head;
  if (B == 0) return;
  const bool same = cache.same_lengths();
  const auto position = [&](Index row) { return cache.length(row / n) + row % n; };
  const Rotations<T> rotations(options, d, same ? n : B * n, position, context.memory);
  if (same) return (rotations.apply(heads, 0, false, context), ...);
  for (Index b = 0; b < B; ++b) {
    (rotations.apply(slice(heads, 0, b, 1), b * n, false, context), ...);
  }
}

/// One query a sequence, of which each sees all that is held of its own: one call, which is told
/// how much that is. A sequence without a query sees nothing: 0.
template <class T>
void attend_with_lengths(const In<T, 4>& q, const NewTokens<T>& tokens,
                         const MultiHeadAttentionStepCall<T>& call, const Out<T, 4>& o,
                         const Context& context) {
  auto lengths = Tensor<Index, 1>::uninitialized({tokens.batch()}, context.memory);
  Index longest = 0;
  for (Index b = 0; b < tokens.batch(); ++b) {
    lengths(b) = tokens.count(b) == 0 ? 0 : tokens.held(b);
    longest = std::max<Index>(longest, lengths(b));
  }
  const std::span<const Index> view(lengths.data(), static_cast<std::size_t>(lengths.size()));
  const AttentionOptions<T> options{
      .mask = {Mask::key_lengths(view)}, .scale = call.scale, .score = call.score};
  tokens.with_keys(0, tokens.batch(), longest, [&](const auto& k, const auto& v) {
    flash_attention_forward(q, k, v, options, o, {}, context);
  });
}

/// Of a mask of pairs of n new queries, [B or 1, H or 1, n or 1, S or 1], the part of sequences
/// b ... b + batch - 1, of which each has `count` queries and `held` keys.
template <class V>
In<V, 4> part_of_pairs(const In<V, 4>& pairs, Index b, Index batch, Index count, Index held) {
  const auto part = [](const In<V, 4>& x, int axis, Index first, Index size) {
    return x.extent(axis) == 1 ? x : In<V, 4>(slice(x, axis, first, size));
  };
  return part(part(part(pairs, 0, b, batch), 2, 0, count), 3, 0, held);
}

/// What the new queries of sequences b ... b + batch - 1, which are alike, see.
template <class T>
AttentionMask<T> step_mask(const AttentionMask<T>& asked, const NewTokens<T>& tokens, Index b,
                           Index batch) {
  const auto part = [&](const auto& pairs) {
    return part_of_pairs(pairs, b, batch, tokens.count(b), tokens.held(b));
  };
  AttentionMask<T> mask = tokens.mask(b);
  for (PairMask pairs : asked.pair_masks()) {
    pairs.pairs = part(pairs.pairs);
    mask.add(pairs);
  }
  for (const BiasMask<T>& bias : asked.biases()) mask.add(BiasMask<T>{part(bias.values)});
  for (const MaskFunctionRef& function : asked.functions()) mask.add(function);
  return mask;
}

/// Steps 3 to 5: the context of the new queries. Rows behind their counts are 0.
template <class T>
void attend_over_cache(const In<T, 4>& q, const NewTokens<T>& tokens,
                       const MultiHeadAttentionStepCall<T>& call, const Out<T, 4>& o,
                       const Context& context) {
  if (tokens.batch() == 0) return;
  const auto attend = [&](const In<T, 4>& some_q, Index b, Index batch, const Out<T, 4>& some_o) {
    const AttentionOptions<T> options{.mask = step_mask(call.mask, tokens, b, batch),
                                      .scale = call.scale,
                                      .score = call.score,
                                      .origin = tokens.origin(b),
                                      .gap = tokens.gap(b)};
    tokens.with_keys(b, batch, tokens.held(b), [&](const auto& k, const auto& v) {
      flash_attention_forward(some_q, k, v, options, some_o, {}, context);
    });
  };
  if (tokens.uniform() && tokens.count(0) == q.extent(2)) {
    return attend(q, 0, tokens.batch(), o);
  }
  const bool by_position = call.score.by_position() || call.mask.hides_pairs();
  if (q.extent(2) == 1 && tokens.one_each() && !by_position) {
    return attend_with_lengths<T>(q, tokens, call, o, context);
  }
  for (Index b = 0; b < tokens.batch(); ++b) {
    const Index n = tokens.count(b), rest = q.extent(2) - n;
    fill(Out<T, 4>(slice(slice(o, 0, b, 1), 2, n, rest)), T(0));
    if (n == 0) continue;
    attend(slice(slice(q, 0, b, 1), 2, 0, n), b, 1, slice(slice(o, 0, b, 1), 2, 0, n));
  }
}

/// y [B, n, D] of new tokens, whose keys and values lie behind those of the cache then, to be kept.
template <class T, class W>
Tensor<T, 3> attend_to_new_tokens(const MultiHeadAttentionOptions& o,
                                  const MultiHeadAttentionParameters<T, W>& p, In<T, 3> x,
                                  const MultiHeadAttentionStepCall<T>& call,
                                  KeyValueCache<T>& cache, const Context& context) {
  const Index B = x.extent(0), n = x.extent(1);
  // 1 layer_norm, 2 linear
  MultiHeadAttentionCache<T> step;
  step.self_attention = true;
  step.query = uniform_rows(x, step.query_copy, context.memory);
  project(o, p, step, context);
  // 3 split_heads, 4 attention, 5 merge_heads
  if (o.qk_norm) normalise_heads(o, p, step, false, context);
  if (o.rotary) {
    const auto heads = writable_heads(o, step);
    rotate_new_tokens(*o.rotary, n, cache, context, heads.q, heads.k);
  }
  const auto [q, k, v] = heads_of(o, step);
  step.context = Tensor<T, 3>::uninitialized({B, n, o.context_width()}, context.memory);
  const NewTokens<T> tokens(cache, k, v, call.counts);
  MultiHeadAttentionStepCall<T> learned = call;
  add_learned(p, learned.score);
  attend_over_cache<T>(q, tokens, learned, split_heads(step.context, o.num_heads), context);
  // 6 linear
  auto y = Tensor<T, 3>::uninitialized({B, n, o.d_model}, context.memory);
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(step.context), p.w_o, p.b_o,
                                                merge_rows(y), context);
  return y;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// An empty cache for self-attention of these options, resolved ones: of `cache` what is not the
/// module's, its batch, capacity, window and first keys. Throws ShapeError or ArgumentError for
/// extents that are none, std::bad_alloc.
template <Scalar T>
KeyValueCache<T> key_value_cache(const MultiHeadAttentionOptions& options,
                                 KeyValueCacheOptions cache,
                                 std::pmr::memory_resource* memory = default_memory()) {
  cache.num_kv_heads = options.num_kv_heads;
  cache.d_head = options.d_head;
  cache.d_value = options.d_value;
  return KeyValueCache<T>(cache, memory);
}
/// The same of a capacity alone.
template <Scalar T>
KeyValueCache<T> key_value_cache(const MultiHeadAttentionOptions& options, Index batch_size,
                                 Index capacity,
                                 std::pmr::memory_resource* memory = default_memory()) {
  return key_value_cache<T>(options, {.batch_size = batch_size, .capacity = capacity}, memory);
}
/// The same for a module.
template <Scalar T, KeptAs<T> W>
KeyValueCache<T> key_value_cache(const MultiHeadAttention<T, W>& attention, Index batch_size,
                                 Index capacity,
                                 std::pmr::memory_resource* memory = default_memory()) {
  return key_value_cache<T>(attention.options(), batch_size, capacity, memory);
}
/// The same for a module.
template <Scalar T, KeptAs<T> W>
KeyValueCache<T> key_value_cache(const MultiHeadAttention<T, W>& attention,
                                 const KeyValueCacheOptions& cache,
                                 std::pmr::memory_resource* memory = default_memory()) {
  return key_value_cache<T>(attention.options(), cache, memory);
}

/// y [B, n, D] of new tokens x [B, n, D] which see each other causally and what is in the cache:
/// inference.
///
/// attention   a module of self-attention
/// x           [B, n, D]   in; the tokens behind those of the cache
/// call                    counts of tokens, what changes scores, a mask; y behind the counts is
///                         b_O
/// cache                   keys and values of the tokens before; those of x are appended
///
/// The bits are those of attention.forward of each whole sequence alone with the same scale and
/// score, causal, and the mask, of whose rows a step is given those of its tokens: for any cut into
/// steps, and any lengths beside it. Of a cache with a window they are those of a mask that also
/// hides keys before the window, but for the first ones; of one that stores 16 bits, those of
/// rounded keys and values. A function is told the positions in the sequence, b as its batch
/// element.
///
/// Work: the projections of n tokens, and n (length + (n + 1) / 2) pairs of a sequence.
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the cache is as it was
/// then, but that keys which no later query sees may be dropped.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> multi_head_attention_step(
    const MultiHeadAttention<T, W>& attention, In<std::type_identity_t<T>, 3> x,
    const MultiHeadAttentionStepCall<std::type_identity_t<T>>& call, KeyValueCache<T>& cache,
    const Context& context = {}) {
  const MultiHeadAttentionOptions& o = attention.options();
  detail::require_step_call<T>(o, attention.parameters(), x, call, cache);
  auto y = detail::attend_to_new_tokens<T>(o, attention.parameters(), x, call, cache, context);
  detail::NewTokens<T>::keep(cache, x.extent(1), call.counts);
  return y;
}
/// The same of counts[b] new tokens of each sequence.
template <Scalar T, KeptAs<T> W, TokenCounts Counts>
Tensor<T, 3> multi_head_attention_step(const MultiHeadAttention<T, W>& attention,
                                       In<std::type_identity_t<T>, 3> x, const Counts& counts,
                                       KeyValueCache<T>& cache, const Context& context = {}) {
  return multi_head_attention_step<T>(attention, x, MultiHeadAttentionStepCall<T>{.counts = counts},
                                      cache, context);
}
/// The same of n new tokens of each sequence.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> multi_head_attention_step(const MultiHeadAttention<T, W>& attention,
                                       In<std::type_identity_t<T>, 3> x, KeyValueCache<T>& cache,
                                       const Context& context = {}) {
  return multi_head_attention_step<T>(attention, x, MultiHeadAttentionStepCall<T>{}, cache,
                                      context);
}
/// The same of new tokens x [B, n, D] in 16 bits, of which y has the type.
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> multi_head_attention_step(const MultiHeadAttention<float, W>& attention, In<U, 3> x,
                                       const MultiHeadAttentionStepCall<float>& call,
                                       KeyValueCache<float>& cache, const Context& context = {}) {
  detail::require_step_call<float>(attention.options(), attention.parameters(), x, call, cache);
  return detail::narrow_step(x, context, [&](In<float, 3> wide) {
    return multi_head_attention_step(attention, wide, call, cache, context);
  });
}
/// The same of counts[b] new tokens of each sequence.
template <NarrowFloat U, KeptAs<float> W, TokenCounts Counts>
Tensor<U, 3> multi_head_attention_step(const MultiHeadAttention<float, W>& attention, In<U, 3> x,
                                       const Counts& counts, KeyValueCache<float>& cache,
                                       const Context& context = {}) {
  return multi_head_attention_step(
      attention, x, MultiHeadAttentionStepCall<float>{.counts = counts}, cache, context);
}
/// The same of n new tokens of each sequence.
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> multi_head_attention_step(const MultiHeadAttention<float, W>& attention, In<U, 3> x,
                                       KeyValueCache<float>& cache, const Context& context = {}) {
  return multi_head_attention_step(attention, x, MultiHeadAttentionStepCall<float>{}, cache,
                                   context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
