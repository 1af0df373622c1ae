// Variables side by side, as one, on the tape.
#pragma once

#include <concepts>
#include <tuple>

#include "headwise/autograd/views.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Variables side by side along one axis; the others' extents are equal. Nothing is kept. Throws
/// ShapeError, and ArgumentError for an axis that is not there.
template <Scalar T, int R, std::same_as<Variable<T, R>>... More>
Variable<T, R> concatenate(int axis, const Variable<T, R>& first, const More&... more) {
  detail::require_axis("concatenate", axis, R);
  Shape<R> shape = first.shape();
  [[maybe_unused]] const auto append = [&](const Variable<T, R>& part) {
    Shape<R> expected = first.shape();
    expected[axis] = part.extent(axis);
    require_shape("concatenate", "a part", part.value(), expected, "the first ", first.shape());
    shape[axis] += part.extent(axis);
  };
  (append(more), ...);
  Recording<T> call({"concatenate"}, first, more...);
  const Out<T, R> y = call.output(shape);
  Index at = 0;
  const auto put = [&](const Variable<T, R>& part) {
    const Index count = part.extent(axis);
    detail::combine_into<T, R>(kernels::Combination::first, part.value(), slice(y, axis, at, count),
                               call.context());
    at += count;
  };
  (put(first), (put(more), ...));
  const auto targets = std::make_tuple(call.optional_target(first), call.optional_target(more)...);
  const auto backward = [targets, axis](BackwardPass<T>& pass, In<T, R> dy) {
    Index from = 0;
    const auto give = [&](const auto& target) {
      pass.contribute(target, slice(dy, axis, from, target.shape[axis]));
      from += target.shape[axis];
    };
    std::apply([&](const auto&... target) { (give(target), ...); }, targets);
  };
  return call.finish(In<T, R>(y), backward);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
