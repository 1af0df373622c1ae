// Causal self-attention of new tokens over a cache of those before: decoding with the bits of the
// whole sequence.
#pragma once

#include "headwise/nn/kv_cache.hpp"
#include "headwise/nn/multi_head_attention.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// A cache that is as long as before unless the call that makes it longer comes to its end.
template <class T>
class AppendedTokens {
 public:
  explicit AppendedTokens(KeyValueCache<T>& cache) : cache_(cache), length_(cache.length()) {}
  AppendedTokens(const AppendedTokens&) = delete;
  AppendedTokens& operator=(const AppendedTokens&) = delete;
  ~AppendedTokens() { cache_.forget_last(cache_.length() - length_); }
  void keep() { length_ = cache_.length(); }

 private:
  KeyValueCache<T>& cache_;
  Index length_;
};

/// All rules of a step of self-attention, before anything is computed. Of resolved options.
template <class T>
void require_new_tokens(std::string_view function, const MultiHeadAttentionOptions& o,
                        const MultiHeadAttentionParameters<T>& p, const In<T, 3>& x,
                        const KeyValueCache<T>& cache) {
  const KeyValueCacheOptions& c = cache.options();
  require_shape(function, "W_O", In<T, 2>(p.w_o), Shape{o.context_width(), o.d_model},
                "the options: a module that was moved from has none");
  require_shape(function, "x", x, Shape{c.batch_size, x.extent(1), o.d_model},
                "batch of the cache, d_model");
  const bool fits =
      c.num_kv_heads == o.num_kv_heads && c.d_head == o.d_head && c.d_value == o.d_value;
  require(fits, function, [&] {
    return "cache is of " + std::to_string(c.num_kv_heads) + " heads of widths " +
           std::to_string(c.d_head) + " and " + std::to_string(c.d_value) + ", expected " +
           std::to_string(o.num_kv_heads) + " of " + std::to_string(o.d_head) + " and " +
           std::to_string(o.d_value) + " (the module)";
  });
  cache.require_room(function, x.extent(1));
}

/// y [B, n, D] of new tokens, whose keys and values are appended.
template <class T>
Tensor<T, 3> attend_to_new_tokens(const MultiHeadAttentionOptions& o,
                                  const MultiHeadAttentionParameters<T>& p, In<T, 3> x,
                                  KeyValueCache<T>& cache, const Context& context) {
  const Index B = x.extent(0), n = x.extent(1);
  // 1 layer_norm, 2 linear
  MultiHeadAttentionCache<T> step;
  step.self_attention = true;
  step.query = uniform_rows(x, step.query_copy, context.memory);
  project(o, p, step, context);
  // 3 split_heads, 4 attention, 5 merge_heads
  const auto [q, k, v] = heads_of(o, step);
  step.context = Tensor<T, 3>::uninitialized({B, n, o.context_width()}, context.memory);
  AppendedTokens<T> appended(cache);
  cache.append(k, v);
  flash_attention_forward(q, cache.k(), cache.v(), {.mask = causal},
                          split_heads(step.context, o.num_heads), {}, context);
  // 6 linear
  auto y = Tensor<T, 3>::uninitialized({B, n, o.d_model}, context.memory);
  linear_forward(In<T, 2>(merge_rows(step.context)), p.w_o, p.b_o, merge_rows(y), context);
  appended.keep();
  return y;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// An empty cache for self-attention of these options, resolved ones. Throws ShapeError or
/// ArgumentError for extents that are none, std::bad_alloc.
template <Scalar T>
KeyValueCache<T> key_value_cache(const MultiHeadAttentionOptions& options, Index batch_size,
                                 Index capacity,
                                 std::pmr::memory_resource* memory = default_memory()) {
  return KeyValueCache<T>({.batch_size = batch_size,
                           .num_kv_heads = options.num_kv_heads,
                           .capacity = capacity,
                           .d_head = options.d_head,
                           .d_value = options.d_value},
                          memory);
}
/// The same for a module.
template <Scalar T>
KeyValueCache<T> key_value_cache(const MultiHeadAttention<T>& attention, Index batch_size,
                                 Index capacity,
                                 std::pmr::memory_resource* memory = default_memory()) {
  return key_value_cache<T>(attention.options(), batch_size, capacity, memory);
}

/// y [B, n, D] of n new tokens x [B, n, D] which see each other causally and all that is in the
/// cache: inference.
///
/// attention   a module of self-attention
/// x           [B, n, D]   in; the tokens behind those of the cache
/// cache                   keys and values of the tokens before; those of x are appended
///
/// The bits are those of attention.forward of the whole sequence with {.mask = causal}, for any cut
/// into steps.
///
/// Work: the projections of n tokens, and n (length + (n + 1) / 2) pairs.
/// Throws ShapeError or ArgumentError for what does not fit, std::bad_alloc; the cache is as it was
/// then.
template <Scalar T>
Tensor<T, 3> multi_head_attention_step(const MultiHeadAttention<T>& attention,
                                       In<std::type_identity_t<T>, 3> x, KeyValueCache<T>& cache,
                                       const Context& context = {}) {
  constexpr std::string_view function = "multi_head_attention_step";
  const MultiHeadAttentionOptions& o = attention.options();
  require(o.fused(), function,
          "kdim or vdim differ from d_model, expected a module of self-attention");
  detail::require_new_tokens<T>(function, o, attention.parameters(), x, cache);
  return detail::attend_to_new_tokens<T>(o, attention.parameters(), x, cache, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
