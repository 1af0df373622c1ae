// A tensor added to another, and its elements summed up, whatever the strides.
#pragma once

#include <algorithm>
#include <type_traits>

#include "headwise/ops/elementwise_rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// to = f(from, to) for tensors of one shape, row by row: f is `first` or `sum`.
template <class T, int R>
void combine_into(kernels::Combination how, const In<T, R>& from, const Out<T, R>& to,
                  const Context& context) {
  if (to.size() == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  if (from.dense() && to.dense()) {
    return for_rows(context, to.size(), 1, [&](Index begin, Index end) {
      const kernels::Matrix<const T> a{from.data() + begin, 0, 1};
      const kernels::Matrix<T> y{to.data() + begin, 0, 1};
      run.combine_rows(how, {a, y, y, end - begin}, 0, 1);
    });
  }
  if constexpr (R == 1) {
    const kernels::Matrix<const T> a{from.data(), 0, from.stride(0)};
    const kernels::Matrix<T> y{to.data(), 0, to.stride(0)};
    run.combine_rows(how, {a, y, y, to.extent(0)}, 0, 1);
  } else {
    const Index L = to.extent(R - 2), M = to.extent(R - 1);
    for_rows(context, to.size() / M, M, [&](Index begin, Index end) {
      while (begin < end) {  // the matrices of the last two axes, one after the other
        Index matrix = begin / L, offset_from = 0, offset_to = 0;
        for (int r = R - 3; r >= 0; --r) {
          const Index i = matrix % to.extent(r);
          matrix /= to.extent(r);
          offset_from += i * from.stride(r);
          offset_to += i * to.stride(r);
        }
        const Index first = begin % L, last = std::min<Index>(L, first + end - begin);
        const kernels::Matrix<const T> a{from.data() + offset_from, from.stride(R - 2),
                                         from.stride(R - 1)};
        const kernels::Matrix<T> y{to.data() + offset_to, to.stride(R - 2), to.stride(R - 1)};
        run.combine_rows(how, {a, y, y, M}, first, last);
        begin += last - first;
      }
    });
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// sum += x, element by element.
///
/// x     [...]   in; any strides
/// sum   [...]   added to; may be x
///
/// Work    a FLOP an element.
/// Throws  ShapeError before anything is written.
template <Scalar T, int R>
void accumulate(In<T, R> x, InOut<std::type_identity_t<T>, R> sum, const Context& context = {}) {
  require_countable("accumulate", "x", x);
  require_shape("accumulate", "sum", sum, x.shape(), "the shape of x");
  require_distinct("accumulate", {"sum", sum});
  require_same_or_apart("accumulate", {"sum", sum}, {"x", x});
  detail::combine_into<T, R>(kernels::Combination::sum, x, sum, context);
  context.count_flops(x.size(), x.size());
}

/// total = the sum of all elements of x: down the columns, then along.
///
/// x       [N, M]   in; any strides
/// total   [1]      out; must not overlap x
///
/// Work    N M FLOPs.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void sum_forward(In<T, 2> x, Out<std::type_identity_t<T>, 1> total, const Context& context = {}) {
  require_countable("sum_forward", "x", x);
  require_apart("sum_forward", {"total", total}, {{"x", x}});
  require_shape("sum_forward", "total", total, Shape{1}, "one number");
  const Index M = x.extent(1);
  Tensor<T, 2> columns(Shape{Index{1}, M}, context.memory);
  const Out<T, 2> sums = columns;
  detail::combine_backward<T>({kernels::Combination::first, x, x}, x.extent(0), sums, context);
  total(0) = T(0);
  if (M == 0) return;
  const kernels::Row<T> to{total.data(), total.stride(0)};
  kernels::kernels_here<T>().add_rows({columns.data(), 1, 0}, M, 0, 1, to);
}

/// dx = d_total everywhere: the gradient of sum_forward.
///
/// d_total   [1]      in
/// dx        [N, M]   out; must not overlap d_total
///
/// Throws  ShapeError before anything is written.
template <Scalar T>
void sum_backward(In<T, 1> d_total, Out<std::type_identity_t<T>, 2> dx,
                  const Context& context = {}) {
  require_shape("sum_backward", "d_total", d_total, Shape{1}, "one number");
  require_countable("sum_backward", "dx", dx);
  require_apart("sum_backward", {"dx", dx}, {{"d_total", d_total}});
  const In<T, 2> everywhere(d_total.data(), Shape{Index{1}, dx.extent(1)}, Shape{0, 0});
  detail::combine<T>({kernels::Combination::first, everywhere, everywhere}, dx, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
