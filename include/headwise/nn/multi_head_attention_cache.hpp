// What a forward call of MultiHeadAttention leaves for its backward, owned by the caller.
#pragma once

#include "headwise/nn/multi_head_attention_parameters.hpp"
#include "headwise/ops/saved_in.hpp"
#include "headwise/runtime/viewed_input.hpp"

namespace headwise::inline v0_1 {

/// Fill it by forward, hand it to backward; as many as there are forward calls pending. The inputs
/// and the masks are viewed, not copied: their elements must stay until the backward call.
template <Scalar T>
struct MultiHeadAttentionCache {
  /// Not filled.
  MultiHeadAttentionCache() = default;
  /// Moved, not copied: a view of a copy of an input would stay with the original.
  ///@{
  MultiHeadAttentionCache(MultiHeadAttentionCache&&) noexcept = default;
  MultiHeadAttentionCache& operator=(MultiHeadAttentionCache&&) noexcept = default;
  ///@}

  bool filled = false;               // whether forward has been called with it
  bool self_attention = false;       // keys and values come from the query input
  MultiHeadAttentionOptions module;  // of the module that filled it
  MultiHeadAttentionCall<T> call;    // what forward was asked for: masks and dropout of backward
  Saved saved;                       // what the tensors of SavedTensor are kept as

  ViewedInput<T, 3> query;                        // [B, L, D]
  ViewedInput<T, 3> key;                          // [B, S, kdim]
  ViewedInput<T, 3> value;                        // [B, S, vdim]
  Tensor<T, 3> query_copy, key_copy, value_copy;  // where rows lie at no common distance

  SavedTensor<T, 3> x_norm;    // [B, L, D]                 with layer_norm
  Tensor<T, 1> mean;           // [B L]                     with layer_norm
  Tensor<T, 1> rstd;           // [B L]                     with layer_norm
  SavedTensor<T, 3> qkv;       // [B, L, H d + G d + G dv]  self-attention
  SavedTensor<T, 3> q;         // [B, L, H d]               cross-attention
  SavedTensor<T, 3> k;         // [B, S, G d]               cross-attention
  SavedTensor<T, 3> v;         // [B, S, G dv]              cross-attention
  SavedTensor<T, 3> q_normed;  // [B, L, H d]               qk_norm; what attention reads
  SavedTensor<T, 3> k_normed;  // [B, S, G d]               qk_norm; what attention reads
  Tensor<T, 3> q_rstd;         // [B, H, L]                 qk_norm
  Tensor<T, 3> k_rstd;         // [B, G, S]                 qk_norm
  Tensor<T, 3> context;        // [B, L, H dv]
  Tensor<T, 4> weights;        // [B, H, L, S]              Path::materialized; before dropout
  Tensor<T, 4> lse;            // [B, H, L, 2]              Path::flash

  /// What the projections read: the normalised input, or the input, where that is of T.
  In<T, 3> projected_query() const { return x_norm.absent() ? In<T, 3>(query) : In<T, 3>(x_norm); }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// The mean over the heads of weights [B, H, L, S]: [B, L, S], 0 without heads. Throws
/// std::bad_alloc.
template <Scalar T>
Tensor<T, 3> average_heads(In<T, 4> weights,
                           std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  require_countable("average_heads", "weights", weights);
  const Index B = weights.extent(0), H = weights.extent(1);
  Tensor<T, 3> mean({B, weights.extent(2), weights.extent(3)}, memory);
  for_each_index(mean.shape(), [&](const Shape<3>& at) {
    T sum = T(0);
    for (Index h = 0; h < H; ++h) sum = sum + weights(at[0], h, at[1], at[2]);
    mean(at) = H == 0 ? T(0) : sum / T(static_cast<double>(H));
  });
  return mean;
}
/// The same of a tensor that owns its elements.
template <Scalar T>
Tensor<T, 3> average_heads(const Tensor<T, 4>& weights) {
  return average_heads(In<T, 4>(weights));
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The input itself, or a dense copy of it where its rows do not lie at one common distance.
template <class T>
In<T, 3> uniform_rows(In<T, 3> x, Tensor<T, 3>& storage, std::pmr::memory_resource* memory) {
  if (rows_are_uniform(x)) return x;
  storage = contiguous(x, memory);
  return storage;
}

/// What a cache may keep in 16 bits: projections, and the rest. (Not the context: backward sums d_o
/// o over it, which has to be what the weights sum to. Rounded to bf16 it left dx off by 0.045 with
/// keys and values of mean 3, by 0.63 with those of mean 10, where 0.007 and 0.02 remain.)
///@{
template <class T>
inline constexpr SavedTensor<T, 3> MultiHeadAttentionCache<T>::*saved_projections[] = {
    &MultiHeadAttentionCache<T>::qkv, &MultiHeadAttentionCache<T>::q,
    &MultiHeadAttentionCache<T>::k, &MultiHeadAttentionCache<T>::v};
template <class T>
inline constexpr SavedTensor<T, 3> MultiHeadAttentionCache<T>::*saved_beside_projections[] = {
    &MultiHeadAttentionCache<T>::x_norm, &MultiHeadAttentionCache<T>::q_normed,
    &MultiHeadAttentionCache<T>::k_normed};
///@}

/// f(member) for all of them.
template <class T, class F>
void for_each_saved(const F& f) {
  for (const auto member : saved_projections<T>) f(member);
  for (const auto member : saved_beside_projections<T>) f(member);
}

/// A cache of the numbers that another keeps in 16 bits; it views what that one does. Throws
/// std::bad_alloc.
template <std::same_as<float> T>
MultiHeadAttentionCache<T> wide_attention_cache(const MultiHeadAttentionCache<T>& cache,
                                                const Context& context) {
  MultiHeadAttentionCache<T> wide;
  wide.filled = cache.filled;
  wide.self_attention = cache.self_attention;
  wide.module = cache.module;
  wide.call = cache.call;
  wide.query = cache.query;
  wide.key = cache.key;
  wide.value = cache.value;
  for_each_saved<T>(
      [&](auto member) { wide.*member = widen_saved(cache.*member, cache.saved, context); });
  wide.mean = contiguous(cache.mean, context.memory);
  wide.rstd = contiguous(cache.rstd, context.memory);
  wide.q_rstd = contiguous(cache.q_rstd, context.memory);
  wide.k_rstd = contiguous(cache.k_rstd, context.memory);
  wide.context = contiguous(cache.context, context.memory);
  wide.lse = contiguous(cache.lse, context.memory);
  return wide;
}

/// Queries, keys and values of a cache as heads: views, whichever way it was filled. As they were
/// projected; where nothing is normalised, turned by their positions already.
template <class T>
AttentionInputs<T> projected_heads(const MultiHeadAttentionOptions& o,
                                   const MultiHeadAttentionCache<T>& cache) {
  const Index H = o.num_heads, G = o.num_kv_heads;
  if (!cache.self_attention) {
    return {split_heads(cache.q, H), split_heads(cache.k, G), split_heads(cache.v, G)};
  }
  const Index q = o.q_width(), k = o.k_width(), v = o.v_width();
  return {split_heads(slice(cache.qkv, 2, 0, q), H), split_heads(slice(cache.qkv, 2, q, k), G),
          split_heads(slice(cache.qkv, 2, q + k, v), G)};
}

/// As attention reads them.
template <class T>
AttentionInputs<T> heads_of(const MultiHeadAttentionOptions& o,
                            const MultiHeadAttentionCache<T>& cache) {
  AttentionInputs<T> heads = projected_heads(o, cache);
  if (cache.q_normed.absent()) return heads;
  heads.q = split_heads(cache.q_normed, o.num_heads);
  heads.k = split_heads(cache.k_normed, o.num_kv_heads);
  return heads;
}

/// Of those, what is written to before attention reads it.
template <class T>
struct WritableHeads {
  Out<T, 4> q;  // [B, H, L, d]
  Out<T, 4> k;  // [B, G, S, d]
};

template <class T>
WritableHeads<T> writable_heads(const MultiHeadAttentionOptions& o,
                                MultiHeadAttentionCache<T>& cache) {
  const Index H = o.num_heads, G = o.num_kv_heads;
  if (!cache.q_normed.absent()) {
    return {split_heads(cache.q_normed, H), split_heads(cache.k_normed, G)};
  }
  if (!cache.self_attention) return {split_heads(cache.q, H), split_heads(cache.k, G)};
  return {split_heads(slice(cache.qkv, 2, 0, o.q_width()), H),
          split_heads(slice(cache.qkv, 2, o.q_width(), o.k_width()), G)};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
