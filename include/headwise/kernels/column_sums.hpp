// Sums down the columns of a matrix: the gradients of what was broadcast over its rows.
#pragma once

#include "headwise/kernels/matrix.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// out_n += sum over i of term(i, n): one ordered chain a column, added to out once. 64 columns at
/// a time, so that rows are read along.
template <class T, class Term>
void add_column_sums(Index rows, Index columns, Term term, T* out, Index step) {
  constexpr Index together = 64;
  for (Index n0 = 0; n0 < columns; n0 += together) {
    const Index count = std::min<Index>(together, columns - n0);
    T sums[together] = {};
    for (Index i = 0; i < rows; ++i) {
      for (Index n = 0; n < count; ++n) sums[n] = sums[n] + term(i, n0 + n);
    }
    for (Index n = 0; n < count; ++n) out[(n0 + n) * step] = out[(n0 + n) * step] + sums[n];
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
