// Tensors of dual numbers: put together from values and a direction, and taken apart again. Taking
// apart is a view: the derivatives are every second number of the storage.
#pragma once

#include <type_traits>

#include "headwise/tensor/dual.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Number `part` of each element, 0 the value and 1 the derivative.
template <class V>
auto part_of_dual(const V& view, Index part) {
  using Number = typename V::value_type;
  using T = decltype(Number::value);
  static_assert(sizeof(Number) == 2 * sizeof(T) && std::is_standard_layout_v<Number>);
  constexpr int rank = V::rank;
  auto strides = view.strides();
  for (int r = 0; r < rank; ++r) strides[r] *= 2;
  using Part =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data())>>, const T, T>;
  auto* const begin = reinterpret_cast<Part*>(view.data());
  using View = std::conditional_t<std::is_const_v<Part>, In<T, rank>, TensorView<T, rank>>;
  return View(begin == nullptr ? begin : begin + part, view.shape(), strides);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// What tensors of dual numbers are views of.
template <class V>
concept DualViewable = Viewable<V> && requires(V&& x) {
  x.data()->derivative;
};

/// The values of dual numbers, [...] as they are: a view, to be written where they are.
template <DualViewable V>
auto values(V&& x) {
  return detail::part_of_dual(as_view(x), 0);
}

/// Their derivatives, [...] as they are: a view, to be written where they are.
template <DualViewable V>
auto derivatives(V&& x) {
  return detail::part_of_dual(as_view(x), 1);
}

/// x + u e: a point and the direction in which it moves. (Without one it is convert<Dual<T>>(x).)
///
/// x   [...]   in
/// u   [...]   in; the shape of x
///
/// Throws ShapeError unless the shapes agree; std::bad_alloc.
template <Scalar T, int R>
Tensor<Dual<T>, R> along(In<T, R> x, In<std::type_identity_t<T>, R> u) {
  require_countable("along", "x", x);
  require_shape("along", "u", u, x.shape(), "the shape of x");
  auto result = Tensor<Dual<T>, R>::uninitialized(x.shape());
  for_each_index(x.shape(), [&](const Shape<R>& at) { result(at) = {x(at), u(at)}; });
  return result;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
