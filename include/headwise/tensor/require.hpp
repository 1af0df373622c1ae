// The shape rules of a call, a line each:
//   require_shape("linear_forward", "w", w, Shape{I, O}, "I from x " + ...)
#pragma once

#include <string>
#include <string_view>

#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Throws ShapeError for a view with an extent below 0, with more elements than any memory holds
/// (an extent of 0 counts as 1, so that no product of extents overflows), or with elements and
/// no address.
template <class T, int R>
void require_countable(std::string_view function, std::string_view argument,
                       const In<T, R>& tensor) {
  constexpr Index most = Index{1} << 48;
  Index count = 1;
  bool some = true;
  for (int r = 0; r < R; ++r) {
    const Index extent = tensor.extent(r);
    if (extent < 0) {
      raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                        tensor.shape().format() + ", expected extents of 0 or more");
    }
    if (extent > 0 && count > most / extent) {
      raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                        tensor.shape().format() +
                        ", expected extents whose product is at most 2^48");
    }
    some = some && extent > 0;
    if (extent > 0) count *= extent;
  }
  if (some && tensor.data() == nullptr) {
    raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                      tensor.shape().format() + " at a null address, expected its elements");
  }
}

/// Throws ShapeError `function: argument is [got], expected [wanted] (whence)` unless they agree,
/// and for a view that is not countable. `whence` is called only then, so that a call that is right
/// builds no text.
template <class T, int R, class Whence>
void require_shape(std::string_view function, std::string_view argument, const In<T, R>& tensor,
                   const Shape<R>& expected, Whence&& whence) {
  if (tensor.shape() == expected) [[likely]]
    return require_countable(function, argument, tensor);
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
