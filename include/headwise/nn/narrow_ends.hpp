// Modules of floats with inputs and outputs of 16 bits: each number of an input becomes a float,
// each of an output the nearest number of the input's type, and a cache views what was given.
#pragma once

#include <string_view>

#include "headwise/ops/stored_rows.hpp"
#include "headwise/runtime/viewed_input.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Throws ArgumentError for a cache that forward has not been called with.
template <class Cache>
void require_filled(std::string_view function, const Cache& cache) {
  require(cache.filled, function, "the cache is empty: pass it to forward first");
}

/// The nearest numbers of U to those of y, which become these.
template <NarrowFloat U, int R>
void round_to(Tensor<float, R>& y, Tensor<U, R>& narrow, const Context& context) {
  const auto round = kernels::model_kernels_here<float>().round_elements;
  for_rows(context, y.size(), 1, [&](Index begin, Index end) {
    round(stored_as<U>, y.data() + begin, end - begin, narrow.data() + begin);
  });
}

/// An output in U. Throws std::bad_alloc.
template <NarrowFloat U, int R>
Tensor<U, R> narrowed(Tensor<float, R> y, const Context& context) {
  auto narrow = Tensor<U, R>::uninitialized(y.shape(), context.memory);
  round_to(y, narrow, context);
  return narrow;
}

/// What a cache views of an input.
template <NarrowFloat U, int R>
ViewedFloats<R> viewed(const In<U, R>& x) {
  return {x.data(), x.shape(), x.strides(), [](const ViewedFloats<R>& of, const Context& context) {
            return widened_tensor(of.template as<U>(), context);
          }};
}

/// step(x as floats) in U, of x's shape. The output is made before the step, which changes what it
/// is called over. Throws as the step does, std::bad_alloc.
template <NarrowFloat U, class Step>
Tensor<U, 3> narrow_step(const In<U, 3>& x, const Context& context, const Step& step) {
  const Tensor<float, 3> wide = widened_tensor(x, context);
  auto y = Tensor<U, 3>::uninitialized(x.shape(), context.memory);
  Tensor<float, 3> of_floats = step(wide);
  round_to(of_floats, y, context);
  return y;
}

/// dx in U for a dy [of_y] in U, where backward(dy as floats) is dx as floats. What it returns is
/// made before anything is added to. Throws as backward does, ShapeError, std::bad_alloc.
template <NarrowFloat U, int R, class Cache, class Backward>
Tensor<U, R> narrow_backward(std::string_view function, const In<U, R>& dy, const Shape<R>& of_y,
                             const Cache& cache, const Shape<R>& of_x, const Context& context,
                             const Backward& backward) {
  require_filled(function, cache);
  require_shape(function, "dy", dy, of_y, "the output");
  const Tensor<float, R> wide = widened_tensor(dy, context);
  auto dx = Tensor<U, R>::uninitialized(of_x, context.memory);
  Tensor<float, R> of_floats = backward(wide);
  round_to(of_floats, dx, context);
  return dx;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
