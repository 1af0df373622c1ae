// Extents of a tensor, and the strides that go with them.
#pragma once

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <ostream>
#include <span>
#include <string>

#include "headwise/tensor/error.hpp"

namespace headwise::inline v0_1 {

namespace detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_extents(std::span<const Index> extents,
                                                                 const char* expected) {
  raise<ShapeError>("Shape: extents are ", extents, ", expected ", expected);
}

/// Of any rank, so that a program holds it once.
[[gnu::noinline]] constexpr Index count_elements(std::span<const Index> extents) {
  Index count = 1;
  bool too_many = false;
  for (const Index extent : extents) {
    if (extent < 0) raise_extents(extents, "0 or more");
    too_many |= __builtin_mul_overflow(count, extent, &count);
  }
  if (too_many && std::find(extents.begin(), extents.end(), 0) == extents.end()) {
    raise_extents(extents, "a product below 2^63");
  }
  return count;  // 0 beside an extent of 0, however large the others are
}

}  // namespace detail

/// The extents of R axes, outermost first: `Shape{B, H, L, d}`. Any of them may be 0.
template <int R>
struct Shape {
  static_assert(R >= 1, "a shape has at least one axis");
  Index extents[std::size_t{R}] = {};  // outermost first; not a std::array, which a build without
                                       // optimisation asks by four calls

  /// All 0.
  constexpr Shape() = default;

  /// As many extents as there are axes.
  template <std::integral... Ints>
  requires(sizeof...(Ints) == R) constexpr Shape(Ints... extent)
      : extents{static_cast<Index>(extent)...} {}

  /// The extent of one axis, 0 to R - 1.
  [[gnu::always_inline]] constexpr Index operator[](int axis) const {
    assert(axis >= 0 && axis < R);
    return extents[axis];
  }
  /// The same, to be written to.
  [[gnu::always_inline]] constexpr Index& operator[](int axis) {
    assert(axis >= 0 && axis < R);
    return extents[axis];
  }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;

  /// The number of elements. Throws ShapeError for a negative extent or one more than Index holds.
  constexpr Index size() const { return detail::count_elements(extents); }

  /// How far apart neighbours along each axis lie in dense row-major storage.
  constexpr Shape row_major_strides() const {
    Shape strides;
    std::size_t step = 1;  // unsigned: beside an extent of 0 the others may be of any size
    for (int r = R - 1; r >= 0; --r) {
      strides[r] = static_cast<Index>(step);
      step *= static_cast<std::size_t>((*this)[r]);
    }
    return strides;
  }

  /// `[2, 3, 4]`
  std::string format() const { return format_extents(extents); }
};

/// `Shape{2, 3}` is a Shape<2>.
template <class... Ints>
Shape(Ints...) -> Shape<static_cast<int>(sizeof...(Ints))>;

/// Prints `[2, 3, 4]`.
template <int R>
std::ostream& operator<<(std::ostream& out, const Shape<R>& shape) {
  return out << shape.format();
}

/// Calls f(Shape<R>) for every index of a tensor of this shape, last axis fastest.
template <int R, class F>
void for_each_index(const Shape<R>& shape, F&& f) {
  const Index count = shape.size();
  Shape<R> index;
  for (Index n = 0; n < count; ++n) {
    f(index);
    for (int r = R - 1; r >= 0; --r) {
      if (++index[r] < shape[r]) break;
      index[r] = 0;
    }
  }
}

}  // namespace headwise::inline v0_1
