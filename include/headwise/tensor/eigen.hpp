// The bridge to Eigen. Tensors are row-major; Eigen's default is column-major. What would be read
// transposed does not compile: convert it by name instead.
#pragma once

#include <Eigen/Core>
#include <type_traits>

#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// Eigen's matrix in row-major order: what headwise reads and writes in place.
template <class T>
using EigenMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
/// Strides that are known only at run time.
using EigenStride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

/// A [N, M] view as an Eigen matrix expression over the same storage, whatever its strides.
template <class T>
Eigen::Map<const EigenMatrix<T>, 0, EigenStride> eigen_map(const In<T, 2>& view) {
  return {view.data(), view.extent(0), view.extent(1), EigenStride(view.stride(0), view.stride(1))};
}
/// The same, to be written to.
template <class T>
Eigen::Map<EigenMatrix<T>, 0, EigenStride> eigen_map(const Out<T, 2>& view) {
  return {view.data(), view.extent(0), view.extent(1), EigenStride(view.stride(0), view.stride(1))};
}

/// A [N] view as an Eigen row vector.
template <class T>
Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>, 0, Eigen::InnerStride<>> eigen_map(
    const In<T, 1>& view) {
  return {view.data(), view.extent(0), Eigen::InnerStride<>(view.stride(0))};
}
/// The same, to be written to.
template <class T>
Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>, 0, Eigen::InnerStride<>> eigen_map(
    const Out<T, 1>& view) {
  return {view.data(), view.extent(0), Eigen::InnerStride<>(view.stride(0))};
}

/// The same of a tensor [M, N] or [N].
template <class T, int R>
auto eigen_map(Tensor<T, R>& tensor) {
  return eigen_map(Out<T, R>(tensor));
}
/// The same of a tensor that is only read.
template <class T, int R>
auto eigen_map(const Tensor<T, R>& tensor) {
  return eigen_map(In<T, R>(tensor));
}

namespace detail {

template <class Derived>
inline constexpr bool eigen_is_writable =
    !std::is_const_v<Derived> && (static_cast<int>(Derived::Flags) & Eigen::LvalueBit) != 0;

template <class Derived>
inline constexpr bool reads_by_rows = static_cast<bool>(Derived::IsRowMajor) ||
                                      static_cast<bool>(Derived::IsVectorAtCompileTime);

/// Element (i, j) stays element (i, j), whichever way the matrix is stored.
template <class View, class Derived>
View eigen_view(Derived& m) {
  constexpr bool stored = (static_cast<int>(Derived::Flags) & Eigen::DirectAccessBit) != 0;
  static_assert(stored,
                "this Eigen expression is not stored anywhere: evaluate it into a matrix with a "
                "name, and pass that");
  if constexpr (stored) {
    const Index outer = m.outerStride(), inner = m.innerStride();
    const bool by_rows = static_cast<bool>(Derived::IsRowMajor);
    return {m.data(), Shape{m.rows(), m.cols()},
            by_rows ? Shape{outer, inner} : Shape{inner, outer}};
  } else {
    return {};
  }
}

/// The axis of a vector that is not 1.
template <class View, class Derived>
View eigen_vector_view(Derived& v) {
  constexpr bool vector = static_cast<bool>(Derived::IsVectorAtCompileTime);
  static_assert(vector, "this Eigen matrix is no vector by its type: pass from_eigen(m)");
  if constexpr (vector) {
    constexpr int axis = static_cast<int>(Derived::ColsAtCompileTime) == 1 ? 0 : 1;
    const auto m = eigen_view<typename View::template with_rank<2>>(v);
    return {m.data(), Shape{m.extent(axis)}, Shape{m.stride(axis)}};
  } else {
    return {};
  }
}

}  // namespace detail

/// A row-major Eigen matrix (or Map, Ref, Block of one), or a vector, as a view of its storage.
template <class Derived>
In<typename Derived::Scalar, 2> from_eigen(const Eigen::DenseBase<Derived>& matrix) {
  static_assert(detail::reads_by_rows<Derived>,
                "this Eigen matrix is column-major, Eigen's default, and headwise reads rows: pass "
                "from_column_major(m), which reads it in place as the same N x M matrix, or "
                "declare it as headwise::EigenMatrix<T>");
  return detail::eigen_view<In<typename Derived::Scalar, 2>>(matrix.derived());
}
/// The same, to be written to.
template <class Derived>
requires detail::eigen_is_writable<Derived> Out<typename Derived::Scalar, 2> from_eigen(
    Eigen::DenseBase<Derived>& matrix) {
  static_assert(detail::reads_by_rows<Derived>,
                "this Eigen matrix is column-major, Eigen's default, and headwise reads and writes "
                "rows: pass from_column_major(m), which is the same N x M matrix in place, or "
                "declare it as headwise::EigenMatrix<T>");
  return detail::eigen_view<Out<typename Derived::Scalar, 2>>(matrix.derived());
}
/// A matrix without a name does not compile: it would be gone when its view is read.
template <class Derived>
void from_eigen(const Eigen::PlainObjectBase<Derived>&& temporary) = delete;

/// An Eigen vector, row or column, as a view with one axis: a bias, gamma, one logit a head.
template <class Derived>
In<typename Derived::Scalar, 1> from_eigen_vector(const Eigen::DenseBase<Derived>& vector) {
  return detail::eigen_vector_view<In<typename Derived::Scalar, 1>>(vector.derived());
}
/// The same, to be written to.
template <class Derived>
requires detail::eigen_is_writable<Derived> Out<typename Derived::Scalar, 1> from_eigen_vector(
    Eigen::DenseBase<Derived>& vector) {
  return detail::eigen_vector_view<Out<typename Derived::Scalar, 1>>(vector.derived());
}
/// A matrix without a name would be gone before the view is read.
template <class Derived>
void from_eigen_vector(const Eigen::PlainObjectBase<Derived>&& temporary) = delete;

/// A column-major Eigen matrix in place: element (i, j) stays element (i, j).
template <class Derived>
In<typename Derived::Scalar, 2> from_column_major(const Eigen::DenseBase<Derived>& matrix) {
  static_assert(!static_cast<bool>(Derived::IsRowMajor),
                "this Eigen matrix is row-major: pass from_eigen(m)");
  return detail::eigen_view<In<typename Derived::Scalar, 2>>(matrix.derived());
}
/// The same, to be written to.
template <class Derived>
requires detail::eigen_is_writable<Derived> Out<typename Derived::Scalar, 2> from_column_major(
    Eigen::DenseBase<Derived>& matrix) {
  static_assert(!static_cast<bool>(Derived::IsRowMajor),
                "this Eigen matrix is row-major: pass from_eigen(m)");
  return detail::eigen_view<Out<typename Derived::Scalar, 2>>(matrix.derived());
}
/// A matrix without a name would be gone before the view is read.
template <class Derived>
void from_column_major(const Eigen::PlainObjectBase<Derived>&& temporary) = delete;

}  // namespace headwise::inline v0_1
