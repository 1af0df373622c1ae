// Layer normalisation, forward and backward.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1 {

/// Gain and offset of a layer norm, each [D] or absent.
template <class T>
struct LayerNormAffine {
  In<T, 1> gamma = {};  // [D]; {} for 1
  In<T, 1> beta = {};   // [D]; {} for 0
};

/// Where their gradients are added, each [D] or absent.
template <class T>
struct LayerNormGradients {
  InOut<T, 1> gamma = {};  // [D]; {} for none
  InOut<T, 1> beta = {};   // [D]; {} for none
};

/// What rows were normalised with, each [N]: written by forward, read by backward.
template <class View>
struct LayerNormMoments {
  View mean = {};  // [N]
  View rstd = {};  // [N]; 1 / sqrt(variance + epsilon)
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
void require_affine(std::string_view function, const LayerNormAffine<T>& affine, Index D) {
  const auto whence = ", the width of x";
  if (!affine.gamma.absent()) require_shape(function, "gamma", affine.gamma, Shape{D}, D, whence);
  if (!affine.beta.absent()) require_shape(function, "beta", affine.beta, Shape{D}, D, whence);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y = (x - mean) rstd gamma + beta, row by row, rstd = 1 / sqrt(variance + epsilon).
///
/// x                 [N, D]   in
/// affine.gamma      [D]      in; {} for 1
/// affine.beta       [D]      in; {} for 0
/// epsilon                    added to the variance (biased: divided by D); > 0
/// y                 [N, D]   out; may be x
/// moments.mean      [N]      out; kept for backward, {} for inference
/// moments.rstd      [N]      out; kept for backward, {} for inference
///
/// Outputs must not overlap anything else. Squares are numbers of T: a row that holds floats above
/// 1e19 overflows, and gives 0, or NaN where its sum overflows, too.
/// Work    7 D + 16 FLOPs a row, and D for each of gamma and beta.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv 1607.06450.
template <Scalar T>
void layer_norm_forward(In<T, 2> x, const LayerNormAffine<std::type_identity_t<T>>& affine,
                        std::type_identity_t<T> epsilon, Out<std::type_identity_t<T>, 2> y,
                        const LayerNormMoments<Out<std::type_identity_t<T>, 1>>& moments,
                        const Context& context = {}) {
  constexpr std::string_view function = "layer_norm_forward";
  const Index N = x.extent(0), D = x.extent(1);
  const Out<T, 1> mean = moments.mean, rstd = moments.rstd;
  require_countable(function, "x", x);
  detail::require_affine<T>(function, affine, D);
  require(T(0) < epsilon && is_finite_option(epsilon), function, "epsilon is ",
          shown_option(epsilon), ", expected a small number above 0 like 1e-5");
  require_shape(function, "y", y, x.shape(), "the shape of x");
  if (!mean.absent()) require_shape(function, "mean", mean, Shape{N}, "rows of x");
  if (!rstd.absent()) require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  require_apart(function, {"y", y}, {{"gamma", affine.gamma}, {"beta", affine.beta}});
  require_same_or_apart(function, {"y", y}, {"x", x});
  require_outputs_apart(function, {{"mean", mean}, {"rstd", rstd}},
                        {{"x", x}, {"gamma", affine.gamma}, {"beta", affine.beta}, {"y", y}});
  if (x.size() == 0 && mean.absent() && rstd.absent()) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::LayerNormRows<T> rows{kernels::matrix(x),
                                       D,
                                       kernels::row(affine.gamma),
                                       kernels::row(affine.beta),
                                       epsilon,
                                       kernels::matrix(y),
                                       kernels::row(mean),
                                       kernels::row(rstd)};
  detail::for_rows(context, N, D,
                   [&](Index begin, Index end) { run.layer_norm_rows(rows, begin, end); });
  const std::int64_t a_column =
      7 + (affine.gamma.absent() ? 0 : 1) + (affine.beta.absent() ? 0 : 1);
  const std::int64_t flops = D == 0 ? 0 : std::int64_t{N} * (D * a_column + 16);
  context.count_flops(flops, flops);
}

/// The gradients of layer_norm_forward.
///
/// dy                [N, D]   in
/// x                 [N, D]   in; as in forward
/// gamma             [D]      in; as in forward, {} for 1
/// moments           [N]      in; mean and rstd from forward
/// dx                [N, D]   out; may be dy; {} for none
/// gradients.gamma   [D]      added to: sum over rows of dy xhat; {} for none
/// gradients.beta    [D]      added to: sum over rows of dy; {} for none
///
/// An element whose dy is 0 adds nothing, and a row whose dy is 0 throughout has dx 0, whatever x
/// holds. Outputs must not overlap anything else.
/// Work    11 D + 2 FLOPs a row for dx, 2 D with gamma, 4 D and D for the gradients of gamma and
///         beta.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/layer_norm_backward.md.
template <Scalar T>
void layer_norm_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                         In<std::type_identity_t<T>, 1> gamma,
                         const LayerNormMoments<In<std::type_identity_t<T>, 1>>& moments,
                         Out<std::type_identity_t<T>, 2> dx,
                         const LayerNormGradients<std::type_identity_t<T>>& gradients,
                         const Context& context = {}) {
  constexpr std::string_view function = "layer_norm_backward";
  const Index N = x.extent(0), D = x.extent(1);
  const In<T, 1> mean = moments.mean, rstd = moments.rstd;
  const auto& [dgamma, dbeta] = gradients;
  require_countable(function, "x", x);
  detail::require_affine<T>(function, {gamma, {}}, D);
  require_shape(function, "dy", dy, x.shape(), "the shape of x");
  require_shape(function, "mean", mean, Shape{N}, "rows of x");
  require_shape(function, "rstd", rstd, Shape{N}, "rows of x");
  if (!dx.absent()) require_shape(function, "dx", dx, x.shape(), "the shape of x");
  if (!dgamma.absent()) require_shape(function, "dgamma", dgamma, Shape{D}, "the width of x");
  if (!dbeta.absent()) require_shape(function, "dbeta", dbeta, Shape{D}, "the width of x");
  require_apart(function, {"dx", dx}, {{"x", x}, {"gamma", gamma}, {"mean", mean}, {"rstd", rstd}});
  require_same_or_apart(function, {"dx", dx}, {"dy", dy});
  require_outputs_apart(
      function, {{"dgamma", dgamma}, {"dbeta", dbeta}},
      {{"dy", dy}, {"x", x}, {"gamma", gamma}, {"mean", mean}, {"rstd", rstd}, {"dx", dx}});
  if (N == 0 || D == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  const kernels::LayerNormBackwardRows<T> rows{kernels::matrix(dy),
                                               kernels::matrix(x),
                                               N,
                                               D,
                                               kernels::row(gamma),
                                               kernels::row(mean),
                                               kernels::row(rstd),
                                               kernels::matrix(dx),
                                               kernels::row(dgamma),
                                               kernels::row(dbeta)};
  // dx may be dy: the sums of dy come first.
  if (!dgamma.absent() || !dbeta.absent()) {
    detail::for_columns(context, N, D,
                        [&](Index begin, Index end) { run.layer_norm_columns(rows, begin, end); });
  }
  if (!dx.absent()) {
    detail::for_rows(context, N, D, [&](Index begin, Index end) {
      run.layer_norm_backward_rows(rows, begin, end);
    });
  }
  const std::int64_t of_dx = dx.absent() ? 0 : 11 + (gamma.absent() ? 0 : 2);
  const std::int64_t a_column = of_dx + (dgamma.absent() ? 0 : 4) + (dbeta.absent() ? 0 : 1);
  const std::int64_t flops = std::int64_t{N} * (D * a_column + (dx.absent() ? 0 : 2));
  context.count_flops(flops, flops);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
