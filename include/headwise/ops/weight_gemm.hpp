// Products with weights as they are kept. Those of 16 bits become floats on the way, a part that
// the second cache holds at a time; nowhere is all of them floats.
#pragma once

#include <algorithm>

#include "headwise/kernels/kernels.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// c = a w + bias, w of numbers of T.
template <class T, class W>
class WeightGemm {
 public:
  /// w [K, N] is all of the factor.
  WeightGemm(const kernels::Matrix<const T>& w, const kernels::Extents& size,
             const Context& context)
      : w_(w), run_(kernels::kernels_for<T>(context)), scratch_(run_.gemm_scratch(size)) {}

  /// Elements that each worker needs.
  Index scratch() const { return scratch_; }
  /// c [M, N] = a w + bias, of N columns of w from `first` on.
  void run(kernels::Matrix<const T> a, Index first, kernels::Matrix<T> c,
           const kernels::Extents& size, const T* bias, Scratch<T> memory) const {
    run_.gemm(a, w_.from(0, first), c, size, {.bias = bias}, memory.take(scratch_));
  }

 private:
  kernels::Matrix<const T> w_;
  const kernels::Kernels<T>& run_;
  Index scratch_;
};

/// The same, w of 16 bits: a chain of its rows after the other, some columns at a time. The bits
/// are those of the product with the same w as floats, which sums up in the same chains.
template <NarrowFloat W>  // (a template, so that who doesn't use it compiles no kernel)
class WeightGemm<float, W> {
 public:
  WeightGemm(const kernels::Matrix<const W>& w, const kernels::Extents& size,
             const Context& context)
      : w_(w),
        few_(context.products.of_float() && size.M <= kernels::Thin::rows &&
             (w.row == 1 || w.column == 1)),
        run_(kernels::kernels_for<float>(context)),
        stored_(kernels::model_kernels_here<float>()),
        most_{size.M, std::min<Index>(size.N, part_columns), std::min<Index>(size.K, run_.inner)} {}

  Index scratch() const {
    if (few_) return kernels::Thin::sums;
    return padded<float>(most_.N * most_.K) + run_.gemm_scratch(most_);
  }
  void run(kernels::Matrix<const float> a, Index first, kernels::Matrix<float> c,
           const kernels::Extents& size, const float* bias, Scratch<float> memory) const {
    if (few_) {
      return stored_.multiply_few_rows({size, a, kernels::StoredMatrix::of(w_.from(0, first)),
                                        stored_as<W>, c, bias, memory.take(kernels::Thin::sums)});
    }
    float* const widened = memory.take(most_.N * most_.K);
    float* const scratch = memory.take(run_.gemm_scratch(most_));
    for (Index n = 0; n < size.N; n += most_.N) {
      const Index N = std::min<Index>(most_.N, size.N - n);
      for (Index k = 0; k == 0 || k < size.K; k += run_.inner) {
        const Index K = std::min<Index>(most_.K, size.K - k);
        kernels::Epilogue<float> epilogue{.accumulate = k != 0};
        if (bias != nullptr && k == 0) epilogue.bias = bias + n;
        run_.gemm(a.from(0, k), part(k, first + n, K, N, widened), c.from(0, n), {size.M, N, K},
                  epilogue, scratch);
      }
    }
  }

 private:
  /// A part of 384 rows is 288 KiB as floats.
  static constexpr Index part_columns = 192;

  /// Rows k ... k + K - 1 and columns n ... n + N - 1 of w, as they lie: along rows, or along
  /// columns.
  kernels::Matrix<const float> part(Index k, Index n, Index K, Index N, float* to) const {
    const auto w = kernels::StoredMatrix::of(w_.from(k, n));
    if (w.column != 1 && w.row == 1) {
      stored_.widen_rows(stored_as<W>, {w.data, w.column, w.row}, N, K, to);
      return {to, 1, K};
    }
    stored_.widen_rows(stored_as<W>, w, K, N, to);
    return {to, N, 1};
  }

  kernels::Matrix<const W> w_;
  bool few_;
  const kernels::Kernels<float>& run_;
  const kernels::ModelKernels<float>& stored_;
  kernels::Extents most_;  // of a part
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
