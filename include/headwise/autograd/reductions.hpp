// Products of matrices, sums, means and joins on the tape.
#pragma once

#include "headwise/autograd/elementwise.hpp"
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
  require_shape("matmul", "b", b.value(), expected,
                [&] { return "leading axes and columns of a " + a.shape().format(); });
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

/// The sum of all elements, [1]. Nothing is kept.
template <Scalar T, int R>
Variable<T, 1> sum(const Variable<T, R>& x) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"sum"}, rows);
  const Out<T, 1> total = call.output(Shape{1});
  sum_forward(rows.value(), total, call.context());
  const auto backward = [to = call.target(rows)](BackwardPass<T>& pass, In<T, 1> dy) {
    pass.assign([&](Out<T, 2> dx) { sum_backward(dy, dx, pass.context()); }, to);
  };
  return call.finish(In<T, 1>(total), backward);
}

/// The mean of all elements, [1]. Throws ArgumentError where there are none.
template <Scalar T, int R>
Variable<T, 1> mean(const Variable<T, R>& x) {
  require(x.size() != 0, "mean", "x has no elements, expected at least one");
  return scale(sum(x), T(1) / T(static_cast<double>(x.size())));
}

/// Variables side by side along one axis; the others' extents are equal. Nothing is kept. Throws
/// ShapeError, and ArgumentError for an axis that is not there.
template <Scalar T, int R, std::same_as<Variable<T, R>>... More>
Variable<T, R> concatenate(int axis, const Variable<T, R>& first, const More&... more) {
  detail::require_axis("concatenate", axis, R);
  Shape<R> shape = first.shape();
  [[maybe_unused]] const auto append = [&](const Variable<T, R>& part) {
    Shape<R> expected = first.shape();
    expected[axis] = part.extent(axis);
    require_shape("concatenate", "a part", part.value(), expected,
                  [&] { return "the first " + first.shape().format(); });
    shape[axis] += part.extent(axis);
  };
  (append(more), ...);
  Recording<T> call({"concatenate"}, first, more...);
  const Out<T, R> y = call.output(shape);
  Index at = 0;
  const auto put = [&](const Variable<T, R>& part) {
    const Index count = part.extent(axis);
    detail::combine_into<T, R>(kernels::Combination::first, part.value(), slice(y, axis, at, count),
                               call.context());
    at += count;
  };
  (put(first), (put(more), ...));
  const auto targets = std::make_tuple(call.optional_target(first), call.optional_target(more)...);
  const auto backward = [targets, axis](BackwardPass<T>& pass, In<T, R> dy) {
    Index from = 0;
    const auto give = [&](const auto& target) {
      pass.add(target, slice(dy, axis, from, target.shape[axis]));
      from += target.shape[axis];
    };
    std::apply([&](const auto&... target) { (give(target), ...); }, targets);
  };
  return call.finish(In<T, R>(y), backward);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
