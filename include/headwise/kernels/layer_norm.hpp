// Layer normalisation of one row, forward and backward. Sums run in T, in a fixed order.
// The equations are derived in docs/derivations/layer_norm_backward.md.
#pragma once

#include <cmath>

#include "headwise/kernels/matrix.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// What a row was normalised with.
template <class T>
struct RowMoments {
  T mean;
  T rstd;  // 1 / sqrt(variance + epsilon)
};

/// A row's mean as it was rounded, and about that number the mean and the mean square of the row.
template <class T>
struct NearMoments {
  T mean, rest, square;

  /// With what rounding left of it, so that a constant row has no variance.
  HEADWISE_INLINE T corrected_mean() const { return mean + rest; }
  /// Whether the variance about another mean needs another look at the row: where both are far
  /// apart, in a row that is nearly constant and far from 0, it would lose digits.
  HEADWISE_INLINE bool misses(const T& other) const {
    return (other - mean) * (other - mean) * T(1024) > square;
  }
  /// mean((d - m)^2) = mean(d^2) - m (2 mean(d) - m).
  HEADWISE_INLINE T variance(const T& other) const {
    const T moved = other - mean;
    return square - moved * (T(2) * rest - moved);
  }
};

/// Steps 1a and 1b. The variance is taken about the mean, so that a row far from 0 keeps its
/// digits.
template <class T>
RowMoments<T> row_moments(Row<const T> x, Index D, T epsilon) {
  using std::sqrt;
  const T count = T(static_cast<double>(D));
  T sum = T(0), rest = T(0), squares = T(0);
  for (Index n = 0; n < D; ++n) sum = sum + x[n];
  const T nearly = sum / count;
  for (Index n = 0; n < D; ++n) {
    const T centred = x[n] - nearly;
    rest = rest + centred;
    squares = squares + centred * centred;
  }
  const NearMoments<T> first{nearly, rest / count, squares / count};
  const T mean = first.corrected_mean();
  T variance = first.variance(mean);
  if (first.misses(mean)) {
    squares = T(0);
    for (Index n = 0; n < D; ++n) squares = squares + (x[n] - mean) * (x[n] - mean);
    variance = squares / count;
  }
  return {mean, T(1) / T(sqrt(variance + epsilon))};
}

/// Steps 1c and 1d: y = (x - mean) rstd gamma + beta; gamma and beta may be null. y may be x.
template <class T>
void normalise_row(Row<const T> x, Index D, RowMoments<T> moments, Row<const T> gamma,
                   Row<const T> beta, Row<T> y) {
  for (Index n = 0; n < D; ++n) {
    T value = (x[n] - moments.mean) * moments.rstd;
    if (gamma.data != nullptr) value = value * gamma[n];
    if (beta.data != nullptr) value = value + beta[n];
    y[n] = value;
  }
}

/// Steps 1d to 1a: dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy gamma,
/// xhat = (x - mean) rstd; 0 where dy is 0 throughout, whatever x holds. dx may be dy.
template <class T>
void layer_norm_backward_row(Row<const T> dy, Row<const T> x, Index D, RowMoments<T> moments,
                             Row<const T> gamma, Row<T> dx) {
  const auto g = [&](Index n) { return gamma.data == nullptr ? dy[n] : dy[n] * gamma[n]; };
  T sum_g = T(0), sum_g_xhat = T(0);
  bool idle = true;
  for (Index n = 0; n < D; ++n) {
    const T gn = g(n);
    idle = idle && dy[n] == T(0);
    sum_g = sum_g + gn;
    sum_g_xhat = sum_g_xhat + gn * ((x[n] - moments.mean) * moments.rstd);
  }
  const T count = T(static_cast<double>(D));
  const T mean_g = sum_g / count, mean_g_xhat = sum_g_xhat / count;
  for (Index n = 0; n < D; ++n) {
    const T xhat = (x[n] - moments.mean) * moments.rstd;
    dx[n] = idle ? T(0) : moments.rstd * (g(n) - mean_g - xhat * mean_g_xhat);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
