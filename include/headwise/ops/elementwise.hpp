// Sums, differences, products and quotients of matrices, element by element, and their gradients. A
// matrix of one row stands for all rows: its gradient is summed over them.
#pragma once

#include <type_traits>

#include "headwise/ops/elementwise_rows.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = a + b.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void add_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b, Out<std::type_identity_t<T>, 2> y,
                 const Context& context = {}) {
  detail::require_combined<T>("add_forward", a, b, y);
  detail::combine<T>({kernels::Combination::sum, a, b}, y, context);
}

/// The gradients of add_forward.
///
/// dy   [N, M]   in
/// da   [N, M]   out: dy; or [1, M]: the column sums of dy; {} for none
/// db   [N, M]   out: likewise
///
/// Outputs must not overlap dy (but may be dy where they have its shape) or each other.
/// Work    N M FLOPs for each of [1, M].
/// Throws  ShapeError before anything is written.
template <Scalar T>
void add_backward(In<T, 2> dy, Out<std::type_identity_t<T>, 2> da,
                  Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  detail::require_gradients<T>("add_backward", dy, da, db);
  const Index N = dy.extent(0);
  detail::combine_backward<T>({kernels::Combination::first, dy, dy}, N, da, context);
  detail::combine_backward<T>({kernels::Combination::first, dy, dy}, N, db, context);
}

/// y = a - b.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void subtract_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b,
                      Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::require_combined<T>("subtract_forward", a, b, y);
  detail::combine<T>({kernels::Combination::difference, a, b}, y, context);
}

/// The gradients of subtract_forward.
///
/// dy   [N, M]   in
/// da   [N, M]   out: dy; or [1, M]: summed over the rows; {} for none
/// db   [N, M]   out: -dy; or [1, M] likewise
///
/// Outputs must not overlap dy (but may be dy where they have its shape) or each other.
/// Work    N M FLOPs for db, and for da of [1, M].
/// Throws  ShapeError before anything is written.
template <Scalar T>
void subtract_backward(In<T, 2> dy, Out<std::type_identity_t<T>, 2> da,
                       Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  detail::require_gradients<T>("subtract_backward", dy, da, db);
  const Index N = dy.extent(0);
  detail::combine_backward<T>({kernels::Combination::first, dy, dy}, N, da, context);
  detail::combine_backward<T>({kernels::Combination::scaled, dy, dy, T(-1)}, N, db, context);
}

/// y = a b, element by element.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void multiply_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b,
                      Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::require_combined<T>("multiply_forward", a, b, y);
  detail::combine<T>({kernels::Combination::product, a, b}, y, context);
}

/// The gradients of multiply_forward.
///
/// dy    [N, M]   in
/// a, b           in; as in forward
/// da    as a     out: dy b; summed over the rows where a is [1, M]; {} for none
/// db    as b     out: dy a; likewise
///
/// An element whose dy is 0 adds nothing, whatever a and b hold. Outputs must not overlap inputs or
/// each other.
/// Work    N M FLOPs for each, twice that for [1, M].
/// Throws  ShapeError before anything is written.
template <Scalar T>
void multiply_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> a,
                       In<std::type_identity_t<T>, 2> b, Out<std::type_identity_t<T>, 2> da,
                       Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  constexpr std::string_view function = "multiply_backward";
  detail::require_factor<T>(function, "a", a, dy);
  detail::require_factor<T>(function, "b", b, dy);
  require(a.extent(0) == dy.extent(0) || b.extent(0) == dy.extent(0), function, "dy has ",
          dy.extent(0), " rows, expected 1 (a and b have one row each)");
  detail::require_gradient_of<T>(function, "da", da, a.shape(), "the shape of a");
  detail::require_gradient_of<T>(function, "db", db, b.shape(), "the shape of b");
  require_outputs_apart(function, {{"da", da}, {"db", db}}, {{"dy", dy}, {"a", a}, {"b", b}});
  const Index N = dy.extent(0);
  detail::combine_backward<T>({kernels::Combination::gradient_product, dy, b}, N, da, context);
  detail::combine_backward<T>({kernels::Combination::gradient_product, dy, a}, N, db, context);
}

/// y = a / b, element by element.
///
/// a   [N, M]   in; or [1, M], which stands for every row
/// b   [N, M]   in; or [1, M] likewise
/// y   [N, M]   out; may be a or b
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void divide_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b, Out<std::type_identity_t<T>, 2> y,
                    const Context& context = {}) {
  detail::require_combined<T>("divide_forward", a, b, y);
  detail::combine<T>({kernels::Combination::quotient, a, b}, y, context);
}

/// The gradients of divide_forward.
///
/// dy   [N, M]   in
/// b             in; as in forward
/// y    [N, M]   in; what forward returned
/// da   [N, M]   out: dy / b; or [1, M]: summed over the rows; {} for none
/// db   as b     out: -(dy / b) y; summed over the rows where b is [1, M]; {} for none
///
/// An element whose dy is 0 adds nothing, whatever b and y hold. Outputs must not overlap inputs or
/// each other.
/// Work    N M FLOPs, as many for da of [1, M] and for db, twice that for db of [1, M].
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void divide_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> b,
                     In<std::type_identity_t<T>, 2> y, Out<std::type_identity_t<T>, 2> da,
                     Out<std::type_identity_t<T>, 2> db, const Context& context = {}) {
  constexpr std::string_view function = "divide_backward";
  const Index N = dy.extent(0);
  detail::require_factor<T>(function, "b", b, dy);
  require_shape(function, "y", y, dy.shape(), "the shape of dy");
  detail::require_gradient_of<T>(function, "da", da, detail::rows_or_one<T>(da, dy),
                                 "the shape of dy, or one row");
  detail::require_gradient_of<T>(function, "db", db, b.shape(), "the shape of b");
  require_outputs_apart(function, {{"da", da}, {"db", db}}, {{"dy", dy}, {"b", b}, {"y", y}});
  Tensor<T, 2> storage;  // dy / b, where that is not da
  Out<T, 2> quotients = da;
  if (da.absent() || da.extent(0) != N) {
    storage = Tensor<T, 2>::uninitialized(dy.shape(), context.memory);
    quotients = storage;
  }
  detail::combine<T>({kernels::Combination::gradient_quotient, dy, b}, quotients, context);
  if (storage.size() != 0 || da.extent(0) != N) {
    detail::combine_backward<T>({kernels::Combination::first, quotients, quotients}, N, da,
                                context);
  }
  detail::combine_backward<T>({kernels::Combination::negative_gradient_product, quotients, y}, N,
                              db, context);
}

/// y = alpha x.
///
/// x      [N, M]   in
/// alpha           a finite number
/// y      [N, M]   out; may be x
///
/// It is its own gradient: dx = scale_forward(dy, alpha).
/// Work    N M FLOPs.
/// Throws  ShapeError or ArgumentError before anything is written.
template <Scalar T>
void scale_forward(In<T, 2> x, const std::type_identity_t<T>& alpha,
                   Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::scale_into<T>("scale_forward", "x", x, alpha, "y", y, context);
}

/// dx = alpha dy: the gradient of scale_forward. dx may be dy. Throws as that does.
template <Scalar T>
void scale_backward(In<T, 2> dy, const std::type_identity_t<T>& alpha,
                    Out<std::type_identity_t<T>, 2> dx, const Context& context = {}) {
  detail::scale_into<T>("scale_backward", "dy", dy, alpha, "dx", dx, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
