// Products of matrices, or of as many pairs of them as the leading axes have, on the tape.
#pragma once

#include "headwise/autograd/views.hpp"
#include "headwise/ops/linear.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Matrix n of the last two axes, counted in row-major order of the others.
template <class V>
typename V::template with_rank<2> matrix_at(const V& view, Index n) {
  constexpr int rank = V::rank;
  Index offset = 0;
  for (int r = rank - 3; r >= 0; --r) {
    offset += n % view.extent(r) * view.stride(r);
    n /= view.extent(r);
  }
  auto* const data = view.data();
  return {data == nullptr ? data : data + offset,
          Shape{view.extent(rank - 2), view.extent(rank - 1)},
          Shape{view.stride(rank - 2), view.stride(rank - 1)}};
}

template <int R>
Index matrices_of(const Shape<R>& shape) {
  Index count = 1;
  for (int r = 0; r < R - 2; ++r) count *= shape[r];
  return count;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// a b, matrix by matrix.
///
/// a         [..., N, K]
/// b         [..., K, O]   of the same leading axes
/// returns   [..., N, O]
///
/// Both are kept. Throws ShapeError.
template <Scalar T, int R>
Variable<T, R> matmul(const Variable<T, R>& a, const Variable<T, R>& b) {
  static_assert(R >= 2, "matrices have two axes");
  Shape<R> expected = a.shape(), shape = a.shape();
  expected[R - 2] = a.extent(R - 1);
  expected[R - 1] = shape[R - 1] = b.extent(R - 1);
  require_shape("matmul", "b", b.value(), expected, "leading axes and columns of a ", a.shape());
  Recording<T> call({"matmul"}, a, b);
  const Out<T, R> y = call.output(shape);
  for (Index n = 0; n < detail::matrices_of(shape); ++n) {
    linear_forward(detail::matrix_at(a.value(), n), detail::matrix_at(b.value(), n), {},
                   detail::matrix_at(y, n), call.context());
  }
  const auto to_a = call.optional_target(a);
  const auto to_b = call.added_target(b);
  const In<T, R> kept_a = call.save(a), kept_b = call.save(b);
  const auto backward = [to_a, to_b, kept_a, kept_b](BackwardPass<T>& pass, In<T, R> dy) {
    const auto into = [&](Out<T, R> da, InOut<T, R> db) {
      for (Index n = 0; n < detail::matrices_of(dy.shape()); ++n) {
        linear_backward(detail::matrix_at(dy, n), detail::matrix_at(kept_a, n),
                        detail::matrix_at(kept_b, n),
                        da.absent() ? Out<T, 2>() : detail::matrix_at(Out<T, R>(da), n),
                        db.absent() ? InOut<T, 2>() : detail::matrix_at(db, n), {}, pass.context());
      }
    };
    pass.assign(into, to_a, to_b);
  };
  return call.finish(In<T, R>(y), backward);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
