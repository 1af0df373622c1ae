// Attention as one node of the tape, on either path.
#pragma once

#include "headwise/autograd/views.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/path.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What an attention is called with, but its inputs' elements.
template <class T>
struct AttentionNode {
  AttentionInputs<T> inputs;
  In<T, 4> o;
  In<T, 4> kept;  // lse [B, H, L, 2], or the weights [B, H, L, S]
  AttentionOptions<T> options;
  Path path;

  void backward(const In<T, 4>& d_o, const AttentionGradients<T>& to, const Context& context) {
    if (path == Path::flash) {
      flash_attention_backward(d_o, inputs, o, kept, options, to, context);
    } else {
      attention_backward(d_o, inputs, kept, options, to, context);
    }
  }
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// o = softmax(scale q k^T + bias over visible keys) v.
///
/// q         [B, H, L, d]
/// k         [B, G, S, d]    G divides H
/// v         [B, G, S, dv]
/// options                   masks, scale, dropout; what they view has to outlive backward
/// returns   [B, H, L, dv]   laid out as [B, L, H dv], so that merge_heads of it is a view
///
/// Path::flash keeps q, k, v, o and two numbers a query, Path::materialized q, k, v and the
/// weights. Where q, k and v are slices of one projection, their gradients are written side by side
/// into its gradient. Throws as flash_attention_forward or attention_forward.
template <Scalar T>
Variable<T, 4> attention(const Variable<T, 4>& q, const Variable<T, 4>& k, const Variable<T, 4>& v,
                         const AttentionOptions<std::type_identity_t<T>>& options = {},
                         Path path = Path::flash) {
  Recording<T> call({"attention"}, q, k, v);
  const Index B = q.extent(0), H = q.extent(1), L = q.extent(2);
  const Out<T, 4> heads = call.output(Shape{B, L, H, v.extent(3)});
  const Out<T, 4> o = transpose(heads, 1, 2);
  Out<T, 4> kept;
  if (path == Path::flash) {
    kept = call.kept(Shape{B, H, L, 2});
    flash_attention_forward(q.value(), k.value(), v.value(), options, o, kept, call.context());
    call.save_output();
  } else {
    kept = call.scratch(Shape{B, H, L, k.extent(2)});
    attention_forward(q.value(), k.value(), v.value(), options, kept, o, call.context());
  }
  detail::AttentionNode<T> node{{call.save(q), call.save(k), call.save(v)}, o, kept, options, path};
  const auto to_q = call.target(q), to_k = call.target(k), to_v = call.target(v);
  return call.finish(In<T, 4>(o),
                     [node, to_q, to_k, to_v](BackwardPass<T>& pass, In<T, 4> d_o) mutable {
                       pass.assign(
                           [&](Out<T, 4> dq, Out<T, 4> dk, Out<T, 4> dv) {
                             node.backward(d_o, {dq, dk, dv}, pass.context());
                           },
                           to_q, to_k, to_v);
                     });
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
