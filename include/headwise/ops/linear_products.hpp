// The products of linear layers, cut into tasks.
#pragma once

#include <algorithm>
#include <atomic>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/ops/weight_gemm.hpp"
#include "headwise/runtime/workspace.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// How a product is cut into tasks. What an element is computed from does not depend on it.
struct GemmTasks {
  Index rows, columns;  // of a task
  Index across;         // tasks side by side
  Index count;

  /// As many as are done soonest: 36 equal tasks keep 16 workers as long as 48 would. `packs_a`:
  /// rows of a lie across, and are copied.
  GemmTasks(const kernels::Extents& size, Index workers, Index panel, bool packs_a)
      : GemmTasks(size.M, size.N, size) {
    constexpr Index most_turns = 4, fewest_rows = 24;  // of a worker; of a task
    const Index most_down = std::max<Index>(1, size.M / fewest_rows);
    const Index most_across = std::min<Index>(count_parts(size.N, panel), most_turns * workers);
    double least = time(1, size.K, packs_a);
    for (Index n = 1; workers != 1 && n <= most_across; ++n) {
      for (Index turns = 1; turns <= most_turns; ++turns) {
        const Index m = std::clamp<Index>(turns * workers / n, 1, most_down);
        const GemmTasks cut(count_parts(size.M, m),
                            kernels::round_up(count_parts(size.N, n), panel), size);
        const double needed = cut.time(count_parts(cut.count, workers), size.K, packs_a);
        if (needed >= least) continue;
        least = needed;
        *this = cut;
      }
    }
  }

 private:
  GemmTasks(Index M, Index N, const kernels::Extents& size)
      : rows(M),
        columns(N),
        across(count_parts(size.N, N)),
        count(across * count_parts(size.M, M)) {}

  /// How long one worker takes for `turns` tasks, one after the other, in units of the time of K
  /// multiply-adds. A task packs its columns of b, and reads or copies its rows of a. Workers do
  /// not all begin and end at once (`late`, a share of a task), and what one has in its cache
  /// another has to fetch (`share`, once). By these numbers six products of modules are cut within
  /// 6 % of the best of 30 ways (2 cores of an AMD EPYC of family 26).
  double time(Index turns, Index K, bool packs_a) const {
    constexpr double share = 500000, begin = 50000, pack = 16, copy = 40, read = 8, late = 0.1;
    const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
    const auto k = static_cast<double>(std::max<Index>(1, K));
    const double one = m * n + pack * n + (packs_a ? copy : read) * m + begin / k;
    if (count == 1) return one;
    return (static_cast<double>(turns) + late) * one + share / k;
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
void for_gemm_tasks(const kernels::Extents& size, Index panel, bool packs_a, const Context& context,
                    const F& run) {
  const GemmTasks tasks(size, context.executor.concurrency(), panel, packs_a);
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

/// c += a b in tasks, both as they lie in memory, and its FLOPs. Each worker needs gemm_scratch.
template <class T>
void add_product(kernels::Matrix<const T> a, kernels::Matrix<const T> b, kernels::Matrix<T> c,
                 const kernels::Extents& size, Workspace<T>& workspace, const Context& context) {
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  for_gemm_tasks(size, run.columns, a.column != 1, context, [&](const GemmTask& task) {
    run.gemm(a.from(task.m, 0), b.from(0, task.n), c.from(task.m, task.n), task.size,
             {.accumulate = true}, workspace.of(task.worker).take(run.gemm_scratch(size)));
  });
  context.count_flops(std::int64_t{2} * size.M * size.N * size.K, run.executed_gemm_flops(size));
}

/// c = a w + bias in tasks, w as it is kept.
template <class T, class W>
class LinearProduct {
 public:
  /// w [K, N] has to stay.
  LinearProduct(const In<W, 2>& w, const kernels::Extents& size, const Context& context)
      : gemm_(kernels::matrix(w), size, context),
        run_(kernels::kernels_for<T>(context)),
        size_(size) {}

  /// Elements that each worker needs.
  Index scratch() const { return gemm_.scratch(); }
  /// a [M, K], c [M, N], bias [N] or null.
  void run(const In<T, 2>& a, const Out<T, 2>& c, const T* bias, Workspace<T>& workspace,
           const Context& context) const {
    const auto from = kernels::matrix(a);
    const auto to = kernels::matrix(c);
    for_gemm_tasks(size_, run_.columns, from.column != 1, context, [&](const GemmTask& task) {
      gemm_.run(from.from(task.m, 0), task.n, to.from(task.m, task.n), task.size,
                bias == nullptr ? nullptr : bias + task.n, workspace.of(task.worker));
    });
    const std::int64_t of_bias = bias == nullptr ? 0 : std::int64_t{size_.M} * size_.N;
    context.count_flops(std::int64_t{2} * size_.M * size_.K * size_.N + of_bias,
                        run_.executed_gemm_flops(size_) + of_bias);
  }

 private:
  const WeightGemm<T, W> gemm_;
  const kernels::Kernels<T>& run_;
  const kernels::Extents size_;
};

/// Whether all of x is finite.
template <class T>
bool all_rows_finite(const kernels::Kernels<T>& run, const In<T, 2>& x, const Context& context) {
  std::atomic<bool> finite = true;
  for_rows(context, x.extent(0), x.extent(1), [&](Index begin, Index end) {
    if (!finite.load(std::memory_order_relaxed)) return;
    const auto rows = kernels::matrix(x).from(begin, 0);
    if (!run.all_finite(rows, end - begin, x.extent(1))) finite = false;
  });
  return finite;
}

/// x with 0 in the rows whose dy is 0 throughout, in `storage`; or x itself where it is finite.
/// What had no part in the result has none in the gradient: 0 times NaN is not let in.
template <class T>
In<T, 2> without_idle_rows(const kernels::Kernels<T>& run, const In<T, 2>& x, const In<T, 2>& dy,
                           Tensor<T, 2>& storage, const Context& context) {
  if (all_rows_finite<T>(run, x, context)) return x;
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
    add_product<T>(kernels::matrix(x_).transposed(), kernels::matrix(dy_), kernels::matrix(dw),
                   size_, workspace, context);
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
