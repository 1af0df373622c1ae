// The shape rules of a call, a line each:
//   require_shape("linear_forward", "w", w, Shape{I, O}, "I from x " + ...)
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

// Without types and ranks, so that a program holds them once and not for each view that it checks.

[[gnu::noinline]] inline void require_countable(std::string_view function,
                                                std::string_view argument,
                                                std::span<const Index> extents, const void* data) {
  const auto subject = [&] {
    return std::string(function) + ": " + std::string(argument) + " is " + format_extents(extents);
  };
  constexpr Index most = Index{1} << 48;
  Index count = 1;
  bool some = true;
  for (const Index extent : extents) {
    if (extent < 0) raise<ShapeError>(subject() + ", expected extents of 0 or more");
    if (extent > 0 && (__builtin_mul_overflow(count, extent, &count) || count > most)) {
      raise<ShapeError>(subject() + ", expected extents whose product is at most 2^48");
    }
    some = some && extent > 0;
  }
  if (some && data == nullptr) {
    raise<ShapeError>(subject() + " at a null address, expected its elements");
  }
}

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_shape(std::string_view function,
                                                               std::string_view argument,
                                                               std::span<const Index> extents,
                                                               std::span<const Index> expected,
                                                               std::string_view whence) {
  raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                    format_extents(extents) + ", expected " + format_extents(expected) + " (" +
                    std::string(whence) + ")");
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Throws ShapeError for a view with an extent below 0, with more elements than any memory holds
/// (an extent of 0 counts as 1, so that no product of extents overflows), or with elements and
/// no address.
template <class T, int R>
void require_countable(std::string_view function, std::string_view argument,
                       const In<T, R>& tensor) {
  detail::require_countable(function, argument, tensor.shape().extents, tensor.data());
}

/// Throws ShapeError `function: argument is [got], expected [wanted] (whence)` unless they agree,
/// and for a view that is not countable. `whence` is called only then, so that a call that is right
/// builds no text.
template <class T, int R, class Whence>
void require_shape(std::string_view function, std::string_view argument, const In<T, R>& tensor,
                   const Shape<R>& expected, Whence&& whence) {
  if (tensor.shape() == expected) [[likely]]
    return require_countable(function, argument, tensor);
  const auto& got = tensor.shape().extents;
  if constexpr (std::is_invocable_v<Whence>) {
    detail::raise_shape(function, argument, got, expected.extents, whence());
  } else {
    detail::raise_shape(function, argument, got, expected.extents, whence);
  }
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
