// How element-by-element operations check their arguments and run their rows.
#pragma once

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Checks y = f(a, b), where a and b are [N, M], or [1, M] for every row.
template <class T>
void require_combined(std::string_view function, const In<T, 2>& a, const In<T, 2>& b,
                      const Out<T, 2>& y) {
  require_countable(function, "a", a);
  require_countable(function, "b", b);
  const Index rows_a = a.extent(0), rows_b = b.extent(0), M = a.extent(1);
  if (b.extent(1) != M || (rows_a != rows_b && rows_a != 1 && rows_b != 1)) {
    raise<ShapeError>(function, ": b is ", b.shape(), ", expected the shape of a ", a.shape(),
                      ", or one row of it");
  }
  require_shape(function, "y", y, Shape{rows_a == 1 ? rows_b : rows_a, M}, "rows of a and b");
  require_distinct(function, {"y", y});
  require_same_or_apart(function, {"y", y}, {"a", a});
  require_same_or_apart(function, {"y", y}, {"b", b});
}

/// The shape that a gradient may have: that of dy, or one row.
template <class T>
Shape<2> rows_or_one(const In<T, 2>& gradient, const In<T, 2>& dy) {
  return {gradient.extent(0) == 1 ? 1 : dy.extent(0), dy.extent(1)};
}

template <class T>
void require_gradient_of(std::string_view function, std::string_view argument,
                         const Out<T, 2>& gradient, const Shape<2>& expected,
                         std::string_view whence) {
  if (!gradient.absent()) require_shape(function, argument, gradient, expected, whence);
}

/// Checks da and db of a sum or a difference.
template <class T>
void require_gradients(std::string_view function, const In<T, 2>& dy, const Out<T, 2>& da,
                       const Out<T, 2>& db) {
  require_countable(function, "dy", dy);
  require_gradient_of<T>(function, "da", da, rows_or_one<T>(da, dy), "the shape of dy, or one row");
  require_gradient_of<T>(function, "db", db, rows_or_one<T>(db, dy), "the shape of dy, or one row");
  require_distinct(function, {"da", da});
  require_same_or_apart(function, {"da", da}, {"dy", dy});
  require_apart(function, {"db", db}, {{"da", da}});
  require_same_or_apart(function, {"db", db}, {"dy", dy});
}

/// Checks an input of backward: [N, M] as dy, or [1, M].
template <class T>
void require_factor(std::string_view function, std::string_view argument, const In<T, 2>& factor,
                    const In<T, 2>& dy) {
  require_countable(function, "dy", dy);
  require_shape(function, argument, factor, rows_or_one<T>(factor, dy),
                "the shape of dy, or one row");
}

/// The matrix of [rows, M], or of [1, M] seen `rows` times.
template <class T>
kernels::Matrix<const T> matrix_of_rows(const In<T, 2>& view, Index rows) {
  kernels::Matrix<const T> matrix = kernels::matrix(view);
  if (view.extent(0) == 1 && rows != 1) matrix.row = 0;
  return matrix;
}

/// f(a, b), whatever it goes to.
template <class T>
struct Combined {
  kernels::Combination how;
  In<T, 2> a, b;  // [N, M], or [1, M]; where only a is combined, b is a
  T alpha = T(1);

  kernels::CombinedRows<T> rows(Index N, Index M, kernels::Matrix<T> y) const {
    return {matrix_of_rows(a, N), matrix_of_rows(b, N), y, M, alpha};
  }
};

/// y = f(a, b).
template <class T>
void combine(const Combined<T>& of, const Out<T, 2>& y, const Context& context) {
  const Index N = y.extent(0), M = y.extent(1);
  if (N == 0 || M == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CombinedRows<T> rows = of.rows(N, M, kernels::matrix(y));
  for_rows(context, N, M,
           [&](Index begin, Index end) { run.combine_rows(of.how, rows, begin, end); });
  if (of.how != kernels::Combination::first) context.count_flops(y.size(), y.size());
}

/// The gradient f(a, b) [N, M], or its column sums where `to` is [1, M]; nothing where it is `{}`.
template <class T>
void combine_backward(const Combined<T>& of, Index N, const Out<T, 2>& to, const Context& context) {
  if (to.absent()) return;
  if (to.extent(0) == N) return combine(of, to, context);
  fill(to, T(0));
  const Index M = to.extent(1);
  if (N == 0 || M == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const kernels::CombinedRows<T> rows = of.rows(N, M, {nullptr, 0, 0});
  const kernels::Row<T> sums{to.data(), to.stride(1)};
  for_columns(context, N, M, [&](Index begin, Index end) {
    run.combine_columns(of.how, rows, N, begin, end, sums);
  });
  const std::int64_t flops = std::int64_t{N} * M * (of.how == kernels::Combination::first ? 1 : 2);
  context.count_flops(flops, flops);
}

/// to = alpha from, as `function` calls them.
template <class T>
void scale_into(std::string_view function, std::string_view from_name, const In<T, 2>& from,
                const T& alpha, std::string_view to_name, const Out<T, 2>& to,
                const Context& context) {
  require_countable(function, from_name, from);
  require_shape(function, to_name, to, from.shape(), "the shape of ", from_name);
  require_distinct(function, {to_name, to});
  require_same_or_apart(function, {to_name, to}, {from_name, from});
  require(is_finite_option(alpha), function, "alpha is ", shown_option(alpha),
          ", expected a finite number");
  combine<T>({kernels::Combination::scaled, from, from, alpha}, to, context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
