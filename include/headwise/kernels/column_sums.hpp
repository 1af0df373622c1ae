// Sums down the columns of a matrix: the gradients of what was broadcast over its rows.
#pragma once

#include "headwise/kernels/matrix.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// Columns that are summed together, so that rows are read along.
inline constexpr Index columns_together = 64;

/// sums_n = sum of term(i, n) over rows i = begin ... end - 1, n < count <= columns_together:
/// chains of 16 rows, then pairwise, so that the error grows with the logarithm of the rows.
template <class T, class Term>
void sum_columns(Index begin, Index end, Index count, const Term& term, T* sums) {
  constexpr Index chain = 16;
  if (end - begin <= chain) {
    for (Index n = 0; n < count; ++n) sums[n] = term(begin, n);
    for (Index i = begin + 1; i < end; ++i) {
      for (Index n = 0; n < count; ++n) sums[n] = sums[n] + term(i, n);
    }
    return;
  }
  const Index middle = begin + (end - begin + chain) / (2 * chain) * chain;
  T lower[columns_together];
  sum_columns(begin, middle, count, term, sums);
  sum_columns(middle, end, count, term, lower);
  for (Index n = 0; n < count; ++n) sums[n] = sums[n] + lower[n];
}

/// out_n += sum over i of term(i, n), added to out once. What a column gives depends on its rows
/// alone.
template <class T, class Term>
void add_column_sums(Index rows, Index columns, Term term, T* out, Index step) {
  if (rows == 0) return;
  for (Index n0 = 0; n0 < columns; n0 += columns_together) {
    const Index count = std::min<Index>(columns_together, columns - n0);
    T sums[columns_together];
    sum_columns(
        Index{0}, rows, count, [&](Index i, Index n) { return term(i, n0 + n); }, sums);
    for (Index n = 0; n < count; ++n) out[(n0 + n) * step] = out[(n0 + n) * step] + sums[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
