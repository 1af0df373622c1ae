// Inputs that a cache views until backward (numbers of T, or of 16 bits, whose type the cache does
// not name), and the rules of a cache that backward is given.
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

#include "headwise/runtime/context.hpp"
#include "headwise/tensor/error.hpp"
#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1 {

/// A view of floats, or of numbers of 16 bits, which floats() has as floats.
template <int R>
class ViewedFloats {
 public:
  /// The numbers of a narrow view as floats. Throws std::bad_alloc.
  using Widen = Tensor<float, R> (*)(const ViewedFloats& x, const Context& context);

  /// Absent.
  constexpr ViewedFloats() noexcept {}
  /// Of floats.
  constexpr ViewedFloats(const In<float, R>& x)
      : data_(x.data()), shape_(x.shape()), strides_(x.strides()) {}
  /// Of numbers of 16 bits, which `widens` makes floats of.
  template <NarrowFloat U>
  constexpr ViewedFloats(const In<U, R>& x, Widen widens)
      : data_(x.data()),
        shape_(x.shape()),
        strides_(x.strides()),
        stored_(detail::stored_as<U>),
        widen_(widens) {}

  /// The extents of all axes.
  constexpr const Shape<R>& shape() const { return shape_; }
  /// The extent of one axis.
  constexpr Index extent(int axis) const { return shape_[axis]; }
  /// Whether these are numbers of 16 bits.
  constexpr bool is_narrow() const { return stored_ != StoredAs::same; }

  /// These numbers. Throws ArgumentError unless they are of U: float, BFloat16 or Float16.
  template <class U>
  requires(std::same_as<U, float> || NarrowFloat<U>) In<U, R> as()
  const {
    constexpr StoredAs wanted = detail::stored_as<U>;
    require(stored_ == wanted, "ViewedFloats::as", "the input is of ", name_of(stored_),
            ", expected ", name_of(wanted));
    return {static_cast<const U*>(data_), shape_, strides_};
  }
  /// These floats. Throws ArgumentError where they are of 16 bits.
  operator In<float, R>() const { return as<float>(); }
  /// The view itself, or a tensor of the same numbers that is kept in `storage`. Throws
  /// std::bad_alloc.
  In<float, R> floats(Tensor<float, R>& storage, const Context& context) const {
    if (!is_narrow()) return as<float>();
    storage = widen_(*this, context);
    return storage;
  }

 private:
  static constexpr std::string_view name_of(StoredAs stored) {
    if (stored == StoredAs::same) return "floats";
    return stored == StoredAs::bf16 ? "BFloat16" : "Float16";
  }

  const void* data_ = nullptr;
  Shape<R> shape_, strides_;
  StoredAs stored_ = StoredAs::same;
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

/// Throws ArgumentError for a cache that forward has not been called with.
template <class Cache>
void require_filled(std::string_view function, const Cache& cache) {
  require(cache.filled, function, "the cache is empty: pass it to forward first");
}

/// Throws ShapeError unless what a cache views has this shape.
template <class View, int R, class... Whence>
void require_viewed_shape(std::string_view function, std::string_view argument, const View& x,
                          const Shape<R>& expected, const Whence&... whence) {
  if (x.shape() == expected) return;
  raise_shape(function, argument, x.shape().extents, expected.extents, {whence...});
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
