// Attention over packed sequences as one node of the tape.
#pragma once

#include "headwise/autograd/attention.hpp"
#include "headwise/ops/packed_attention.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What an attention over packed sequences is called with, but its inputs' elements.
template <class T>
struct PackedAttentionNode {
  PackedSequences<T> inputs;
  In<T, 3> o, lse;  // [N, H, dv], [N, H, 2]
  AttentionOptions<T> options;

  void backward(const In<T, 3>& d_o, Out<T, 3> dq, Out<T, 3> dk, Out<T, 3> dv,
                const ScoreGradients<T>& score, const Context& context) const {
    packed_attention_backward(d_o, inputs, o, lse, options, {dq, dk, dv, score}, context);
  }
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Attention within each of the sequences that lie one behind the other.
///
/// q              [N, H, d]
/// k              [M, G, d]    G divides H
/// v              [M, G, dv]
/// query_starts   [B + 1]      cumulative lengths from 0 to N; have to outlive backward
/// key_starts     [B + 1]      from 0 to M; likewise
/// options, learned            as attention has them; masks and biases of pairs [B or 1, H or 1, 1,
///                             1]
/// returns        [N, H, dv]
///
/// Keeps q, k, v, o and two numbers a query. Throws as packed_attention_forward, ArgumentError
/// where the options have what is learned, too.
template <Scalar T>
Variable<T, 3> packed_attention(const Variable<T, 3>& q, const Variable<T, 3>& k,
                                const Variable<T, 3>& v, LastingSpan<Index> query_starts,
                                LastingSpan<Index> key_starts,
                                const AttentionOptions<std::type_identity_t<T>>& options = {},
                                const LearnedScores<std::type_identity_t<T>>& learned = {}) {
  constexpr std::string_view function = "packed_attention";
  Recording<T> call({"packed_attention"}, q, k, v, learned.scale, learned.alibi_slopes,
                    learned.relative_bias, learned.sinks, learned.bias, learned.function);
  const Index N = q.extent(0), H = q.extent(1);
  const AttentionOptions<T> all = detail::with_learned(function, options, learned, call);
  const Out<T, 3> o = call.output(Shape{N, H, v.extent(2)});
  const Out<T, 3> lse = call.kept(Shape{N, H, Index{2}});
  packed_attention_forward<T>({q.value(), k.value(), v.value(), query_starts, key_starts}, all, o,
                              lse, call.context());
  call.save_output();
  const detail::PackedAttentionNode<T> node{
      {call.save(q), call.save(k), call.save(v), query_starts, key_starts}, o, lse, all};
  return detail::finish_attention(call, q, k, v, learned, In<T, 3>(o), node);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
