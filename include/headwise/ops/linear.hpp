// The linear layer: a matrix product with a bias, of weights of any kind, and its gradients.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/ops/stored_gemm.hpp"
#include "headwise/runtime/workspace.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// How a product is cut into tasks: columns first, for each task packs the columns that it needs.
/// What an element is computed from does not depend on it.
struct GemmTasks {
  Index rows, columns;  // of a task
  Index across;         // tasks side by side
  Index count;

  GemmTasks(const kernels::Extents& size, Index workers, Index panel) {
    constexpr Index tasks_a_worker = 2, fewest_columns = 192, fewest_rows = 48;
    const auto pieces = [](Index n, Index piece) { return (n + piece - 1) / piece; };
    const Index wanted = workers == 1 ? 1 : tasks_a_worker * workers;
    const Index most_across = std::max<Index>(1, size.N / fewest_columns);
    const Index most_down = std::max<Index>(1, size.M / fewest_rows);
    across = std::min<Index>(wanted, most_across);
    columns = kernels::round_up(pieces(size.N, across), panel);
    across = pieces(size.N, columns);
    rows = pieces(size.M, std::min<Index>(pieces(wanted, across), most_down));
    count = across * pieces(size.M, rows);
  }
};

/// A part of a product, from element (m, n) on.
struct GemmTask {
  Index m, n;
  kernels::Extents size;
  Index worker;
};

/// run(task) for the parts of a product, in any order.
template <class F>
void for_gemm_tasks(const kernels::Extents& size, Index panel, const Context& context,
                    const F& run) {
  const GemmTasks tasks(size, context.executor.concurrency(), panel);
  const auto task = [&](Index t, Index worker) {
    const Index m = t / tasks.across * tasks.rows, n = t % tasks.across * tasks.columns;
    run(GemmTask{m,
                 n,
                 {std::min<Index>(tasks.rows, size.M - m),
                  std::min<Index>(tasks.columns, size.N - n), size.K},
                 worker});
  };
  context.executor.run(tasks.count, task);
}

template <class T>
void run_gemm(const kernels::Kernels<T>& run, const Context& context, Workspace<T>& workspace,
              kernels::Matrix<const T> a, kernels::Matrix<const T> b, kernels::Matrix<T> c,
              const kernels::Extents& size, const kernels::Epilogue<T>& epilogue) {
  for_gemm_tasks(size, run.columns, context, [&](const GemmTask& task) {
    kernels::Epilogue<T> here = epilogue;
    if (here.bias != nullptr) here.bias += task.n;
    run.gemm(a.from(task.m, 0), b.from(0, task.n), c.from(task.m, task.n), task.size, here,
             workspace.of(task.worker).take(run.gemm_scratch(size)));
  });
}

/// All rules of linear_forward, whatever w is kept as.
template <class T, class W>
void require_linear(const In<T, 2>& x, const In<W, 2>& w, const In<T, 1>& b, const Out<T, 2>& y) {
  const Index N = x.extent(0), K = x.extent(1), O = w.extent(1);
  require_countable("linear_forward", "x", x);
  require_countable("linear_forward", "w", w);
  require_shape("linear_forward", "w", w, Shape{K, O}, K, " from x ", x.shape());
  if (!b.absent()) {
    require_shape("linear_forward", "b", b, Shape{O}, O, " from w ", w.shape());
  }
  require_shape("linear_forward", "y", y, Shape{N, O}, "rows of x, columns of w");
  require_apart("linear_forward", {"y", y}, {{"x", x}, {"w", w}, {"b", b}});
}

/// A bias as products read it.
template <class T>
class DenseBias {
 public:
  /// Throws std::bad_alloc.
  DenseBias(const In<T, 1>& b, std::pmr::memory_resource* memory)
      : data_(b.absent() ? nullptr : b.data()) {
    if (b.absent() || b.stride(0) == 1) return;
    copy_ = contiguous(b, memory);
    data_ = copy_.data();
  }
  const T* data() const { return data_; }

 private:
  Tensor<T, 1> copy_;
  const T* data_;
};

/// What linear_forward did.
template <class T>
void count_linear(const kernels::Kernels<T>& run, const kernels::Extents& size, bool biased,
                  const Context& context) {
  const std::int64_t of_bias = biased ? std::int64_t{size.M} * size.N : 0;
  context.count_flops(std::int64_t{2} * size.M * size.K * size.N + of_bias,
                      run.executed_gemm_flops(size) + of_bias);
}

/// x with 0 in the rows whose dy is 0 throughout, in `storage`; or x itself where it is finite.
/// What had no part in the result has none in the gradient: 0 times NaN is not let in.
template <class T>
In<T, 2> without_idle_rows(const kernels::Kernels<T>& run, const In<T, 2>& x, const In<T, 2>& dy,
                           Tensor<T, 2>& storage, const Context& context) {
  if (run.all_finite(kernels::matrix(x), x.extent(0), x.extent(1))) return x;
  storage = contiguous(x, context.memory);
  for (Index n = 0; n < x.extent(0); ++n) {
    bool idle = true;
    for (Index o = 0; o < dy.extent(1); ++o) idle = idle && dy(n, o) == T(0);
    for (Index i = 0; idle && i < x.extent(1); ++i) storage(n, i) = T(0);
  }
  return storage;
}

/// dw += x^T dy in two steps: what may fail, then what writes.
template <class T>
class LinearWeightGradient {
 public:
  /// dy [N, O], x [N, K]; both have to stay. Throws std::bad_alloc.
  LinearWeightGradient(const In<T, 2>& dy, const In<T, 2>& x, const Context& context)
      : dy_(dy),
        run_(kernels::kernels_for<T>(context)),
        x_(without_idle_rows<T>(run_, x, dy, storage_, context)),
        size_{x.extent(1), dy.extent(1), x.extent(0)} {}
  LinearWeightGradient(const LinearWeightGradient&) = delete;
  LinearWeightGradient& operator=(const LinearWeightGradient&) = delete;

  /// Elements that each worker needs.
  Index scratch() const { return size_.M == 0 ? 0 : run_.gemm_scratch(size_); }
  /// dw [K, O].
  void add_to(const InOut<T, 2>& dw, Workspace<T>& workspace, const Context& context) const {
    if (size_.M == 0 || size_.N == 0 || size_.K == 0) return;
    run_gemm<T>(run_, context, workspace, kernels::matrix(x_).transposed(), kernels::matrix(dy_),
                kernels::matrix(dw), size_, {.accumulate = true});
    context.count_flops(std::int64_t{2} * size_.M * size_.N * size_.K,
                        run_.executed_gemm_flops(size_));
  }

 private:
  Tensor<T, 2> storage_;
  const In<T, 2> dy_;
  const kernels::Kernels<T>& run_;
  const In<T, 2> x_;
  const kernels::Extents size_;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// y = x w + b, row by row.
///
/// x   [N, K]   in
/// w   [K, O]   in
/// b   [O]      in; {} for none
/// y   [N, O]   out; must not overlap the inputs
///
/// A row of y depends on that row of x alone, to the bit. Sums run in T.
/// Work    2 N K O FLOPs, and N O for the bias; scratch that does not grow with N.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <Scalar T>
void linear_forward(In<T, 2> x, In<std::type_identity_t<T>, 2> w, In<std::type_identity_t<T>, 1> b,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::require_linear<T, T>(x, w, b, y);
  const kernels::Extents size{x.extent(0), w.extent(1), x.extent(1)};
  if (size.M == 0 || size.N == 0) return;
  const detail::DenseBias<T> bias(b, context.memory);
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  Workspace<T> workspace(context.executor.concurrency(), run.gemm_scratch(size), context.memory);
  detail::run_gemm<T>(run, context, workspace, kernels::matrix(x), kernels::matrix(w),
                      kernels::matrix(y), size, {.bias = bias.data()});
  detail::count_linear<T>(run, size, !b.absent(), context);
}

/// y = x w + b, row by row, with w of 16 bits.
///
/// x   [N, K]   in
/// w   [K, O]   in; BFloat16 or Float16, rows or columns dense to be read fast
/// b   [O]      in; {} for none
/// y   [N, O]   out; must not overlap the inputs
///
/// The bits are those of linear_forward with the same numbers as floats. Half the bytes are read.
/// Work    2 N K O FLOPs, and N O for the bias; scratch that does not grow with N.
/// Throws  ShapeError before anything is written; std::bad_alloc.
template <std::same_as<float> T, NarrowFloat W>
void linear_forward(In<T, 2> x, In<W, 2> w, In<std::type_identity_t<T>, 1> b,
                    Out<std::type_identity_t<T>, 2> y, const Context& context = {}) {
  detail::require_linear<T, W>(x, w, b, y);
  const kernels::Extents size{x.extent(0), w.extent(1), x.extent(1)};
  if (size.M == 0 || size.N == 0) return;
  const detail::DenseBias<T> bias(b, context.memory);
  const detail::StoredGemm<W> gemm(kernels::matrix(w), size, context);
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  Workspace<T> workspace(context.executor.concurrency(), gemm.scratch(), context.memory);
  detail::for_gemm_tasks(size, run.columns, context, [&](const detail::GemmTask& task) {
    gemm.run(kernels::matrix(x).from(task.m, 0), task.n, kernels::matrix(y).from(task.m, task.n),
             task.size, bias.data() == nullptr ? nullptr : bias.data() + task.n,
             workspace.of(task.worker));
  });
  detail::count_linear<T>(run, size, !b.absent(), context);
}

/// db += the column sums of dy: the gradient of a bias that was added to every row.
///
/// dy  [N, O]   in
/// db  [O]      added to; must not overlap dy
///
/// Work    N O FLOPs.
/// Throws  ShapeError before anything is written.
template <Scalar T>
void bias_backward(In<T, 2> dy, InOut<std::type_identity_t<T>, 1> db, const Context& context = {}) {
  require_countable("bias_backward", "dy", dy);
  require_shape("bias_backward", "db", db, Shape{dy.extent(1)}, "columns of dy");
  require_apart("bias_backward", {"db", db}, {{"dy", dy}});
  if (dy.size() == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  detail::for_columns(context, dy.extent(0), dy.extent(1), [&](Index begin, Index end) {
    run.add_rows(kernels::matrix(dy), dy.extent(0), begin, end, kernels::row(db));
  });
  context.count_flops(dy.size(), dy.size());
}

/// The gradients of linear_forward.
///
/// dy  [N, O]   in
/// x   [N, K]   in; as in forward
/// w   [K, O]   in; as in forward
/// dx  [N, K]   out: dy w^T; {} for none
/// dw  [K, O]   added to: x^T dy; {} for none
/// db  [O]      added to: the column sums of dy; {} for none
///
/// A row of x whose dy is 0 adds nothing to dw, even if it holds NaN or infinity: so padding that
/// attention hides does not reach the weights. dx, dw and db must not overlap the inputs or each
/// other.
/// Work    2 N K O FLOPs for each of dx and dw, N O for db.
/// Throws  ShapeError before anything is written; std::bad_alloc.
/// Source  docs/derivations/attention_backward.md, step 6.
template <Scalar T>
void linear_backward(In<T, 2> dy, In<std::type_identity_t<T>, 2> x,
                     In<std::type_identity_t<T>, 2> w, Out<std::type_identity_t<T>, 2> dx,
                     InOut<std::type_identity_t<T>, 2> dw, InOut<std::type_identity_t<T>, 1> db,
                     const Context& context = {}) {
  const Index N = x.extent(0), K = x.extent(1), O = w.extent(1);
  require_countable("linear_backward", "x", x);
  require_countable("linear_backward", "w", w);
  require_shape("linear_backward", "w", w, Shape{K, O}, K, " from x ", x.shape());
  require_shape("linear_backward", "dy", dy, Shape{N, O}, "rows of x, columns of w");
  if (!dx.absent()) require_shape("linear_backward", "dx", dx, Shape{N, K}, "the shape of x");
  if (!dw.absent()) require_shape("linear_backward", "dw", dw, Shape{K, O}, "the shape of w");
  if (!db.absent()) require_shape("linear_backward", "db", db, Shape{O}, "columns of w");
  require_outputs_apart("linear_backward", {{"dx", dx}, {"dw", dw}, {"db", db}},
                        {{"dy", dy}, {"x", x}, {"w", w}});

  const bool wants_dx = dx.size() != 0, wants_dw = dw.size() != 0 && N != 0;
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  const kernels::Extents of_dx{N, K, O};
  std::optional<detail::LinearWeightGradient<T>> of_dw;
  if (wants_dw) of_dw.emplace(dy, x, context);
  Workspace<T> workspace(
      wants_dx || wants_dw ? context.executor.concurrency() : 0,
      std::max<Index>(wants_dx ? run.gemm_scratch(of_dx) : 0, wants_dw ? of_dw->scratch() : 0),
      context.memory);
  if (wants_dx) {
    detail::run_gemm<T>(run, context, workspace, kernels::matrix(dy),
                        kernels::matrix(w).transposed(), kernels::matrix(dx), of_dx, {});
    context.count_flops(std::int64_t{2} * N * K * O, run.executed_gemm_flops(of_dx));
  }
  if (wants_dw) of_dw->add_to(dw, workspace, context);
  if (!db.absent()) bias_backward(dy, db, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
