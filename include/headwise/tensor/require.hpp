// The shape rules of a call, a line each:
//   require_shape("linear_forward", "w", w, Shape{I, O}, "I from x " + ...)
#pragma once

#include <string>
#include <string_view>

#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Throws ShapeError for a view with an extent below 0.
template <class T, int R>
void require_countable(std::string_view function, std::string_view argument,
                       const In<T, R>& tensor) {
  for (int r = 0; r < R; ++r) {
    if (tensor.extent(r) >= 0) [[likely]]
      continue;
    raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                      tensor.shape().format() + ", expected extents of 0 or more");
  }
}

/// Throws ShapeError `function: argument is [got], expected [wanted] (whence)` unless they agree.
/// `whence` is called only then, so that a call that is right builds no text.
template <class T, int R, class Whence>
void require_shape(std::string_view function, std::string_view argument, const In<T, R>& tensor,
                   const Shape<R>& expected, Whence&& whence) {
  if (tensor.shape() == expected) [[likely]]
    return;
  std::string text = std::string(function) + ": " + std::string(argument) + " is " +
                     tensor.shape().format() + ", expected " + expected.format();
  if constexpr (std::is_invocable_v<Whence>) {
    text += " (" + std::string(whence()) + ")";
  } else {
    text += " (" + std::string(whence) + ")";
  }
  raise<ShapeError>(text);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
