// Rows that are computed as numbers of T and stored as U, which may have 16 bits.
#pragma once

#include "headwise/kernels/kernels.hpp"

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

/// write(rows of T) for to [rows, N]: these themselves, or others in `scratch` [rows, N], which are
/// then stored in `to`.
template <class T, class U, class F>
void write_rows(const kernels::Matrix<U>& to, Index rows, Index N, T* scratch, const F& write) {
  if constexpr (std::same_as<T, U>) {
    write(to);
  } else {
    write(kernels::Matrix<T>{scratch, N, 1});
    round_rows(scratch, rows, N, to);
  }
}

/// The same numbers as T, dense. Throws std::bad_alloc.
template <class T, NarrowFloat U>
Tensor<T, 4> widened_heads(const In<U, 4>& x, const Context& context) {
  auto wide = Tensor<T, 4>::uninitialized(x.shape(), context.memory);
  for_each_index(x.shape(), [&](const Shape<4>& at) { wide(at) = convert_float<T>(x(at)); });
  return wide;
}

/// Elements of scratch that write_rows takes.
template <class T, class U>
constexpr Index rows_to_round(Index rows, Index N) {
  return std::same_as<T, U> ? 0 : padded<T>(rows * N);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
