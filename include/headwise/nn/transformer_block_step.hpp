// Decoding by a TransformerBlock: new tokens over a cache of the keys and values of those before,
// with the bits of the whole sequence.
#pragma once

#include <type_traits>

#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/nn/transformer_block.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// y [B, n, D] of new tokens, whose keys and values are appended once all has gone well.
template <class T>
Tensor<T, 3> block_of_new_tokens(const TransformerBlockOptions& o,
                                 const TransformerBlockParameters<T>& p, In<T, 3> x,
                                 KeyValueCache<T>& cache, const Context& context) {
  AppendedTokens<T> appended(cache);
  TransformerBlockCache<T> unused;
  Tensor<T, 3> y = block_halves<T>(o, p, x, {}, unused, context, [&](In<T, 3> of) {
    return attend_to_new_tokens<T>(o.attention(), p.attention, of, cache, context);
  });
  appended.keep();
  return y;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y [B, n, D] of n new tokens x [B, n, D] by a block whose attention is causal: inference.
///
/// block
/// x       [B, n, D]   in; the tokens behind those of the cache
/// cache               keys and values of the tokens before; those of x are appended. An empty one
///                     is key_value_cache<T>(block.options().attention(), B, capacity)
///
/// The bits are those of block.forward of the whole sequence with {.mask = causal}, for any cut
/// into steps.
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the cache is as it was
/// then.
template <Scalar T>
Tensor<T, 3> transformer_block_step(const TransformerBlock<T>& block,
                                    In<std::type_identity_t<T>, 3> x, KeyValueCache<T>& cache,
                                    const Context& context = {}) {
  const TransformerBlockOptions& o = block.options();
  const TransformerBlockParameters<T>& p = block.parameters();
  detail::require_new_tokens<T>("transformer_block_step", o.attention(), p.attention, x, cache);
  return detail::block_of_new_tokens<T>(o, p, x, cache, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
