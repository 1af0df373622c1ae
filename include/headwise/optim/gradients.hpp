// What is done with all gradients at once, between backward and the optimiser's step: their norm,
// clipping by it, setting them to 0.
//
// Gradients are added to by backward: n small batches one after the other leave the sum of theirs.
// Where the loss is a mean, the gradient of the whole is that sum times 1 / n, which a step takes
// as its gradient_scale.
#pragma once

#include <cmath>

#include "headwise/optim/parameter_runs.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// sqrt(sum of the squares of every gradient in the list).
///
/// Squares are summed in double (in T where that is wider), in an order that the shapes alone
/// decide: the same bits for any strides and number of threads. What is not finite shows.
/// Work    2 FLOPs an element.
/// Throws  ArgumentError for a parameter without a gradient, std::bad_alloc.
template <Scalar T>
kernels::SumOf<T> gradient_norm(const ParameterList<T>& list, const Context& context = {}) {
  list.require_gradients("gradient_norm");
  using Sum = kernels::SumOf<T>;
  const auto& tasks = list.tasks();
  const auto count = static_cast<Index>(tasks.size());
  auto sums = Tensor<Sum, 1>::uninitialized({count}, context.memory);
  const auto run = [&](Index t, Index) {
    const auto& task = tasks[static_cast<std::size_t>(t)];
    sums(t) = detail::sum_task(list[task.parameter], task);
  };
  context.executor.run(count, run);
  Sum sum(0);
  for (const Sum& part : sums) sum = sum + part;
  context.count_flops(2 * list.elements(), 2 * list.elements());
  using std::sqrt;
  return sqrt(sum);
}

/// What gradients of this norm are multiplied by so that their norm is at most max_norm:
/// max_norm / (norm + 1e-6), and never above 1. NaN for a norm that is NaN, 0 for an infinite one.
///
/// norm       what gradient_norm gave
/// max_norm   above 0
///
/// Throws  ArgumentError.
template <Scalar Sum>
Sum clip_factor(const Sum& norm, double max_norm) {
  require(is_finite_option(max_norm) && max_norm > 0, "clip_factor", "max_norm is ", max_norm,
          ", expected a finite number above 0");
  const Sum factor = Sum(max_norm) / (norm + Sum(1e-6));
  return Sum(1) < factor ? Sum(1) : factor;
}

/// Multiplies every gradient by `factor`. Work: 1 FLOP an element. Throws ArgumentError for a
/// parameter without one.
template <Scalar T>
void scale_gradients(const ParameterList<T>& list, const std::type_identity_t<T>& factor,
                     const Context& context = {}) {
  list.require_gradients("scale_gradients");
  const kernels::ModelKernels<T>& run = kernels::model_kernels_here<T>();
  detail::for_gradient_runs(list, context, [&](T* gradient, Index count, Index step) {
    if (step == 1) return run.scale_elements(factor, gradient, count);
    for (Index i = 0; i < count; ++i) gradient[i * step] = gradient[i * step] * factor;
  });
  context.count_flops(list.elements(), list.elements());
}

/// Multiplies the gradients by clip_factor of their norm, so that it is at most max_norm after.
/// Returns what the norm was.
///
/// (A step that is given clip_factor as its gradient_scale does the same in one pass less, but
/// refuses a norm that is NaN, which here makes every gradient NaN.)
/// Work    3 FLOPs an element.
/// Throws  ArgumentError for a max_norm that is not above 0 and a parameter without a gradient,
///         before anything is written; std::bad_alloc.
/// Source  Pascanu, Mikolov, Bengio, 2013, arXiv 1211.5063; torch.nn.utils.clip_grad_norm_.
template <Scalar T>
kernels::SumOf<T> clip_grad_norm(const ParameterList<T>& list, double max_norm,
                                 const Context& context = {}) {
  require(is_finite_option(max_norm) && max_norm > 0, "clip_grad_norm", "max_norm is ", max_norm,
          ", expected a finite number above 0");
  list.require_gradients("clip_grad_norm");
  const auto norm = gradient_norm(list, context);
  scale_gradients(list, static_cast<T>(clip_factor(norm, max_norm)), context);
  return norm;
}

HEADWISE_STRICT_MATH_END

/// Every gradient to 0: before the first backward of a step. Throws ArgumentError for a parameter
/// without one.
template <Scalar T>
void zero_gradients(const ParameterList<T>& list, const Context& context = {}) {
  list.require_gradients("zero_gradients");
  detail::for_gradient_runs(list, context, [](T* gradient, Index count, Index step) {
    if (step == 1) return detail::fill_run(gradient, count, T(0));
    for (Index i = 0; i < count; ++i) gradient[i * step] = T(0);
  });
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
