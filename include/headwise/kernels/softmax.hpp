// Softmax of one row, forward and backward.
#pragma once

#include <cmath>

#include "headwise/kernels/matrix.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// The sum of term(j) over visible j: `block` terms at a time, counted from j = 0, so that hidden
/// elements at the end of a row change no bit. (One chain of 1,024 lost twice the digits.)
template <class T, class Visible, class Term>
T sum_visible(Index n, Visible visible, Term term) {
  constexpr Index block = 16;
  T total = T(0);
  for (Index j0 = 0; j0 < n; j0 += block) {
    T sum = T(0);
    bool any = false;
    for (Index j = j0, end = std::min<Index>(n, j0 + block); j < end; ++j) {
      if (!visible(j)) continue;
      sum = any ? sum + term(j) : term(j);
      any = true;
    }
    if (any) total = total + sum;
  }
  return total;
}

/// What becomes of a row whose visible elements are all -infinity.
enum class NoWeight { nan, zeros };

/// In place over the elements j of a row with visible(j): x_j becomes e^(x_j - max) / sum, the
/// others 0, whatever they held; a row in which nothing is visible becomes 0 throughout. A sink, if
/// not null, takes part as one more element that is not written.
template <class T, class Visible>
void softmax_row(Row<T> x, Index n, Visible visible, const T* sink = nullptr,
                 NoWeight none = NoWeight::nan) {
  using std::exp;
  T greatest = sink != nullptr ? *sink : std::numeric_limits<T>::lowest();
  for (Index j = 0; j < n; ++j) {
    if (!visible(j)) continue;
    if (greatest < x[j]) greatest = x[j];
  }
  for (Index j = 0; j < n; ++j) x[j] = visible(j) ? T(exp(x[j] - greatest)) : T(0);
  T sum = sum_visible<T>(
      n, [](Index) { return true; }, [&](Index j) { return x[j]; });
  if (sink != nullptr) sum = sum + T(exp(*sink - greatest));
  if (none == NoWeight::zeros && sum == T(0)) sum = T(1);
  for (Index j = 0; j < n; ++j) {
    if (visible(j)) x[j] = x[j] / sum;
  }
}

/// dx_j = p_j (dp_j - sum_k dp_k p_k) for visible j, 0 for the others. dx may be dp.
template <class T, class Visible>
void softmax_backward_row(Row<const T> dp, Row<const T> p, Row<T> dx, Index n, Visible visible) {
  const T sum = sum_visible<T>(n, visible, [&](Index j) { return dp[j] * p[j]; });
  for (Index j = 0; j < n; ++j) dx[j] = visible(j) ? p[j] * (dp[j] - sum) : T(0);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
