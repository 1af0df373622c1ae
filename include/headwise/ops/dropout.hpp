// Dropout of a matrix, element by element. The mask is drawn from its position: nothing is stored.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/score/dropout_mask.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// y = x / (1 - rate) where kept, 0 elsewhere; y = x at rate 0.
///
/// x        [N, M]   in
/// dropout  rate in [0, 1], seed, step: row n and column m draw from (seed, step, n, m)
/// y        [N, M]   out; may be x
///
/// Work    N M FLOPs where the rate is not 0.
/// Throws  ShapeError or ArgumentError before anything is written.
/// Source  Srivastava et al., "Dropout", JMLR 15, 2014.
template <Scalar T>
void dropout_forward(In<T, 2> x, const Dropout& dropout, Out<std::type_identity_t<T>, 2> y,
                     const Context& context = {}) {
  require_countable("dropout_forward", "x", x);
  require_shape("dropout_forward", "y", y, x.shape(), "the shape of x");
  require_distinct("dropout_forward", {"y", y});
  require_same_or_apart("dropout_forward", {"y", y}, {"x", x});
  dropout.require_valid("dropout_forward");
  if (x.size() == 0) return;
  const DropoutMask mask(dropout, DropoutStream::output);
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_rows(context, x.extent(0), x.extent(1), [&](Index begin, Index end) {
    if (mask.active()) {
      return run.drop_rows(mask, kernels::matrix(x), kernels::matrix(y), x.extent(1), begin, end);
    }
    for (Index n = begin; n < end; ++n) {
      for (Index m = 0; m < x.extent(1); ++m) y(n, m) = x(n, m);
    }
  });
  if (mask.active()) context.count_flops(x.size(), x.size());
}

/// dx = dy / (1 - rate) where forward kept the element, 0 elsewhere: the same mask in reverse.
///
/// dy       [N, M]   in
/// dropout  as in forward
/// dx       [N, M]   out; may be dy
///
/// Work    N M FLOPs where the rate is not 0.
/// Throws  ShapeError or ArgumentError before anything is written.
template <Scalar T>
void dropout_backward(In<T, 2> dy, const Dropout& dropout, Out<std::type_identity_t<T>, 2> dx,
                      const Context& context = {}) {
  require_countable("dropout_backward", "dy", dy);
  require_shape("dropout_backward", "dx", dx, dy.shape(), "the shape of dy");
  require_distinct("dropout_backward", {"dx", dx});
  require_same_or_apart("dropout_backward", {"dx", dx}, {"dy", dy});
  dropout.require_valid("dropout_backward");
  dropout_forward(dy, dropout, dx, context);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
