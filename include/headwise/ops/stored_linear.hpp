// linear_forward of weights that are kept in 16 bits. They become floats on their way to the
// product, a part that the second cache holds at a time; nowhere are all of them floats.
#pragma once

#include "headwise/ops/linear.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// c = a w + bias, w of 16 bits: a chain of its rows after the other, some columns at a time. The
/// bits are those of the product with the same w as floats, which sums up in the same chains.
class StoredGemm {
 public:
  /// w [K, N] is all of the factor.
  StoredGemm(StoredAs as, const kernels::StoredMatrix& w, const kernels::Extents& size,
             const Context& context)
      : as_(as),
        w_(w),
        few_(context.products.exact() && size.M <= FewRows::most && (w.row == 1 || w.column == 1)),
        run_(kernels::kernels_for<float>(context)),
        stored_(kernels::model_kernels_here<float>()),
        most_{size.M, std::min<Index>(size.N, part_columns), std::min<Index>(size.K, run_.inner)} {}

  /// Floats that each worker needs.
  Index scratch() const {
    if (few_) return FewRows::sums_size;
    return padded<float>(most_.N * most_.K) + run_.gemm_scratch(most_);
  }
  /// c [M, N] = a w + bias, of N columns of w from `first` on.
  void run(kernels::Matrix<const float> a, Index first, kernels::Matrix<float> c,
           const kernels::Extents& size, const float* bias, Scratch<float> memory) const {
    if (few_) {
      return stored_.multiply_few_rows(
          {size, a, from(0, first), as_, c, bias, memory.take(FewRows::sums_size)});
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
  using FewRows = kernels::FewRows<float>;

  /// A part of 384 rows is 288 KiB as floats.
  static constexpr Index part_columns = 192;

  /// w from element (k, n) on.
  kernels::StoredMatrix from(Index k, Index n) const {
    return kernels::StoredMatrix::of(w_.as<std::uint16_t>().from(k, n));
  }
  /// Rows k ... k + K - 1 and columns n ... n + N - 1 of w, as they lie: along rows, or along
  /// columns.
  kernels::Matrix<const float> part(Index k, Index n, Index K, Index N, float* to) const {
    const kernels::StoredMatrix w = from(k, n);
    if (w.column != 1 && w.row == 1) {
      stored_.widen_rows(as_, {w.data, w.column, w.row}, N, K, to);
      return {to, 1, K};
    }
    stored_.widen_rows(as_, w, K, N, to);
    return {to, N, 1};
  }

  StoredAs as_;
  kernels::StoredMatrix w_;
  bool few_;
  const kernels::Kernels<float>& run_;
  const kernels::ModelKernels<float>& stored_;
  kernels::Extents most_;  // of a part
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x w + b, row by row, with w of 16 bits.
///
/// x   [N, K]   in
/// w   [K, O]   in; BFloat16 or Float16, rows or columns dense to be read fast
/// b   [O]      in; {} for none
/// y   [N, O]   out; must not overlap the inputs
///
/// The bits are those of linear_forward with the same numbers as floats. Reads half the bytes,
/// which is what few rows of x cost. Work    2 N K O FLOPs, and N O for the bias; scratch that does
/// not grow with N. Throws  ShapeError before anything is written; std::bad_alloc.
template <std::same_as<float> T, NarrowFloat W>
void linear_forward(In<T, 2> x, In<W, 2> w, In<std::type_identity_t<T>, 1> b,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::require_linear<T, W>(x, w, b, y);
  const kernels::Extents size{x.extent(0), w.extent(1), x.extent(1)};
  if (size.M == 0 || size.N == 0) return;
  const detail::DenseBias<T> bias(b, context.memory);
  const detail::StoredGemm gemm(detail::stored_as<W>, kernels::StoredMatrix::of(kernels::matrix(w)),
                                size, context);
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  Workspace<T> workspace(context.executor.concurrency(), gemm.scratch(), context.memory);
  detail::for_gemm_tasks(size, run.columns, context, [&](const detail::GemmTask& task) {
    gemm.run(kernels::matrix(x).from(task.m, 0), task.n, kernels::matrix(y).from(task.m, task.n),
             task.size, bias.data() == nullptr ? nullptr : bias.data() + task.n,
             workspace.of(task.worker));
  });
  detail::count_linear<T>(run, size, !b.absent(), context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
