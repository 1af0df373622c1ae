// Inputs that a cache views until backward: numbers of T, or of 16 bits, whose type the cache does
// not name.
#pragma once

#include <concepts>
#include <type_traits>

#include "headwise/runtime/context.hpp"
#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1 {

/// A view of floats. Of numbers of 16 bits it has extents and strides, but no address; floats() has
/// them as floats.
template <int R>
class ViewedFloats : public In<float, R> {
 public:
  /// The numbers of a narrow view as floats. Throws std::bad_alloc.
  using Widen = Tensor<float, R> (*)(const ViewedFloats& x, const Context& context);

  /// Absent.
  constexpr ViewedFloats() noexcept {}
  /// Of floats.
  constexpr ViewedFloats(const In<float, R>& x) : In<float, R>(x) {}
  /// Of numbers of 16 bits, which `widens` knows the type of.
  constexpr ViewedFloats(const void* data, const Shape<R>& shape, const Shape<R>& strides,
                         Widen widens)
      : In<float, R>(nullptr, shape, strides), narrow_data_(data), widen_(widens) {}

  /// Whether these are numbers of 16 bits.
  constexpr bool narrow() const { return widen_ != nullptr; }
  /// These numbers, of their type.
  template <NarrowFloat U>
  In<U, R> as() const {
    return {static_cast<const U*>(narrow_data_), this->shape(), this->strides()};
  }
  /// The view itself, or a tensor of the same numbers that is kept in `storage`. Throws
  /// std::bad_alloc.
  In<float, R> floats(Tensor<float, R>& storage, const Context& context) const {
    if (!narrow()) return *this;
    storage = widen_(*this, context);
    return storage;
  }

 private:
  const void* narrow_data_ = nullptr;
  Widen widen_ = nullptr;
};

/// An input of a module of T, as its cache views it.
template <Scalar T, int R>
using ViewedInput = std::conditional_t<std::same_as<T, float>, ViewedFloats<R>, In<T, R>>;

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The numbers of a view, to be read as T; in `storage` where the view is of 16 bits. Throws
/// std::bad_alloc.
///@{
template <class T, int R>
In<T, R> viewed_numbers(const In<T, R>& x, Tensor<T, R>&, const Context&) {
  return x;
}
template <int R>
In<float, R> viewed_numbers(const ViewedFloats<R>& x, Tensor<float, R>& storage,
                            const Context& context) {
  return x.floats(storage, context);
}
///@}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
