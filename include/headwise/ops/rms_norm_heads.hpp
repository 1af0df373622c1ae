// Root-mean-square normalisation of heads, each row of d by itself: of queries and keys as they lie
// in their projection, without a copy.
#pragma once

#include <type_traits>

#include "headwise/ops/head_rows.hpp"
#include "headwise/ops/rms_norm.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The numbers of a task's rows, one a row; none where x is absent.
template <class V>
auto head_numbers(const V& x, Index b, Index h, Index i, int axis) {
  using Row = kernels::Row<std::remove_pointer_t<decltype(x.data())>>;
  if (x.absent()) return Row{nullptr, 0};
  return Row{x.data() + b * x.stride(0) + h * x.stride(1) + i * x.stride(2), x.stride(axis)};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x rstd gamma, each row of each head by itself, rstd = 1 / sqrt(mean(x^2) + epsilon).
///
/// x         [B, H, L, d]   in; any strides
/// gamma     [d]            in; of all heads; {} for 1
/// epsilon                  added to the mean square; > 0
/// y         [B, H, L, d]   out; may be x
/// rstd      [B, H, L]      out; kept for backward, {} for inference
///
/// Outputs must not overlap anything else. The bits are those of the rows in a matrix.
/// Work    3 d + 4 FLOPs a row, and d for gamma.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Zhang, Sennrich, 2019, arXiv 1910.07467; of queries and keys: Dehghani et al., 2023,
///         arXiv 2302.05442.
template <Scalar T>
void rms_norm_forward(In<T, 4> x, In<std::type_identity_t<T>, 1> gamma,
                      std::type_identity_t<T> epsilon, Out<std::type_identity_t<T>, 4> y,
                      Out<std::type_identity_t<T>, 3> rstd, const Context& context = {}) {
  constexpr std::string_view function = "rms_norm_forward";
  const Index B = x.extent(0), H = x.extent(1), L = x.extent(2), d = x.extent(3);
  require_countable(function, "x", x);
  if (!gamma.absent()) require_shape(function, "gamma", gamma, Shape{d}, "the width of x");
  require(T(0) < epsilon && is_finite_option(epsilon), function, "epsilon is ",
          shown_option(epsilon), ", expected a small number above 0 like 1e-6");
  require_shape(function, "y", y, x.shape(), "the shape of x");
  if (!rstd.absent()) require_shape(function, "rstd", rstd, Shape{B, H, L}, "rows of x");
  require_apart(function, {"y", y}, {{"gamma", gamma}});
  require_same_or_apart(function, {"y", y}, {"x", x});
  require_apart(function, {"rstd", rstd}, {{"x", x}, {"gamma", gamma}, {"y", y}});
  if (B * H * L == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_head_rows(x, context, [&](Index b, Index h, Index i, Index rows, int axis) {
    run.rms_norm_rows({.x = detail::head_rows(x, b, h, i, axis),
                       .D = d,
                       .gamma = kernels::row(gamma),
                       .beta = {nullptr, 0},
                       .epsilon = epsilon,
                       .y = detail::head_rows(y, b, h, i, axis),
                       .mean = {nullptr, 0},
                       .rstd = detail::head_numbers(rstd, b, h, i, axis)},
                      0, rows);
  });
  const std::int64_t a_column = 3 + (gamma.absent() ? 0 : 1);
  const std::int64_t flops = d == 0 ? 0 : std::int64_t{B * H * L} * (d * a_column + 4);
  context.count_flops(flops, flops);
}

/// The gradients of rms_norm_forward of heads.
///
/// dy        [B, H, L, d]   in
/// x         [B, H, L, d]   in; as in forward
/// gamma     [d]            in; as in forward, {} for 1
/// rstd      [B, H, L]      in; from forward
/// dx        [B, H, L, d]   out: rstd (g - xhat mean(g xhat)), g = dy gamma, xhat = x rstd; may be
///                          dy; {} for none
/// dgamma    [d]            added to, one sequence of one head after the other: the sum over rows
///                          of dy xhat; {} for none
///
/// An element whose dy is 0 adds nothing, and a row whose dy is 0 throughout has dx 0, whatever x
/// holds. Outputs must not overlap anything else.
/// Work    7 d + 1 FLOPs a row for dx, 2 d with gamma, 3 d for the gradient of gamma.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/transformer_block.md.
template <Scalar T>
void rms_norm_backward(In<T, 4> dy, In<std::type_identity_t<T>, 4> x,
                       In<std::type_identity_t<T>, 1> gamma, In<std::type_identity_t<T>, 3> rstd,
                       Out<std::type_identity_t<T>, 4> dx, InOut<std::type_identity_t<T>, 1> dgamma,
                       const Context& context = {}) {
  constexpr std::string_view function = "rms_norm_backward";
  const Index B = x.extent(0), H = x.extent(1), L = x.extent(2), d = x.extent(3);
  require_countable(function, "x", x);
  if (!gamma.absent()) require_shape(function, "gamma", gamma, Shape{d}, "the width of x");
  require_shape(function, "dy", dy, x.shape(), "the shape of x");
  require_shape(function, "rstd", rstd, Shape{B, H, L}, "rows of x");
  if (!dx.absent()) require_shape(function, "dx", dx, x.shape(), "the shape of x");
  if (!dgamma.absent()) require_shape(function, "dgamma", dgamma, Shape{d}, "the width of x");
  require_apart(function, {"dx", dx}, {{"x", x}, {"gamma", gamma}, {"rstd", rstd}});
  require_same_or_apart(function, {"dx", dx}, {"dy", dy});
  require_apart(function, {"dgamma", dgamma},
                {{"dy", dy}, {"x", x}, {"gamma", gamma}, {"rstd", rstd}, {"dx", dx}});
  if (x.size() == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const auto rows_of = [&](Index b, Index h, Index i, Index rows, int axis) {
    return kernels::LayerNormBackwardRows<T>{.dy = detail::head_rows(dy, b, h, i, axis),
                                             .x = detail::head_rows(x, b, h, i, axis),
                                             .N = rows,
                                             .D = d,
                                             .gamma = kernels::row(gamma),
                                             .mean = {nullptr, 0},
                                             .rstd = detail::head_numbers(rstd, b, h, i, axis),
                                             .dx = dx.absent()
                                                       ? kernels::Matrix<T>{nullptr, 0, 0}
                                                       : detail::head_rows(dx, b, h, i, axis),
                                             .dgamma = kernels::row(dgamma),
                                             .dbeta = {nullptr, 0}};
  };
  // dx may be dy: the sums of dy come first.
  if (!dgamma.absent()) {
    detail::for_columns(context, B * H * L, d, [&](Index begin, Index end) {
      for (Index b = 0; b < B; ++b) {
        for (Index h = 0; h < H; ++h) run.rms_norm_columns(rows_of(b, h, 0, L, 2), begin, end);
      }
    });
  }
  if (!dx.absent()) {
    detail::for_head_rows(dy, context, [&](Index b, Index h, Index i, Index rows, int axis) {
      run.rms_norm_backward_rows(rows_of(b, h, i, rows, axis), 0, rows);
    });
  }
  const std::int64_t of_dx = dx.absent() ? 0 : 7 + (gamma.absent() ? 0 : 2);
  const std::int64_t a_column = of_dx + (dgamma.absent() ? 0 : 3);
  const std::int64_t flops = std::int64_t{B * H * L} * (d * a_column + (dx.absent() ? 0 : 1));
  context.count_flops(flops, flops);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
