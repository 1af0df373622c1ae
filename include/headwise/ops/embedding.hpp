// The embedding of tokens: rows of a table, gathered by number, and the gradient of the table.
#pragma once

#include <algorithm>
#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/ops/tokens.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Asks for the begin of a row that is read or written soon. (Rows of a table are met in no order
/// that a processor foresees.)
template <int write, class T>
HEADWISE_INLINE void prefetch_row(const kernels::Matrix<T>& x, Index i, Index begin, Index end) {
  constexpr Index line = std::max<Index>(1, 64 / static_cast<Index>(sizeof(T)));
  if (x.column != 1) return;
  for (Index n = begin; n < std::min<Index>(end, begin + 8 * line); n += line) {
    __builtin_prefetch(&x(i, n), write, 3);
  }
}

/// to_j = from_j, j < D.
template <class W>
void copy_table_row(kernels::Row<const W> from, Index D, kernels::Row<ComputedAs<W>> to) {
  if constexpr (NarrowFloat<W>) {
    if (from.step == 1 && to.step == 1) {
      return kernels::model_kernels_here<float>().widen_rows(stored_as<W>, {from.data, 0, 1}, 1, D,
                                                             to.data);
    }
    for (Index j = 0; j < D; ++j) to[j] = convert_float<float>(from[j]);
  } else {
    if (from.step == 1 && to.step == 1) {
      std::copy_n(from.data, D, to.data);
      return;
    }
    for (Index j = 0; j < D; ++j) to[j] = from[j];
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y_n = table_{tokens_n}: row n of y is a copy of the table's row of token n.
///
/// tokens  [N]      in; each in [0, V)
/// table   [V, D]   in; of 16 bits for y of float, too
/// y       [N, D]   out; must not overlap the inputs
///
/// Work    no FLOPs; N D elements are copied.
/// Throws  ShapeError, or ArgumentError for a token without a row, before anything is written.
template <TokenId Id, class W>
requires KeptAs<W, ComputedAs<W>>
void embedding_forward(In<Id, 1> tokens, In<W, 2> table, Out<ComputedAs<W>, 2> y,
                       const Context& context = {}) {
  constexpr std::string_view function = "embedding_forward";
  const Index N = tokens.extent(0), D = table.extent(1);
  require_countable(function, "tokens", tokens);
  require_countable(function, "table", table);
  require_shape(function, "y", y, Shape{N, D}, "tokens, columns of table");
  require_apart(function, {"y", y}, {{"tokens", tokens}, {"table", table}});
  detail::require_tokens(function, "tokens", tokens, table.extent(0),
                         [&] { return "rows of table " + table.shape().format(); });
  if (N == 0 || D == 0) return;
  const auto from = kernels::matrix(table);
  const auto to = kernels::matrix(y);
  detail::for_rows(context, N, D, [&](Index begin, Index end) {
    for (Index n = begin; n < end; ++n) {
      const auto row = kernels::row(from, static_cast<Index>(tokens(n)));
      const auto out = kernels::row(to, n);
      if (n + 1 < end) detail::prefetch_row<0>(from, static_cast<Index>(tokens(n + 1)), 0, D);
      detail::copy_table_row(row, D, out);
    }
  });
}

/// The gradient of the table: dtable_{tokens_n} += dy_n, in the order of n.
///
/// dy      [N, D]   in
/// tokens  [N]      in; as in forward
/// dtable  [V, D]   added to; must not overlap the inputs
///
/// A row of the table that no token names is not touched. Sums run in T, from row to row: the same
/// bits for any number of threads, for each owns columns.
/// Work    N D FLOPs, whatever V is.
/// Throws  ShapeError, or ArgumentError for a token without a row, before anything is written.
template <Scalar T, TokenId Id>
void embedding_backward(In<T, 2> dy, In<Id, 1> tokens, InOut<std::type_identity_t<T>, 2> dtable,
                        const Context& context = {}) {
  constexpr std::string_view function = "embedding_backward";
  const Index N = tokens.extent(0), D = dtable.extent(1);
  require_countable(function, "tokens", tokens);
  require_countable(function, "dtable", dtable);
  require_shape(function, "dy", dy, Shape{N, D}, "tokens, columns of dtable");
  require_apart(function, {"dtable", dtable}, {{"dy", dy}, {"tokens", tokens}});
  detail::require_tokens(function, "tokens", tokens, dtable.extent(0),
                         [&] { return "rows of dtable " + dtable.shape().format(); });
  if (N == 0 || D == 0) return;
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const auto from = kernels::matrix(dy);
  const auto to = kernels::matrix(Out<T, 2>(dtable));
  detail::for_columns(context, N, D, [&](Index begin, Index end) {
    for (Index n = 0; n < N; ++n) {
      const auto token = static_cast<Index>(tokens(n));
      if (n + 1 < N) {
        detail::prefetch_row<1>(to, static_cast<Index>(tokens(n + 1)), begin, end);
      }
      run.add_row(kernels::row(from.from(n, begin), 0), end - begin,
                  kernels::row(to.from(token, begin), 0));
    }
  });
  context.count_flops(std::int64_t{N} * D, std::int64_t{N} * D);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
