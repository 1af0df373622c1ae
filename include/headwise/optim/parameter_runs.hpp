// Elements of a parameter as runs that kernels can take: where values and gradients are dense, all
// of a task at once; else row by row, and through copies where the elements of a row lie apart.
#pragma once

#include <algorithm>

#include "headwise/kernels/kernels.hpp"
#include "headwise/optim/parameter_list.hpp"
#include "headwise/runtime/context.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Elements that are copied at once.
inline constexpr Index elements_of_copy = 512;

/// Element n, counted row-major.
template <class T>
T* element_at(const TensorView<T, max_parameter_rank>& view, Index n) {
  Index offset = 0;
  for (int r = max_parameter_rank - 1; r >= 0; --r) {
    const Index extent = view.extent(r);
    if (extent == 1) continue;
    offset += n % extent * view.stride(r);
    n /= extent;
  }
  return view.data() + offset;
}

/// How far apart the elements of a run lie.
template <class T>
Index stride_of(const TensorView<T, max_parameter_rank>& view) {
  return view.extent(max_parameter_rank - 1) == 1 ? 1 : view.stride(max_parameter_rank - 1);
}

/// f(first, count) for runs of elements: the whole where they are dense, else parts of rows.
template <class T, class F>
void for_runs(const TensorView<T, max_parameter_rank>& view, bool dense, Index begin, Index end,
              const F& f) {
  const Index width = view.extent(max_parameter_rank - 1);
  while (begin < end) {
    const Index stop = dense ? end : std::min<Index>(end, (begin / width + 1) * width);
    f(begin, stop - begin);
    begin = stop;
  }
}

/// f(value, gradient, first, count) over dense elements first ... first + count - 1. What f writes
/// to value is the parameter's.
template <class T, class F>
void update_runs(const Parameter<T>& p, const ParameterTask& task, const F& f) {
  const bool dense = p.view.dense() && p.gradient.dense();
  const Index step = dense ? 1 : stride_of(p.view),
              gradient_step = dense ? 1 : stride_of(p.gradient);
  for_runs(p.view, dense, task.begin, task.end, [&](Index first, Index count) {
    T* const value = element_at(p.view, first);
    T* const gradient = element_at(p.gradient, first);
    if (step == 1 && gradient_step == 1) return f(value, gradient, first, count);
    T values[std::size_t{elements_of_copy}], slopes[std::size_t{elements_of_copy}];
    for (Index begin = 0; begin < count; begin += elements_of_copy) {
      const Index n = std::min<Index>(elements_of_copy, count - begin);
      for (Index i = 0; i < n; ++i) values[i] = value[(begin + i) * step];
      for (Index i = 0; i < n; ++i) slopes[i] = gradient[(begin + i) * gradient_step];
      f(values, slopes, first + begin, n);
      for (Index i = 0; i < n; ++i) value[(begin + i) * step] = values[i];
    }
  });
}

HEADWISE_STRICT_MATH_BEGIN

/// The sum of the squares of a task's gradients, the same for any strides: of so many elements at
/// a time, one sum after the other.
template <class T>
kernels::SumOf<T> sum_task(const Parameter<T>& p, const ParameterTask& task) {
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  const bool dense = p.gradient.dense();
  const Index step = stride_of(p.gradient);
  kernels::SumOf<T> sum(0);
  for (Index begin = task.begin; begin < task.end; begin += elements_of_copy) {
    const Index end = std::min<Index>(task.end, begin + elements_of_copy);
    if (dense) {
      sum = sum + run.sum_of_squares(p.gradient.data() + begin, end - begin);
      continue;
    }
    T copy[std::size_t{elements_of_copy}];
    for_runs(p.gradient, false, begin, end, [&](Index first, Index count) {
      const T* const from = element_at(p.gradient, first);
      for (Index i = 0; i < count; ++i) copy[first - begin + i] = from[i * step];
    });
    sum = sum + run.sum_of_squares(copy, end - begin);
  }
  return sum;
}

HEADWISE_STRICT_MATH_END

/// f(parameter, task) for every task, on the context's workers.
template <class T, class F>
void for_tasks(const ParameterList<T>& list, const Context& context, const F& f) {
  const auto& tasks = list.tasks();
  const auto run = [&](Index t, Index) {
    const ParameterTask& task = tasks[static_cast<std::size_t>(t)];
    f(list[task.parameter], task);
  };
  context.executor.run(static_cast<Index>(tasks.size()), run);
}

/// f(gradient, count, step) for runs of all gradients, `step` apart, on the context's workers.
template <class T, class F>
void for_gradient_runs(const ParameterList<T>& list, const Context& context, const F& f) {
  for_tasks(list, context, [&](const Parameter<T>& p, const ParameterTask& task) {
    const bool dense = p.gradient.dense();
    const Index step = dense ? 1 : stride_of(p.gradient);
    for_runs(p.gradient, dense, task.begin, task.end,
             [&](Index first, Index count) { f(element_at(p.gradient, first), count, step); });
  });
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
