// Rows that are computed as numbers of T and stored as U, which may have 16 bits: written, and
// read.
#pragma once

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// to [rows, N] = the nearest numbers of U to x [rows, N], dense, which become these.
template <NarrowFloat U>
void round_rows(float* x, Index rows, Index N, const kernels::Matrix<U>& to) {
  if (to.column == 1 && to.row == N) {
    return kernels::model_kernels_here<float>().round_elements(stored_as<U>, x, rows * N, to.data);
  }
  for (Index r = 0; r < rows; ++r) {
    float* const row = x + r * N;
    if (to.column == 1) {
      kernels::model_kernels_here<float>().round_elements(stored_as<U>, row, N, &to(r, 0));
    } else {
      for (Index n = 0; n < N; ++n) to(r, n) = convert_float<U>(row[n]);
    }
  }
}

/// Calls write(m), m [rows, N] of T: `to` itself where it is of T, else `scratch`, which is rounded
/// into `to` behind the call.
template <class T, class U, class F>
void write_rows(const kernels::Matrix<U>& to, Index rows, Index N, T* scratch, const F& write) {
  if constexpr (std::same_as<T, U>) {
    write(to);
  } else {
    write(kernels::Matrix<T>{scratch, N, 1});
    round_rows(scratch, rows, N, to);
  }
}

/// to [rows, N] = 0.
template <class U>
void zero_rows(const kernels::Matrix<U>& to, Index rows, Index N) {
  for (Index r = 0; r < rows; ++r) {
    const auto row = to.from(r, 0);
    if (row.column == 1) {
      std::fill_n(row.data, N, U());
    } else {
      for (Index n = 0; n < N; ++n) row(0, n) = U();
    }
  }
}

/// How far row `row` of x, along the last axis, lies behind its first one.
template <class U, int R>
Index row_offset(const In<U, R>& x, Index row) {
  Index offset = 0;
  for (int axis = R - 2; axis >= 0; --axis) {
    offset += row % x.extent(axis) * x.stride(axis);
    row /= x.extent(axis);
  }
  return offset;
}

/// x as floats, dense. Throws std::bad_alloc.
template <NarrowFloat U, int R>
Tensor<float, R> widened_tensor(const In<U, R>& x, const Context& context) {
  auto wide = Tensor<float, R>::uninitialized(x.shape(), context.memory);
  if (wide.size() == 0) return wide;
  const Index N = x.extent(R - 1);
  const auto widen = kernels::model_kernels_here<float>().widen_rows;
  if (x.dense()) {
    for_rows(context, wide.size(), 1, [&](Index begin, Index end) {
      widen(stored_as<U>, {x.data() + begin, 0, 1}, 1, end - begin, wide.data() + begin);
    });
    return wide;
  }
  for_rows(context, wide.size() / N, N, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const U* const from = x.data() + row_offset(x, row);
      widen(stored_as<U>, {from, 0, x.stride(R - 1)}, 1, N, wide.data() + row * N);
    }
  });
  return wide;
}

/// Elements of scratch that write_rows takes.
template <class T, class U>
constexpr Index rows_to_round(Index rows, Index N) {
  return std::same_as<T, U> ? 0 : padded<T>(rows * N);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
