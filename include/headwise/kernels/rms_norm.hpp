// Root-mean-square normalisation of one row, forward and backward: layer norm without its mean.
// Sums run in T, in a fixed order.
//
// xhat = x rstd, rstd = 1 / sqrt(mean(x^2) + epsilon), y = xhat gamma. A change of x_j moves every
// xhat_i by rstd ((i == j) - xhat_i xhat_j / D), so that with g = dy gamma
// dx = rstd (g - xhat mean(g xhat)).
#pragma once

#include <cmath>

#include "headwise/kernels/matrix.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// rstd
template <class T>
T root_mean_square(Row<const T> x, Index D, T epsilon) {
  using std::sqrt;
  T squares = T(0);
  for (Index n = 0; n < D; ++n) squares = squares + x[n] * x[n];
  return T(1) / T(sqrt(squares / T(static_cast<double>(D)) + epsilon));
}

/// y = x rstd gamma; gamma may be null. y may be x.
template <class T>
void rms_norm_row(Row<const T> x, Index D, T rstd, Row<const T> gamma, Row<T> y) {
  for (Index n = 0; n < D; ++n) {
    T value = x[n] * rstd;
    if (gamma.data != nullptr) value = value * gamma[n];
    y[n] = value;
  }
}

/// dx = rstd (g - xhat mean(g xhat)) with g = dy gamma, xhat = x rstd; 0 where dy is 0 throughout,
/// whatever x holds. dx may be dy.
template <class T>
void rms_norm_backward_row(Row<const T> dy, Row<const T> x, Index D, T rstd, Row<const T> gamma,
                           Row<T> dx) {
  const auto g = [&](Index n) { return gamma.data == nullptr ? dy[n] : dy[n] * gamma[n]; };
  T sum = T(0);
  bool idle = true;
  for (Index n = 0; n < D; ++n) {
    idle = idle && dy[n] == T(0);
    sum = sum + g(n) * (x[n] * rstd);
  }
  const T mean = sum / T(static_cast<double>(D));
  for (Index n = 0; n < D; ++n) dx[n] = idle ? T(0) : rstd * (g(n) - x[n] * rstd * mean);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
