// Tensors as text, nested in brackets as NumPy prints them.
#pragma once

#include <ostream>

#include "headwise/tensor/dual.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T, int R>
void print_axis(std::ostream& out, const In<T, R>& tensor, Shape<R> index, int axis) {
  if (axis == R) {
    out << tensor(index);
    return;
  }
  out << '[';
  for (Index i = 0; i < tensor.extent(axis); ++i) {
    if (i != 0 && axis == R - 1) out << ", ";
    if (i != 0 && axis < R - 1) {
      out << std::string(static_cast<std::size_t>(R - 1 - axis), '\n')
          << std::string(static_cast<std::size_t>(axis) + 1, ' ');
    }
    index[axis] = i;
    print_axis(out, tensor, index, axis + 1);
  }
  out << ']';
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// (value, derivative), as std::complex prints its parts.
template <class T>
std::ostream& operator<<(std::ostream& out, const Dual<T>& x) {
  return out << '(' << x.value << ", " << x.derivative << ')';
}

/// All elements, with the stream's own precision and width for each.
template <class T, int R>
std::ostream& operator<<(std::ostream& out, const In<T, R>& tensor) {
  detail::print_axis(out, tensor, Shape<R>(), 0);
  return out;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
