// Rows of heads [B, H, L, d], cut into tasks that go along memory: where heads lie between each
// other, as in a projection, token by token, else head by head.
#pragma once

#include <algorithm>
#include <type_traits>

#include "headwise/kernels/matrix.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// run(b, h, i, rows, axis) for tasks over x [B, H, L, d]: `rows` rows from that of head h and
/// token i on, which follow one another along axis 1, the heads of one token, or 2, the tokens of a
/// head.
template <class T, class F>
void for_head_rows(const In<T, 4>& x, const Context& context, const F& run) {
  const Index H = x.extent(1), L = x.extent(2), d = x.extent(3);
  const auto magnitude = [](Index stride) { return stride < 0 ? -stride : stride; };
  const bool heads_inside = magnitude(x.stride(1)) < magnitude(x.stride(2));
  const Index rows = std::max<Index>(1, elements_of_rows / std::max<Index>(1, H * d));
  const Index blocks = count_parts(L, rows);
  const auto task = [&](Index t, Index) {
    const Index b = t / blocks, begin = t % blocks * rows;
    const Index end = std::min<Index>(L, begin + rows);
    if (heads_inside) {
      for (Index i = begin; i < end; ++i) run(b, Index{0}, i, H, 1);
    } else {
      for (Index h = 0; h < H; ++h) run(b, h, begin, end - begin, 2);
    }
  };
  context.executor.run(x.extent(0) * blocks, task);
}

/// Rows of x from that of head h and token i on, one another along `axis`.
template <class V>
auto head_rows(const V& x, Index b, Index h, Index i, int axis) {
  auto* const at = x.data() + b * x.stride(0) + h * x.stride(1) + i * x.stride(2);
  return kernels::Matrix<std::remove_pointer_t<decltype(x.data())>>{at, x.stride(axis),
                                                                    x.stride(3)};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
