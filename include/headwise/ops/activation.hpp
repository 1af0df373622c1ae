// Activations, element by element, and the gated pair: forward and backward.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/runtime/activation.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// y = f(gate) up. The rules of memory are its caller's.
template <class T>
void activate_rows(Activation activation, const In<T, 2>& x, const In<T, 2>& up, const Out<T, 2>& y,
                   const Context& context) {
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::ActivationRows<T> rows{activation, x.extent(1), kernels::matrix(x),
                                        kernels::matrix(up), kernels::matrix(y)};
  for_rows(context, x.extent(0), x.extent(1),
           [&](Index begin, Index end) { run.activation_rows(rows, begin, end); });
  const kernels::ActivationFlops an_element(activation);
  const std::int64_t flops =
      x.size() * (an_element.forward + (up.absent() ? 0 : kernels::ActivationFlops::gated));
  context.count_flops(flops, flops);
}

/// d_gate = dy up f'(gate), d_up = dy f(gate). The rules of memory are its caller's.
template <class T>
void activate_rows_backward(Activation activation, const In<T, 2>& dy, const In<T, 2>& x,
                            const In<T, 2>& up, const Out<T, 2>& dx, const Out<T, 2>& d_up,
                            const Context& context) {
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::ActivationBackwardRows<T> rows{
      activation,          x.extent(1),         kernels::matrix(dy),  kernels::matrix(x),
      kernels::matrix(up), kernels::matrix(dx), kernels::matrix(d_up)};
  for_rows(context, x.extent(0), x.extent(1),
           [&](Index begin, Index end) { run.activation_backward_rows(rows, begin, end); });
  const kernels::ActivationFlops an_element(activation);
  const std::int64_t flops =
      x.size() * (up.absent() ? an_element.backward : an_element.gated_backward());
  context.count_flops(flops, flops);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = f(x), element by element.
///
/// activation  f
/// x           [N, F]   in
/// y           [N, F]   out; may be x
///
/// float and double within 7 epsilon |f(x)|, which is 7 to 14 units in its last place, also far
/// below 0 where f is small, as long as |f(x)| is 4096 times the least normal number or more; that
/// of gelu_tanh within 3 (1 + |z|), where f is x / (1 + e^-z). NaN stays NaN; infinity stays,
/// -infinity gives 0.
/// Work    0 FLOPs an element for relu, 4 for gelu and silu, 8 for gelu_tanh.
/// Throws  ShapeError before anything is written.
/// Source  see Activation.
template <Scalar T>
void activation_forward(Activation activation, In<T, 2> x, Out<std::type_identity_t<T>, 2> y,
                        const Context& context = {}) {
  require_countable("activation_forward", "x", x);
  require_shape("activation_forward", "y", y, x.shape(), "the shape of x");
  require_distinct("activation_forward", {"y", y});
  require_same_or_apart("activation_forward", {"y", y}, {"x", x});
  if (x.size() == 0) return;
  detail::activate_rows<T>(activation, x, {}, y, context);
}

/// dx = dy f'(x), element by element; that of relu at 0 is 0.
///
/// activation  f, as in forward
/// dy          [N, F]   in
/// x           [N, F]   in; as in forward
/// dx          [N, F]   out; may be dy; must not overlap x
///
/// An element whose dy is 0 has dx 0, whatever x holds.
/// Work    1 FLOP an element for relu, 10 for gelu, 15 for gelu_tanh, 8 for silu.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/transformer_block.md.
template <Scalar T>
void activation_backward(Activation activation, In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                         Out<std::type_identity_t<T>, 2> dx, const Context& context = {}) {
  require_countable("activation_backward", "dy", dy);
  require_shape("activation_backward", "x", x, dy.shape(), "the shape of dy");
  require_shape("activation_backward", "dx", dx, dy.shape(), "the shape of dy");
  require_apart("activation_backward", {"dx", dx}, {{"x", x}});
  require_same_or_apart("activation_backward", {"dx", dx}, {"dy", dy});
  if (dy.size() == 0) return;
  detail::activate_rows_backward<T>(activation, dy, x, {}, dx, {}, context);
}

/// y = silu(gate) up, element by element.
///
/// gate   [N, F]   in
/// up     [N, F]   in; gate and up may be halves of the columns of one matrix
/// y      [N, F]   out; may be gate or up
///
/// Work    5 FLOPs an element.
/// Throws  ShapeError before anything is written.
/// Source  Shazeer, "GLU Variants Improve Transformer", 2020, arXiv 2002.05202.
template <Scalar T>
void swiglu_forward(In<T, 2> gate, In<std::type_identity_t<T>, 2> up,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  require_countable("swiglu_forward", "gate", gate);
  require_shape("swiglu_forward", "up", up, gate.shape(), "the shape of gate");
  require_shape("swiglu_forward", "y", y, gate.shape(), "the shape of gate");
  require_distinct("swiglu_forward", {"y", y});
  require_same_or_apart("swiglu_forward", {"y", y}, {"gate", gate});
  require_same_or_apart("swiglu_forward", {"y", y}, {"up", up});
  if (gate.size() == 0) return;
  detail::activate_rows<T>(Activation::silu, gate, up, y, context);
}

/// d_gate = dy up silu'(gate), d_up = dy silu(gate), element by element.
///
/// dy       [N, F]   in
/// gate     [N, F]   in; as in forward
/// up       [N, F]   in; as in forward
/// d_gate   [N, F]   out; may be dy
/// d_up     [N, F]   out
///
/// An element whose dy is 0 has gradients 0, whatever gate and up hold. Outputs must not overlap
/// anything else.
/// Work    11 FLOPs an element.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void swiglu_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> gate,
                     In<std::type_identity_t<T>, 2> up, Out<std::type_identity_t<T>, 2> d_gate,
                     Out<std::type_identity_t<T>, 2> d_up, const Context& context = {}) {
  require_countable("swiglu_backward", "dy", dy);
  require_shape("swiglu_backward", "gate", gate, dy.shape(), "the shape of dy");
  require_shape("swiglu_backward", "up", up, dy.shape(), "the shape of dy");
  require_shape("swiglu_backward", "d_gate", d_gate, dy.shape(), "the shape of dy");
  require_shape("swiglu_backward", "d_up", d_up, dy.shape(), "the shape of dy");
  require_apart("swiglu_backward", {"d_gate", d_gate}, {{"gate", gate}, {"up", up}});
  require_same_or_apart("swiglu_backward", {"d_gate", d_gate}, {"dy", dy});
  require_apart("swiglu_backward", {"d_up", d_up},
                {{"dy", dy}, {"gate", gate}, {"up", up}, {"d_gate", d_gate}});
  if (dy.size() == 0) return;
  detail::activate_rows_backward<T>(Activation::silu, dy, gate, up, d_gate, d_up, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
