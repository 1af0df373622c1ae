// The sum of two matrices: what joins a branch to what it started from.
#pragma once

#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = a + b, element by element. (Its backward hands dy to both.)
///
/// a   [N, D]   in
/// b   [N, D]   in
/// y   [N, D]   out; may be a or b
///
/// Work    N D FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void add_forward(In<T, 2> a, In<std::type_identity_t<T>, 2> b, Out<std::type_identity_t<T>, 2> y,
                 const Context& context = {}) {
  require_countable("add_forward", "a", a);
  require_shape("add_forward", "b", b, a.shape(), "the shape of a");
  require_shape("add_forward", "y", y, a.shape(), "the shape of a");
  require_distinct("add_forward", {"y", y});
  require_same_or_apart("add_forward", {"y", y}, {"a", a});
  require_same_or_apart("add_forward", {"y", y}, {"b", b});
  if (a.size() == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_here<T>();
  detail::for_rows(context, a.extent(0), a.extent(1), [&](Index begin, Index end) {
    run.add_elements(kernels::matrix(a), kernels::matrix(b), kernels::matrix(y), a.extent(1), begin,
                     end);
  });
  context.count_flops(a.size(), a.size());
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
