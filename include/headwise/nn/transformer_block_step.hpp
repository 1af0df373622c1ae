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
                                 std::span<const Index> counts, KeyValueCache<T>& cache,
                                 const Context& context) {
  TransformerBlockCache<T> unused;
  return block_halves<T>(o, p, x, {}, unused, context, [&](In<T, 3> of) {
    return attend_to_new_tokens<T>(o.attention(), p.attention, of, {.counts = counts}, cache,
                                   context);
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y [B, n, D] of new tokens x [B, n, D] by a block whose attention is causal: inference.
///
/// block
/// x       [B, n, D]   in; the tokens behind those of the cache
/// counts  [B]         how many of the n are tokens of sequence b, its first; {}: all. x of the
///                     rest may hold anything, and y of it means nothing
/// cache               keys and values of the tokens before; those of x are appended. An empty one
///                     is key_value_cache<T>(block.options().attention(), B, capacity)
///
/// The bits are those of block.forward of each whole sequence alone with {.mask = causal}, for any
/// cut into steps and any lengths beside it; with a window as multi_head_attention_step says.
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the cache is as it was
/// then, but that keys which no later query sees may be dropped.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> transformer_block_step(const TransformerBlock<T, W>& block,
                                    In<std::type_identity_t<T>, 3> x, std::span<const Index> counts,
                                    KeyValueCache<T>& cache, const Context& context = {}) {
  const TransformerBlockOptions& o = block.options();
  const TransformerBlockParameters<T, W>& p = block.parameters();
  detail::require_new_tokens<T>("transformer_block_step", o.attention(), p.attention, x, counts,
                                cache);
  Tensor<T, 3> y = detail::block_of_new_tokens<T>(o, p, x, counts, cache, context);
  detail::NewTokens<T>::keep(cache, x.extent(1), counts);
  return y;
}
/// The same of n new tokens of each sequence.
template <Scalar T, KeptAs<T> W>
Tensor<T, 3> transformer_block_step(const TransformerBlock<T, W>& block,
                                    In<std::type_identity_t<T>, 3> x, KeyValueCache<T>& cache,
                                    const Context& context = {}) {
  return transformer_block_step<T>(block, x, {}, cache, context);
}
/// The same of new tokens x [B, n, D] in 16 bits, of which y has the type.
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> transformer_block_step(const TransformerBlock<float, W>& block, In<U, 3> x,
                                    std::span<const Index> counts, KeyValueCache<float>& cache,
                                    const Context& context = {}) {
  detail::require_new_tokens<float>("transformer_block_step", block.options().attention(),
                                    block.parameters().attention, x, counts, cache);
  return detail::narrow_step(x, context, [&](In<float, 3> wide) {
    return transformer_block_step(block, wide, counts, cache, context);
  });
}
/// The same of n new tokens of each sequence.
template <NarrowFloat U, KeptAs<float> W>
Tensor<U, 3> transformer_block_step(const TransformerBlock<float, W>& block, In<U, 3> x,
                                    KeyValueCache<float>& cache, const Context& context = {}) {
  return transformer_block_step(block, x, std::span<const Index>(), cache, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
