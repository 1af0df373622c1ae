// One sequence of packed tensors, as a call for it alone takes it.
#pragma once

#include <type_traits>
#include <vector>

#include "headwise/tensor/tensor.hpp"

namespace headwise_tests {

using namespace headwise;

/// Rows starts[b] ... starts[b + 1] - 1 of x [rows, heads, width] as [1, heads, rows, width]: In of
/// a const tensor, else Out.
template <class PackedTensor>
auto sequence(PackedTensor& x, const std::vector<Index>& starts, Index b) {
  using T = std::remove_cvref_t<decltype(*x.data())>;
  const auto at = static_cast<std::size_t>(b);
  const Index heads = x.extent(1), width = x.extent(2), rows = starts[at + 1] - starts[at];
  return std::conditional_t<std::is_const_v<PackedTensor>, In<T, 4>, Out<T, 4>>(
      x.data() + starts[at] * heads * width, Shape{Index{1}, heads, rows, width},
      Shape{Index{0}, width, heads * width, Index{1}});
}

}  // namespace headwise_tests
