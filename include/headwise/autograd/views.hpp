// Views of variables: they share the elements, and the gradient of a view is the same view of the
// gradient. Nothing is recorded for them, and backward through them costs nothing.
#pragma once

#include "headwise/autograd/recording.hpp"
#include "headwise/tensor/dual.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The value of a number alone, of dual numbers of dual numbers too.
template <class T>
T standing_still(const T& x) {
  if constexpr (is_dual<T>) {
    return T(standing_still(x.value));
  } else {
    return x;
  }
}

/// All axes but the last as one: what strides describe, if they do.
template <class T, int R>
bool leading_axes_are_uniform(const In<T, R>& x) {
  bool known = false;
  Index distance = 0;  // of rows, from the innermost axis that has several; may be below 0
  Index rows = 1;
  for (int r = R - 2; r >= 0; --r) {
    if (x.extent(r) == 1) continue;
    if (known && x.stride(r) != distance * rows) return false;
    if (!known) distance = x.stride(r);
    known = true;
    rows *= x.extent(r);
  }
  return true;
}

template <class T, int R>
In<T, 2> merge_leading_axes(const In<T, R>& x) {
  Index rows = 1, distance = x.extent(R - 1);
  for (int r = 0; r + 1 < R; ++r) {
    rows *= x.extent(r);
    if (x.extent(r) != 1) distance = x.stride(r);
  }
  return {x.data(), Shape{rows, x.extent(R - 1)}, Shape{distance, x.stride(R - 1)}};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The same values, through which no gradient flows. On a tape of dual numbers a copy of them that
/// moves in no direction: a constant to products with the Hessian, too. Throws std::bad_alloc
/// there.
template <Scalar T, int R>
Variable<T, R> detach(const Variable<T, R>& x) {
  detail::Handle<T> handle = x.handle();
  handle.node = detail::no_node;
  if constexpr (is_dual<T>) {
    if (x.absent()) return x;
    const In<T, R> moving = x.value();
    handle.storage = detail::StorageRef<T>::make(moving.size(), handle.tape->context.memory);
    const Out<T, R> still(moving.size() == 0 ? nullptr : handle.storage->own, moving.shape());
    for_each_index(moving.shape(),
                   [&](const Shape<R>& at) { still(at) = detail::standing_still(moving(at)); });
    return {handle, In<T, R>(still)};
  } else {
    return {handle, x.value()};
  }
}

/// Elements begin ... begin + count - 1 of one axis: a view. Throws as slice of a tensor.
template <Scalar T, int R>
Variable<T, R> slice(const Variable<T, R>& x, int axis, Index begin, Index count) {
  return {x.handle(), slice(x.value(), axis, begin, count)};
}

/// One index of the first axis: a view of one axis less. Throws as select of a tensor.
template <Scalar T, int R>
Variable<T, R - 1> select(const Variable<T, R>& x, Index index) {
  return {x.handle(), select(x.value(), index)};
}

/// Two axes exchanged: a view. Throws as transpose of a tensor.
template <Scalar T, int R>
Variable<T, R> transpose(const Variable<T, R>& x, int axis_a, int axis_b) {
  return {x.handle(), transpose(x.value(), axis_a, axis_b)};
}

/// [B, L, H d] seen as [B, H, L, d]. Throws as split_heads of a tensor.
template <Scalar T>
Variable<T, 4> split_heads(const Variable<T, 3>& x, Index num_heads) {
  return {x.handle(), split_heads(x.value(), num_heads)};
}

/// A dense copy, on the tape.
template <Scalar T, int R>
Variable<T, R> contiguous(const Variable<T, R>& x) {
  Recording<T> call({"contiguous"}, x);
  const Out<T, R> y = call.output(x.shape());
  detail::combine_into<T, R>(kernels::Combination::first, x.value(), y, call.context());
  return call.finish(y, [to_x = call.optional_target(x)](BackwardPass<T>& pass, In<T, R> dy) {
    pass.hand_on(to_x, dy);
  });
}

/// [B, H, L, d] seen as [B, L, H d]: a view where the heads lie side by side, as attention leaves
/// them, a dense copy elsewhere.
template <Scalar T>
Variable<T, 3> merge_heads(const Variable<T, 4>& x) {
  const In<T, 4>& value = x.value();
  if (value.extent(1) > 1 && value.stride(1) != value.extent(3) * value.stride(3)) {
    const Variable<T, 4> tokens = contiguous(transpose(x, 1, 2));  // [B, L, H, d]
    return merge_heads(transpose(tokens, 1, 2));
  }
  return {x.handle(), merge_heads(value)};
}

/// The elements in row-major order under another shape: a view where they are dense, else of a
/// dense copy. Throws ShapeError unless there are as many.
template <int Q, Scalar T, int R>
Variable<T, Q> reshape(const Variable<T, R>& x, const Shape<Q>& shape) {
  const bool copied = !x.value().dense() && shape.size() == x.size();
  if (copied) return reshape(contiguous(x), shape);
  return {x.handle(), reshape(x.value(), shape)};
}

/// [..., M] seen as [N, M], all axes but the last as one: a view where strides describe that, else
/// of a dense copy. [M] is [1, M].
template <Scalar T, int R>
Variable<T, 2> as_rows(const Variable<T, R>& x) {
  if constexpr (R == 2) {
    return x;
  } else {
    if (!detail::leading_axes_are_uniform(x.value())) return as_rows(contiguous(x));
    return {x.handle(), detail::merge_leading_axes(x.value())};
  }
}

/// rows [N, M] seen under the shape of x [..., K], but M wide: the inverse of as_rows.
template <Scalar T, int R>
Variable<T, R> like_rows_of(const Shape<R>& x, const Variable<T, 2>& rows) {
  Shape<R> shape = x;
  shape[R - 1] = rows.extent(1);
  return reshape(rows, shape);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
