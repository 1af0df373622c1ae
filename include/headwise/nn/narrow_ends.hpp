// Modules of floats with inputs and outputs of 16 bits: each number of an input becomes a float,
// each of an output the nearest number of the input's type, and a cache views what was given.
#pragma once

#include <utility>

#include "headwise/ops/stored_rows.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/runtime/viewed_input.hpp"
#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// narrow = y, each number as the nearest one of U; y becomes these numbers. Of one shape, dense.
template <NarrowFloat U, int R>
void round_to(Tensor<float, R>& y, Tensor<U, R>& narrow, const Context& context) {
  const auto round = kernels::model_kernels_here<float>().round_elements;
  for_rows(context, y.size(), 1, [&](Index begin, Index end) {
    round(stored_as<U>, y.data() + begin, end - begin, narrow.data() + begin);
  });
}

/// y in U, of its shape. Throws std::bad_alloc.
template <NarrowFloat U, int R>
Tensor<U, R> narrowed(Tensor<float, R> y, const Context& context) {
  auto narrow = Tensor<U, R>::uninitialized(y.shape(), context.memory);
  round_to(y, narrow, context);
  return narrow;
}

/// What a cache views of an input.
template <NarrowFloat U, int R>
ViewedFloats<R> viewed(const In<U, R>& x) {
  return {x, [](const ViewedFloats<R>& of, const Context& context) {
            return widened_tensor(of.template as<U>(), context);
          }};
}

// The calls of a module with ends in U, by those that it has for floats. What they may be given has
// been checked: an error of theirs is that there is no memory.

/// y for x, where forward(x) is that of floats.
template <NarrowFloat U, int R, class Forward>
Tensor<U, R> narrow_forward(const In<U, R>& x, const Context& context, const Forward& forward) {
  return narrowed<U>(forward(In<float, R>(widened_tensor(x, context))), context);
}
/// The same where forward(x, cache) fills a cache, in which view(cache, x) then puts what it views.
template <NarrowFloat U, int R, class Cache, class Forward, class View>
Tensor<U, R> narrow_forward(const In<U, R>& x, Cache& cache, const Context& context,
                            const Forward& forward, const View& view) {
  Cache filled;
  Tensor<U, R> y =
      narrow_forward(x, context, [&](const In<float, R>& wide) { return forward(wide, filled); });
  view(filled, viewed(x));
  cache = std::move(filled);
  return y;
}

/// y for x of its shape, where step(x) is that of floats and changes a cache: y is made before.
template <NarrowFloat U, class Step>
Tensor<U, 3> narrow_step(const In<U, 3>& x, const Context& context, const Step& step) {
  const Tensor<float, 3> wide = widened_tensor(x, context);
  auto y = Tensor<U, 3>::uninitialized(x.shape(), context.memory);
  Tensor<float, 3> of_floats = step(In<float, 3>(wide));
  round_to(of_floats, y, context);
  return y;
}

/// dx of this shape for dy, where backward(dy) is that of floats and adds to gradients: dx is made
/// before.
template <NarrowFloat U, int R, class Backward>
Tensor<U, R> narrow_backward(const In<U, R>& dy, const Shape<R>& of_x, const Context& context,
                             const Backward& backward) {
  const Tensor<float, R> wide = widened_tensor(dy, context);
  auto dx = Tensor<U, R>::uninitialized(of_x, context.memory);
  Tensor<float, R> of_floats = backward(In<float, R>(wide));
  round_to(of_floats, dx, context);
  return dx;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
