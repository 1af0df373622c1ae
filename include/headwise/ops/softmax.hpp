// Softmax over the rows of a matrix, its gradient, and its Jacobian for reference.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// p = e^(x - max x) / sum e^(x - max x), row by row.
///
/// x   [N, M]   in
/// p   [N, M]   out; may be x
///
/// Subtracting the maximum changes nothing but keeps e^x in range: 1000 is no overflow. A row that
/// holds NaN or +infinity, or -infinity alone, becomes NaN: nothing here is masked.
/// Work    4 N M FLOPs: subtract, e^x, sum, divide.
/// Throws  ShapeError before anything is written.
/// Source  Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs",
/// 1990.
template <Scalar T>
void softmax_forward(In<T, 2> x, Out<std::type_identity_t<T>, 2> p, const Context& context = {}) {
  require_countable("softmax_forward", "x", x);
  require_shape("softmax_forward", "p", p, x.shape(), "the shape of x");
  require_distinct("softmax_forward", {"p", p});
  require_same_or_apart("softmax_forward", {"p", p}, {"x", x});
  if (x.extent(1) == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_rows(context, x.extent(0), x.extent(1), [&](Index begin, Index end) {
    run.softmax_rows(kernels::matrix(x), kernels::matrix(p), x.extent(1), begin, end);
  });
  context.count_flops(4 * std::int64_t{x.size()}, 4 * std::int64_t{x.size()});
}

/// dx = p (dp - rowsum(dp p)), row by row.
///
/// dp  [N, M]   in
/// p   [N, M]   in; what softmax_forward returned
/// dx  [N, M]   out; may be dp, must not overlap p
///
/// Work    4 N M FLOPs.
/// Throws  ShapeError before anything is written.
/// Source  docs/derivations/attention_backward.md, step 4c.
template <Scalar T>
void softmax_backward(In<T, 2> dp, In<std::type_identity_t<T>, 2> p,
                      Out<std::type_identity_t<T>, 2> dx, const Context& context = {}) {
  require_countable("softmax_backward", "dp", dp);
  require_shape("softmax_backward", "p", p, dp.shape(), "the shape of dp");
  require_shape("softmax_backward", "dx", dx, dp.shape(), "the shape of dp");
  require_apart("softmax_backward", {"dx", dx}, {{"p", p}});
  require_same_or_apart("softmax_backward", {"dx", dx}, {"dp", dp});
  if (dp.extent(1) == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_rows(context, dp.extent(0), dp.extent(1), [&](Index begin, Index end) {
    run.softmax_backward_rows(kernels::matrix(dp), kernels::matrix(p), kernels::matrix(dx),
                              dp.extent(1), begin, end);
  });
  context.count_flops(4 * std::int64_t{dp.size()}, 4 * std::int64_t{dp.size()});
}

/// The Jacobian of softmax at its output p: J = diag(p) - p p^T, J(i, j) = dp_i / dx_j.
///
/// p          [M]      in
/// jacobian   [M, M]   out; must not overlap p
///
/// softmax_backward is J^T dp without the M x M matrix.
/// Work    2 M^2 FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void softmax_jacobian(In<T, 1> p, Out<std::type_identity_t<T>, 2> jacobian) {
  const Index M = p.extent(0);
  require_countable("softmax_jacobian", "p", p);
  require_shape("softmax_jacobian", "jacobian", jacobian, Shape{M, M}, "the length of p, twice");
  require_apart("softmax_jacobian", {"jacobian", jacobian}, {{"p", p}});
  for (Index i = 0; i < M; ++i) {
    for (Index j = 0; j < M; ++j) {
      jacobian(i, j) = i == j ? p(i) * (T(1) - p(j)) : T(0) - p(i) * p(j);
    }
  }
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
