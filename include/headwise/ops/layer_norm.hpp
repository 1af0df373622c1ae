// Layer normalisation, forward and backward.
#pragma once

#include <type_traits>

#include "headwise/kernels/column_sums.hpp"
#include "headwise/kernels/layer_norm.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
const T* data_or_null(const In<T, 1>& x) {
  return x.absent() ? nullptr : x.data();
}

template <class T>
void require_affine(std::string_view function, const In<T, 1>& gamma, const In<T, 1>& beta,
                    Index D) {
  const auto whence = [&] { return std::to_string(D) + ", the width of x"; };
  if (!gamma.absent()) require_shape(function, "gamma", gamma, Shape{D}, whence);
  if (!beta.absent()) require_shape(function, "beta", beta, Shape{D}, whence);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = (x - mean) rstd gamma + beta, row by row, rstd = 1 / sqrt(variance + epsilon).
///
/// x      [N, D]   in
/// gamma  [D]      in; {} for 1
/// beta   [D]      in; {} for 0
/// epsilon         added to the variance (biased: divided by D); > 0
/// y      [N, D]   out; may be x
/// mean   [N]      out; kept for backward, {} for inference
/// rstd   [N]      out; kept for backward, {} for inference
///
/// Work    6 D + 5 FLOPs a row, and D for each of gamma and beta.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv 1607.06450.
template <Scalar T>
void layer_norm_forward(In<T, 2> x, In<std::type_identity_t<T>, 1> gamma,
                        In<std::type_identity_t<T>, 1> beta, std::type_identity_t<T> epsilon,
                        Out<std::type_identity_t<T>, 2> y, Out<std::type_identity_t<T>, 1> mean,
                        Out<std::type_identity_t<T>, 1> rstd, const Context& context = {}) {
  const Index N = x.extent(0), D = x.extent(1);
  detail::require_affine<T>("layer_norm_forward", gamma, beta, D);
  require(T(0) < epsilon, "layer_norm_forward", "epsilon is not above 0");
  require_shape("layer_norm_forward", "y", y, x.shape(), "the shape of x");
  if (!mean.absent()) require_shape("layer_norm_forward", "mean", mean, Shape{N}, "rows of x");
  if (!rstd.absent()) require_shape("layer_norm_forward", "rstd", rstd, Shape{N}, "rows of x");
  if (N == 0 || D == 0) return;
  const auto task = [&](Index n, Index) {
    const T* row = &x(n, Index{0});
    const auto moments = kernels::row_moments(row, x.stride(1), D, epsilon);
    kernels::normalise_row(row, x.stride(1), D, moments, detail::data_or_null(gamma),
                           gamma.stride(0), detail::data_or_null(beta), beta.stride(0),
                           &y(n, Index{0}), y.stride(1));
    if (!mean.absent()) mean(n) = moments.mean;
    if (!rstd.absent()) rstd(n) = moments.rstd;
  };
  context.executor.run(N, task);
  const std::int64_t flops =
      std::int64_t{N} * (D * (6 + (gamma.absent() ? 0 : 1) + (beta.absent() ? 0 : 1)) + 5);
  context.count_flops(flops, flops);
}

/// The gradients of layer_norm_forward.
///
/// dy      [N, D]   in
/// x       [N, D]   in; as in forward
/// gamma   [D]      in; as in forward, {} for 1
/// mean    [N]      in; from forward
/// rstd    [N]      in; from forward
/// dx      [N, D]   out; may be dy where dgamma and dbeta are {}
/// dgamma  [D]      added to: sum over rows of dy xhat; {} for none
/// dbeta   [D]      added to: sum over rows of dy; {} for none
///
/// Throws  ShapeError before anything is written.
template <Scalar T>
void layer_norm_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                         In<std::type_identity_t<T>, 1> gamma, In<std::type_identity_t<T>, 1> mean,
                         In<std::type_identity_t<T>, 1> rstd, Out<std::type_identity_t<T>, 2> dx,
                         InOut<std::type_identity_t<T>, 1> dgamma,
                         InOut<std::type_identity_t<T>, 1> dbeta, const Context& context = {}) {
  const Index N = x.extent(0), D = x.extent(1);
  detail::require_affine<T>("layer_norm_backward", gamma, {}, D);
  require_shape("layer_norm_backward", "dy", dy, x.shape(), "the shape of x");
  require_shape("layer_norm_backward", "mean", mean, Shape{N}, "rows of x");
  require_shape("layer_norm_backward", "rstd", rstd, Shape{N}, "rows of x");
  require_shape("layer_norm_backward", "dx", dx, x.shape(), "the shape of x");
  if (!dgamma.absent()) {
    require_shape("layer_norm_backward", "dgamma", dgamma, Shape{D}, "the width of x");
  }
  if (!dbeta.absent()) {
    require_shape("layer_norm_backward", "dbeta", dbeta, Shape{D}, "the width of x");
  }
  if (N == 0 || D == 0) return;
  if (!dgamma.absent()) {
    const auto term = [&](Index i, Index n) {
      return dy(i, n) == T(0) ? T(0) : T(dy(i, n) * ((x(i, n) - mean(i)) * rstd(i)));
    };
    kernels::add_column_sums(N, D, term, dgamma.data(), dgamma.stride(0));
  }
  if (!dbeta.absent()) {
    const auto term = [&](Index i, Index n) { return dy(i, n); };
    kernels::add_column_sums(N, D, term, dbeta.data(), dbeta.stride(0));
  }
  const auto task = [&](Index n, Index) {
    kernels::layer_norm_backward_row(&dy(n, Index{0}), dy.stride(1), &x(n, Index{0}), x.stride(1),
                                     D, kernels::RowMoments<T>{mean(n), rstd(n)},
                                     detail::data_or_null(gamma), gamma.stride(0), &dx(n, Index{0}),
                                     dx.stride(1));
  };
  context.executor.run(N, task);
  const std::int64_t flops =
      std::int64_t{N} *
      (D * (11 + (gamma.absent() ? 0 : 2) + (dgamma.absent() ? 0 : 4) + (dbeta.absent() ? 0 : 1)) +
       2);
  context.count_flops(flops, flops);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
