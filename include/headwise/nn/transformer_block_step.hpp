// Decoding by a TransformerBlock: new tokens over a cache of the keys and values of those before,
// with the bits of the whole sequence.
#pragma once

#include <type_traits>

#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/nn/narrow_ends.hpp"
#include "headwise/nn/transformer_block.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// y [B, n, D] of new tokens, whose keys and values lie behind those of the cache then, to be kept.
template <class T, class W>
Tensor<T, 3> block_of_new_tokens(const TransformerBlockOptions& o,
                                 const TransformerBlockParameters<T, W>& p, In<T, 3> x,
                                 const MultiHeadAttentionStepCall<T>& call, KeyValueCache<T>& cache,
                                 const Context& context) {
  TransformerBlockCache<T> scratch;  // of this call alone
  return block_halves<T>(o, p, x, {}, scratch, context, [&](In<T, 3> of) {
    return attend_to_new_tokens<T>(o.attention(), p.attention, of, call, cache, context);
  });
}

/// All rules of transformer_block_step.
template <class T, class W, class U>
void require_block_step(const TransformerBlock<T, W>& block, const In<U, 3>& x,
                        const MultiHeadAttentionStepCall<T>& call, const KeyValueCache<T>& cache) {
  constexpr std::string_view function = "transformer_block_step";
  const TransformerBlockOptions& o = block.options();
  require_new_tokens<T>(function, o.attention(), block.parameters().attention, x, call.counts,
                        cache);
  require_scores_and_mask(function, call, o.attention(), block.parameters().attention, x.extent(1),
                          cache);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y [B, n, D] of new tokens x [B, n, D] by a block whose attention is causal: inference.
///
/// block
/// x       [B, n, D]   in; the tokens behind those of the cache
/// call                counts of tokens, what changes scores, a mask. x behind the counts may hold
///                     anything, and y of it means nothing
/// cache               keys and values of the tokens before; those of x are appended. An empty one
///                     is key_value_cache<T>(block.options().attention(), B, capacity)
///
/// The bits are those of block.forward of each whole sequence alone with {.mask = causal}, the same
/// scale and score, and the mask beside causal, for any cut into steps and any lengths beside it;
/// with a window as multi_head_attention_step says.
///
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the cache is as it was
/// then, but that keys which no later query sees may be dropped.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> transformer_block_step(const TransformerBlock<T, W>& block,
                                    In<std::type_identity_t<T>, 3> x,
                                    const MultiHeadAttentionStepCall<std::type_identity_t<T>>& call,
                                    KeyValueCache<T>& cache, const Context& context = {}) {
  detail::require_block_step<T>(block, x, call, cache);
  Tensor<T, 3> y =
      detail::block_of_new_tokens<T>(block.options(), block.parameters(), x, call, cache, context);
  detail::NewTokens<T>::keep(cache, x.extent(1), call.counts);
  return y;
}
/// The same of counts[b] new tokens of each sequence.
template <Scalar T, KeptAs<T> W, TokenCounts Counts>
Tensor<T, 3> transformer_block_step(const TransformerBlock<T, W>& block,
                                    In<std::type_identity_t<T>, 3> x, const Counts& counts,
                                    KeyValueCache<T>& cache, const Context& context = {}) {
  return transformer_block_step<T>(block, x, MultiHeadAttentionStepCall<T>{.counts = counts}, cache,
                                   context);
}
/// The same of n new tokens of each sequence.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> transformer_block_step(const TransformerBlock<T, W>& block,
                                    In<std::type_identity_t<T>, 3> x, KeyValueCache<T>& cache,
                                    const Context& context = {}) {
  return transformer_block_step<T>(block, x, MultiHeadAttentionStepCall<T>{}, cache, context);
}
/// The same of new tokens x [B, n, D] in 16 bits, of which y has the type.
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> transformer_block_step(const TransformerBlock<float, W>& block, In<U, 3> x,
                                    const MultiHeadAttentionStepCall<float>& call,
                                    KeyValueCache<float>& cache, const Context& context = {}) {
  detail::require_block_step<float>(block, x, call, cache);
  return detail::narrow_step(x, context, [&](In<float, 3> wide) {
    return transformer_block_step(block, wide, call, cache, context);
  });
}
/// The same of counts[b] new tokens of each sequence.
template <NarrowFloat U, KeptAs<float> W, TokenCounts Counts>
Tensor<U, 3> transformer_block_step(const TransformerBlock<float, W>& block, In<U, 3> x,
                                    const Counts& counts, KeyValueCache<float>& cache,
                                    const Context& context = {}) {
  return transformer_block_step(block, x, MultiHeadAttentionStepCall<float>{.counts = counts},
                                cache, context);
}
/// The same of n new tokens of each sequence.
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> transformer_block_step(const TransformerBlock<float, W>& block, In<U, 3> x,
                                    KeyValueCache<float>& cache, const Context& context = {}) {
  return transformer_block_step(block, x, MultiHeadAttentionStepCall<float>{}, cache, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
