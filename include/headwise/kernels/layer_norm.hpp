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

/// Two passes, so that the variance of a row far from 0 keeps its digits.
template <class T>
RowMoments<T> row_moments(const T* x, Index step, Index D, T epsilon) {
  using std::sqrt;
  T sum = T(0);
  for (Index n = 0; n < D; ++n) sum = sum + x[n * step];
  const T mean = sum / T(static_cast<double>(D));
  T squares = T(0);
  for (Index n = 0; n < D; ++n) {
    const T centred = x[n * step] - mean;
    squares = squares + centred * centred;
  }
  return {mean, T(1) / T(sqrt(squares / T(static_cast<double>(D)) + epsilon))};
}

/// y = (x - mean) rstd gamma + beta; gamma and beta may be null.
template <class T>
void normalise_row(const T* x, Index x_step, Index D, RowMoments<T> moments, const T* gamma,
                   Index gamma_step, const T* beta, Index beta_step, T* y, Index y_step) {
  for (Index n = 0; n < D; ++n) {
    T value = (x[n * x_step] - moments.mean) * moments.rstd;
    if (gamma != nullptr) value = value * gamma[n * gamma_step];
    if (beta != nullptr) value = value + beta[n * beta_step];
    y[n * y_step] = value;
  }
}

/// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy gamma, xhat = (x - mean) rstd; 0 where
/// dy is 0 throughout, whatever x holds.
template <class T>
void layer_norm_backward_row(const T* dy, Index dy_step, const T* x, Index x_step, Index D,
                             RowMoments<T> moments, const T* gamma, Index gamma_step, T* dx,
                             Index dx_step) {
  const auto g = [&](Index n) {
    return gamma == nullptr ? dy[n * dy_step] : dy[n * dy_step] * gamma[n * gamma_step];
  };
  T sum_g = T(0), sum_g_xhat = T(0);
  bool idle = true;
  for (Index n = 0; n < D; ++n) {
    const T gn = g(n);
    idle = idle && dy[n * dy_step] == T(0);
    sum_g = sum_g + gn;
    sum_g_xhat = sum_g_xhat + gn * ((x[n * x_step] - moments.mean) * moments.rstd);
  }
  const T count = T(static_cast<double>(D));
  const T mean_g = sum_g / count, mean_g_xhat = sum_g_xhat / count;
  for (Index n = 0; n < D; ++n) {
    const T xhat = (x[n * x_step] - moments.mean) * moments.rstd;
    dx[n * dx_step] = idle ? T(0) : moments.rstd * (g(n) - mean_g - xhat * mean_g_xhat);
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
