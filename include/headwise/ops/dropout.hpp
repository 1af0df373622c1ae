// Dropout of a matrix, element by element. The mask is drawn from its position: nothing is stored.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/score/dropout_mask.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// dropout_forward and dropout_backward, by the mask of what is dropped.
///@{
template <class T>
void drop_forward(In<T, 2> x, const Dropout& dropout, DropoutStream of, Out<T, 2> y,
                  const Context& context) {
  constexpr std::string_view function = "dropout_forward";
  require_countable(function, "x", x);
  require_shape(function, "y", y, x.shape(), "the shape of x");
  require_distinct(function, {"y", y});
  require_same_or_apart(function, {"y", y}, {"x", x});
  dropout.require_valid(function);
  if (x.size() == 0) return;
  const DropoutMask mask(dropout, of);
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  for_rows(context, x.extent(0), x.extent(1), [&](Index begin, Index end) {
    if (mask.active()) {
      return run.drop_rows(mask, kernels::matrix(x), kernels::matrix(y), x.extent(1), begin, end);
    }
    for (Index n = begin; n < end; ++n) {
      for (Index m = 0; m < x.extent(1); ++m) y(n, m) = x(n, m);
    }
  });
  if (mask.active()) context.count_flops(x.size(), x.size());
}
template <class T>
void drop_backward(In<T, 2> dy, const Dropout& dropout, DropoutStream of, Out<T, 2> dx,
                   const Context& context) {
  constexpr std::string_view function = "dropout_backward";
  require_countable(function, "dy", dy);
  require_shape(function, "dx", dx, dy.shape(), "the shape of dy");
  require_distinct(function, {"dx", dx});
  require_same_or_apart(function, {"dx", dx}, {"dy", dy});
  dropout.require_valid(function);
  drop_forward(dy, dropout, of, dx, context);
}
///@}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

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
  detail::drop_forward<T>(x, dropout, DropoutStream::output, y, context);
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
  detail::drop_backward<T>(dy, dropout, DropoutStream::output, dx, context);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
