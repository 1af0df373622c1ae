// Root-mean-square normalisation, forward and backward.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y = x rstd gamma, row by row, rstd = 1 / sqrt(mean(x^2) + epsilon).
///
/// x         [N, D]   in
/// gamma     [D]      in; {} for 1
/// epsilon            added to the mean square; > 0
/// y         [N, D]   out; may be x
/// rstd      [N]      out; kept for backward, {} for inference
///
/// Outputs must not overlap anything else. Squares are numbers of T: a row that holds floats above
/// 1e19 overflows, and gives 0.
/// Work    3 D + 4 FLOPs a row, and D for gamma.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv 1910.07467.
template <Scalar T>
void rms_norm_forward(In<T, 2> x, In<std::type_identity_t<T>, 1> gamma,
                      std::type_identity_t<T> epsilon, Out<std::type_identity_t<T>, 2> y,
                      Out<std::type_identity_t<T>, 1> rstd, const Context& context = {}) {
  constexpr std::string_view function = "rms_norm_forward";
  const Index N = x.extent(0), D = x.extent(1);
  require_countable(function, "x", x);
  if (!gamma.absent()) require_shape(function, "gamma", gamma, Shape{D}, "the width of x");
  require(T(0) < epsilon && is_finite_option(epsilon), function, "epsilon is ",
          shown_option(epsilon), ", expected a small number above 0 like 1e-6");
  require_shape(function, "y", y, x.shape(), "the shape of x");
  if (!rstd.absent()) require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  require_apart(function, {"y", y}, {{"gamma", gamma}});
  require_same_or_apart(function, {"y", y}, {"x", x});
  require_apart(function, {"rstd", rstd}, {{"x", x}, {"gamma", gamma}, {"y", y}});
  if (x.size() == 0 && rstd.absent()) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::LayerNormRows<T> rows{.x = kernels::matrix(x),
                                       .D = D,
                                       .gamma = kernels::row(gamma),
                                       .beta = {nullptr, 0},
                                       .epsilon = epsilon,
                                       .y = kernels::matrix(y),
                                       .mean = {nullptr, 0},
                                       .rstd = kernels::row(rstd)};
  detail::for_rows(context, N, D,
                   [&](Index begin, Index end) { run.rms_norm_rows(rows, begin, end); });
  const std::int64_t a_column = 3 + (gamma.absent() ? 0 : 1);
  const std::int64_t flops = D == 0 ? 0 : std::int64_t{N} * (D * a_column + 4);
  context.count_flops(flops, flops);
}

/// The gradients of rms_norm_forward.
///
/// dy        [N, D]   in
/// x         [N, D]   in; as in forward
/// gamma     [D]      in; as in forward, {} for 1
/// rstd      [N]      in; from forward
/// dx        [N, D]   out: rstd (g - xhat mean(g xhat)), g = dy gamma, xhat = x rstd; may be dy; {}
///                    for none
/// dgamma    [D]      added to: sum over rows of dy xhat; {} for none
///
/// An element whose dy is 0 adds nothing, and a row whose dy is 0 throughout has dx 0, whatever x
/// holds. Outputs must not overlap anything else.
/// Work    7 D + 1 FLOPs a row for dx, 2 D with gamma, 3 D for the gradient of gamma.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/transformer_block.md.
template <Scalar T>
void rms_norm_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                       In<std::type_identity_t<T>, 1> gamma, In<std::type_identity_t<T>, 1> rstd,
                       Out<std::type_identity_t<T>, 2> dx, InOut<std::type_identity_t<T>, 1> dgamma,
                       const Context& context = {}) {
  constexpr std::string_view function = "rms_norm_backward";
  const Index N = x.extent(0), D = x.extent(1);
  require_countable(function, "x", x);
  if (!gamma.absent()) require_shape(function, "gamma", gamma, Shape{D}, "the width of x");
  require_shape(function, "dy", dy, x.shape(), "the shape of x");
  require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  if (!dx.absent()) require_shape(function, "dx", dx, x.shape(), "the shape of x");
  if (!dgamma.absent()) require_shape(function, "dgamma", dgamma, Shape{D}, "the width of x");
  require_apart(function, {"dx", dx}, {{"x", x}, {"gamma", gamma}, {"rstd", rstd}});
  require_same_or_apart(function, {"dx", dx}, {"dy", dy});
  require_apart(function, {"dgamma", dgamma},
                {{"dy", dy}, {"x", x}, {"gamma", gamma}, {"rstd", rstd}, {"dx", dx}});
  if (N == 0 || D == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::LayerNormBackwardRows<T> rows{.dy = kernels::matrix(dy),
                                               .x = kernels::matrix(x),
                                               .N = N,
                                               .D = D,
                                               .gamma = kernels::row(gamma),
                                               .mean = {nullptr, 0},
                                               .rstd = kernels::row(rstd),
                                               .dx = kernels::matrix(dx),
                                               .dgamma = kernels::row(dgamma),
                                               .dbeta = {nullptr, 0}};
  // dx may be dy: the sums of dy come first.
  if (!dgamma.absent()) {
    detail::for_columns(context, N, D,
                        [&](Index begin, Index end) { run.rms_norm_columns(rows, begin, end); });
  }
  if (!dx.absent()) {
    detail::for_rows(context, N, D,
                     [&](Index begin, Index end) { run.rms_norm_backward_rows(rows, begin, end); });
  }
  const std::int64_t of_dx = dx.absent() ? 0 : 7 + (gamma.absent() ? 0 : 2);
  const std::int64_t a_column = of_dx + (dgamma.absent() ? 0 : 3);
  const std::int64_t flops = std::int64_t{N} * (D * a_column + (dx.absent() ? 0 : 1));
  context.count_flops(flops, flops);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
