// Tensors whose elements lie in memory as a caller's may.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "headwise/tensor/tensor.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise_tests {

using namespace headwise;

/// Where the elements of a tensor lie.
enum class Layout { dense, in_wider_rows, in_longer_sequence, sequence_first, columns_first };

/// A tensor in one of the layouts. NaN lies between its elements, so that what reads them shows.
template <class T, int R>
struct LaidOut {
  Tensor<T, R> storage;
  TensorView<T, R> view;

  LaidOut(const Shape<R>& shape, Layout layout) : storage(storage_shape(shape, layout)) {
    std::fill(storage.begin(), storage.end(), std::numeric_limits<T>::quiet_NaN());
    view = as_view(storage);
    if (layout == Layout::in_wider_rows) view = slice(view, R - 1, 2, shape[R - 1]);
    if (layout == Layout::in_longer_sequence) view = slice(view, R - 2, 1, shape[R - 2]);
    if (layout == Layout::sequence_first) view = transpose(view, 0, R - 2);
    if (layout == Layout::columns_first) view = transpose(view, R - 2, R - 1);
  }
  LaidOut(const In<T, R>& values, Layout layout) : LaidOut(values.shape(), layout) {
    copy(values, view);
  }

 private:
  static Shape<R> storage_shape(Shape<R> shape, Layout layout) {
    if (layout == Layout::in_wider_rows) shape[R - 1] += 5;
    if (layout == Layout::in_longer_sequence) shape[R - 2] += 2;
    if (layout == Layout::sequence_first) std::swap(shape[0], shape[R - 2]);
    if (layout == Layout::columns_first) std::swap(shape[R - 2], shape[R - 1]);
    return shape;
  }
};

}  // namespace headwise_tests
