// What a kernel sees of a matrix: a pointer and two strides. No shapes, no ownership, no checks.
#pragma once

#include "headwise/simd/constants.hpp"
#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// Element (i, j) is data[i row + j column]. Inlined into kernels, as in HeadScore. Handed on by
/// reference: a copy would wait for what it copies (docs/architecture.md).
template <class T>
struct Matrix {
  T* data;
  Index row;
  Index column;

  T& operator()(Index i, Index j) const { return data[i * row + j * column]; }
  HEADWISE_INLINE Matrix transposed() const { return {data, column, row}; }
  HEADWISE_INLINE Matrix from(Index i, Index j) const {
    return {data + i * row + j * column, row, column};
  }
  operator Matrix<const T>() const { return {data, row, column}; }
};

/// A matrix of elements of another type than is computed with. Null where there is none.
struct StoredMatrix {
  const void* data = nullptr;
  Index row = 0;
  Index column = 0;

  template <class U>
  Matrix<const U> as() const {
    return {static_cast<const U*>(data), row, column};
  }
  template <class U>
  static StoredMatrix of(const Matrix<const U>& x) {
    return {x.data, x.row, x.column};
  }
  /// From row i on, of either kind of 16 bits: two bytes a number.
  StoredMatrix from(Index i) const { return of<BFloat16>(as<BFloat16>().from(i, 0)); }
};

/// Rows of 16 bits that stand in place of those of numbers, or none.
struct StoredRows {
  StoredAs as = StoredAs::same;
  StoredMatrix rows = {};
};
/// Rows of numbers, or what is stored in their place.
template <class U, class T>
HEADWISE_INLINE Matrix<const U> rows_as(const Matrix<const T>& numbers,
                                        const StoredMatrix& stored) {
  if constexpr (std::same_as<U, T>) {
    return numbers;
  } else {
    return stored.as<U>();
  }
}

/// Element n is data[n step]. Null where there is none.
template <class T>
struct Row {
  T* data;
  Index step;

  T& operator[](Index n) const { return data[n * step]; }
  operator Row<const T>() const { return {data, step}; }
};

template <class T>
Row<const T> row(const In<T, 1>& view) {
  return {view.absent() ? nullptr : view.data(), view.stride(0)};
}
template <class T>
Row<T> row(const Out<T, 1>& view) {
  return {view.absent() ? nullptr : view.data(), view.stride(0)};
}
/// Row i of a matrix.
template <class T>
Row<T> row(const Matrix<T>& matrix, Index i) {
  return {matrix.data + i * matrix.row, matrix.column};
}

/// Whether a view has no elements. From its pointer, which may be null, no step may be taken.
template <class T, int R>
bool is_empty(const In<T, R>& view) {
  bool empty = false;
  for (int r = 0; r < R; ++r) empty = empty || view.extent(r) == 0;
  return empty;
}

template <class T>
Matrix<const T> matrix(const In<T, 2>& view) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data(), view.stride(0), view.stride(1)};
}
template <class T>
Matrix<T> matrix(const Out<T, 2>& view) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data(), view.stride(0), view.stride(1)};
}
/// The matrix of batch element b and head h.
template <class T>
Matrix<const T> matrix(const In<T, 4>& view, Index b, Index h) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data() + b * view.stride(0) + h * view.stride(1), view.stride(2), view.stride(3)};
}
template <class T>
Matrix<T> matrix(const Out<T, 4>& view, Index b, Index h) {
  if (is_empty(view)) return {view.data(), 0, 0};
  return {view.data() + b * view.stride(0) + h * view.stride(1), view.stride(2), view.stride(3)};
}

constexpr Index round_up(Index n, Index step) { return (n + step - 1) / step * step; }

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
