// Strided views: a pointer, extents, strides. They own nothing and copy nothing.
//
// A function's signature says what it does with each: In is read, Out is overwritten, InOut is
// added to. TensorView and Tensor pass to all three with the scalar type deduced, because the
// three are their bases. Const flows inward: a const Tensor passes only as In.
#pragma once

#include <cassert>
#include <concepts>
#include <span>
#include <type_traits>

#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// What owns its elements is derived from this; see Tensor.
struct OwnsElements {};

template <class U>
concept OwnsItsElements = std::derived_from<std::remove_const_t<U>, OwnsElements>;

/// A tensor that is read. `{}` is an absent one. Elements lie where their type may: an address that
/// T is not aligned for is the caller's fault, and is not found out.
template <class T, int R>
class In {
 public:
  /// The type of an element.
  using value_type = T;
  /// The number of axes.
  static constexpr int rank = R;
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = In<T, Q>;

  /// An absent tensor.
  constexpr In() noexcept {}  // not defaulted: g++ 12 fails at its exception specification

  /// Dense row-major storage of this shape.
  constexpr In(const T* data, const Shape<R>& shape) : In(data, shape, shape.row_major_strides()) {}

  /// Element (i, j, ...) is data[i strides[0] + j strides[1] + ...].
  constexpr In(const T* data, const Shape<R>& shape, const Shape<R>& strides)
      : data_(data), shape_(shape), strides_(strides) {}

  /// Element (0, 0, ...); null for an absent tensor.
  constexpr const T* data() const { return data_; }
  /// The extents of all axes.
  constexpr const Shape<R>& shape() const { return shape_; }
  /// How far apart neighbours along each axis lie, in elements.
  constexpr const Shape<R>& strides() const { return strides_; }
  /// The extent of one axis.
  constexpr Index extent(int axis) const { return shape_[axis]; }
  /// The stride of one axis.
  constexpr Index stride(int axis) const { return strides_[axis]; }
  /// The number of elements. Throws ShapeError where it cannot be counted.
  constexpr Index size() const { return shape_.size(); }
  /// Whether this is `{}`.
  constexpr bool absent() const { return data_ == nullptr && shape_ == Shape<R>(); }

  /// Whether the elements lie one behind the other in row-major order.
  constexpr bool dense() const {
    if (size() == 0) return true;
    Index step = 1;
    for (int r = R - 1; r >= 0; --r) {
      if (shape_[r] != 1 && strides_[r] != step) return false;
      step *= shape_[r];
    }
    return true;
  }

  /// Element (i, j, ...); its bounds are an assertion.
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) constexpr const T& operator()(Ints... index) const {
    return data_[offset(Shape<R>(index...))];
  }
  /// Element `index`.
  constexpr const T& operator()(const Shape<R>& index) const { return data_[offset(index)]; }

  /// How far element `index` lies behind element (0, 0, ...).
  constexpr Index offset(const Shape<R>& index) const {
    Index sum = 0;
    for (int r = 0; r < R; ++r) {
      assert(index[r] >= 0 && index[r] < shape_[r]);
      sum += index[r] * strides_[r];
    }
    return sum;
  }

 private:
  const T* data_ = nullptr;
  Shape<R> shape_;
  Shape<R> strides_;
};

/// A tensor that is overwritten. What it held before is never read.
///
/// Taken by value, as all operations do: a const Tensor does not become one then, but it would bind
/// to a parameter `const Out&`, since Tensors are views.
template <class T, int R>
class Out : public In<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = Out<T, Q>;

  /// An absent tensor.
  constexpr Out() noexcept {}
  /// Dense row-major storage of this shape.
  constexpr Out(T* data, const Shape<R>& shape) : In<T, R>(data, shape), data_(data) {}
  /// Element (i, j, ...) is data[i strides[0] + j strides[1] + ...].
  constexpr Out(T* data, const Shape<R>& shape, const Shape<R>& strides)
      : In<T, R>(data, shape, strides), data_(data) {}

  /// The elements of a Tensor.
  template <OwnsItsElements U>
  requires(!std::is_const_v<U> && std::derived_from<U, Out<T, R>>) constexpr Out(U& tensor)
      : Out(tensor.data(), tensor.shape(), tensor.strides()) {}
  template <OwnsItsElements U>
  requires std::derived_from<U, Out<T, R>> Out(const U& tensor)
  = delete;  // a const Tensor is not written to

  /// Element (0, 0, ...); null for an absent tensor.
  constexpr T* data() const { return data_; }

  /// Element (i, j, ...); its bounds are an assertion.
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) constexpr T& operator()(Ints... index) const {
    return data_[this->offset(Shape<R>(index...))];
  }
  /// Element `index`.
  constexpr T& operator()(const Shape<R>& index) const { return data_[this->offset(index)]; }

 private:
  T* data_ = nullptr;
};

/// A tensor that is added to: what it holds before the call is kept.
template <class T, int R>
class InOut : public Out<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = InOut<T, Q>;
  using Out<T, R>::Out;
  /// An absent tensor.
  constexpr InOut() noexcept {}
  /// Adds to what could be overwritten.
  explicit constexpr InOut(const Out<T, R>& out) : Out<T, R>(out) {}
};

/// A view for keeping: what users build over their own memory.
template <class T, int R>
class TensorView : public InOut<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = TensorView<T, Q>;
  using InOut<T, R>::InOut;
  constexpr TensorView() noexcept {}
};

/// A view for keeping that only reads.
template <class T, int R>
class TensorView<const T, R> : public In<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = TensorView<const T, Q>;
  using In<T, R>::In;
  constexpr TensorView() noexcept {}
  /// Keeps what was passed in.
  constexpr TensorView(const In<T, R>& view) : In<T, R>(view) {}
};

/// A tensor that is read as long as the options live that name it: one without a name would be gone
/// before, and does not compile.
template <class T, int R>
class LastingIn : public In<T, R> {
 public:
  /// The same kind of view with another number of axes.
  template <int Q>
  using with_rank = LastingIn<T, Q>;
  using In<T, R>::In;
  constexpr LastingIn() noexcept {}
  /// Keeps what was passed in.
  constexpr LastingIn(const In<T, R>& view) : In<T, R>(view) {}
  template <OwnsItsElements U>
  requires std::derived_from<U, In<T, R>> LastingIn(const U&& tensor)
  = delete;  // it would be gone before it is read
};

/// The same of numbers in a row: a view of them, which a vector without a name does not become.
template <class T>
class LastingSpan : public std::span<const T> {
 public:
  constexpr LastingSpan() noexcept {}
  /// Keeps what was passed in.
  ///@{
  constexpr LastingSpan(std::span<const T> view) : std::span<const T>(view) {}
  constexpr LastingSpan(std::span<T> view) : std::span<const T>(view) {}
  ///@}
  /// Views a range that has a name.
  template <class Range>
  requires std::constructible_from<std::span<const T>, Range&> constexpr LastingSpan(Range& range)
      : std::span<const T>(range) {}
  template <class Range>
  requires(!std::derived_from<Range, std::span<const T>>) LastingSpan(const Range&& temporary)
  = delete;  // it would be gone before it is read
};

/// A vector over memory of the caller's.
template <class T>
using View1 = TensorView<T, 1>;
/// A matrix over memory of the caller's.
template <class T>
using View2 = TensorView<T, 2>;
/// Three axes, as [B, L, D], over memory of the caller's.
template <class T>
using View3 = TensorView<T, 3>;
/// Four axes, as [B, H, L, d], over memory of the caller's.
template <class T>
using View4 = TensorView<T, 4>;

}  // namespace headwise::inline v0_1
