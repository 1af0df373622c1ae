// Calls of MultiHeadAttention whose sequences lie one behind the other, in rows [1, N, D]: what
// attention over packed sequences reads of what a module keeps.
#pragma once

#include "headwise/nn/multi_head_attention_cache.hpp"
#include "headwise/ops/packed_attention.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Rows of heads [1, heads, N, width] as [N, heads, width]; absent where they are.
template <class View>
auto rows_of_heads(const View& x) {
  using Rows = decltype(transpose(select(x, 0), 0, 1));
  return x.absent() ? Rows{} : transpose(select(x, 0), 0, 1);
}

/// Cumulative lengths of the keys of a call.
template <class T>
std::span<const Index> key_starts_of(const MultiHeadAttentionCall<T>& call, bool self_attention) {
  return self_attention ? call.query_starts : call.key_starts;
}

/// The rules of a call's sequences: of M keys for N queries.
template <class T>
void require_packed_call(std::string_view function, const MultiHeadAttentionCall<T>& call,
                         bool self_attention, Index num_heads, Index N, Index M) {
  require(!self_attention || call.key_starts.empty(), function,
          "key_starts is given, expected none (keys and queries are rows of the same x)");
  require_packed_path(function, call.path);
  const std::span<const Index> key_starts = key_starts_of(call, self_attention);
  require_packed_starts(function, call.query_starts, N,
                        self_attention ? "the rows of x" : "the rows of query", key_starts, M,
                        "the rows of key");
  const Index B = static_cast<Index>(call.query_starts.size()) - 1;
  require_packed_mask<T>(function, call.mask, B, num_heads, key_starts);
}

/// The heads of a packed call.
template <class T>
PackedSequences<T> packed_heads(const MultiHeadAttentionCache<T>& cache,
                                const AttentionInputs<T>& heads) {
  return {rows_of_heads(heads.q), rows_of_heads(heads.k), rows_of_heads(heads.v),
          cache.call.query_starts, key_starts_of(cache.call, cache.self_attention)};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
