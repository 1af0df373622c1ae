// The bridge to Eigen. Tensors are row-major; Eigen's default is column-major. What would be read
// transposed does not compile: convert it by name instead.
#pragma once

#include <Eigen/Core>

#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

template <class T>
using EigenMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using EigenStride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

/// A [N, M] view as an Eigen matrix expression over the same storage, whatever its strides.
template <class T>
Eigen::Map<const EigenMatrix<T>, 0, EigenStride<T>> eigen_map(const In<T, 2>& view) {
  return {view.data(), view.extent(0), view.extent(1),
          EigenStride<T>(view.stride(0), view.stride(1))};
}
template <class T>
Eigen::Map<EigenMatrix<T>, 0, EigenStride<T>> eigen_map(const Out<T, 2>& view) {
  return {view.data(), view.extent(0), view.extent(1),
          EigenStride<T>(view.stride(0), view.stride(1))};
}
template <class T>
auto eigen_map(Tensor<T, 2>& tensor) {
  return eigen_map(Out<T, 2>(tensor));
}
template <class T>
auto eigen_map(const Tensor<T, 2>& tensor) {
  return eigen_map(In<T, 2>(tensor));
}

/// A [N] view as an Eigen row vector.
template <class T>
Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>, 0, Eigen::InnerStride<>> eigen_map(
    const In<T, 1>& view) {
  return {view.data(), view.extent(0), Eigen::InnerStride<>(view.stride(0))};
}

/// A row-major Eigen matrix (or Map, Ref, Block of one) as a view of its storage.
template <class Derived>
In<typename Derived::Scalar, 2> from_eigen(const Eigen::DenseBase<Derived>& matrix) {
  static_assert(static_cast<bool>(Derived::IsRowMajor),
                "this Eigen matrix is column-major, Eigen's default, and headwise reads rows: pass "
                "from_column_major(m), which reads it in place as the same N x M matrix, or "
                "declare it as headwise::EigenMatrix<T>");
  const Derived& m = matrix.derived();
  return {m.data(), Shape{m.rows(), m.cols()}, Shape{m.outerStride(), m.innerStride()}};
}
template <class Derived>
Out<typename Derived::Scalar, 2> from_eigen(Eigen::DenseBase<Derived>& matrix) {
  static_assert(static_cast<bool>(Derived::IsRowMajor),
                "this Eigen matrix is column-major, Eigen's default, and headwise writes rows: "
                "pass from_column_major(m) or declare it as headwise::EigenMatrix<T>");
  Derived& m = matrix.derived();
  return {m.data(), Shape{m.rows(), m.cols()}, Shape{m.outerStride(), m.innerStride()}};
}

/// A column-major Eigen matrix read in place: element (i, j) stays element (i, j).
template <class Derived>
In<typename Derived::Scalar, 2> from_column_major(const Eigen::DenseBase<Derived>& matrix) {
  static_assert(!static_cast<bool>(Derived::IsRowMajor),
                "this Eigen matrix is row-major: pass from_eigen(m)");
  const Derived& m = matrix.derived();
  return {m.data(), Shape{m.rows(), m.cols()}, Shape{m.innerStride(), m.outerStride()}};
}

}  // namespace headwise::inline v0_1
