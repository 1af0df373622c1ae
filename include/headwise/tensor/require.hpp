// The shape rules of a call, a line each:
//   require_shape("linear_forward", "w", w, Shape{I, O}, I, " from x ", x.shape())
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

// Without types and ranks, so that a program holds them once and not for each view that it checks.

[[gnu::noinline]] inline void require_countable(std::string_view function,
                                                std::string_view argument,
                                                std::span<const Index> extents, const void* data) {
  constexpr Index most = Index{1} << 48;
  Index bits = 0;
  for (const Index extent : extents) bits |= extent;
  // What is small is done with: such questions are 1 % of 16 tokens forward and backward.
  if (data != nullptr && extents.size() <= 4 && bits >= 0 && bits < (Index{1} << 12)) return;
  Index count = 1;
  bool some = true;
  for (const Index extent : extents) {
    if (extent < 0) {
      raise<ShapeError>(function, ": ", argument, " is ", extents,
                        ", expected extents of 0 or more");
    }
    if (extent > 0 && (__builtin_mul_overflow(count, extent, &count) || count > most)) {
      raise<ShapeError>(function, ": ", argument, " is ", extents,
                        ", expected extents whose product is at most 2^48");
    }
    some = some && extent > 0;
  }
  if (some && data == nullptr) {
    raise<ShapeError>(function, ": ", argument, " is ", extents,
                      " at a null address, expected its elements");
  }
}

/// Whether a view that is countable has the shape that is expected.
template <class T, int R>
[[gnu::noinline]] bool is_of_shape(std::string_view function, std::string_view argument,
                                   const In<T, R>& tensor, const Shape<R>& expected) {
  if (tensor.shape() != expected) return false;
  require_countable(function, argument, tensor.shape().extents, tensor.data());
  return true;
}

[[noreturn, gnu::cold, gnu::noinline]] inline void raise_shape(
    std::string_view function, std::string_view argument, std::span<const Index> extents,
    std::span<const Index> expected, std::initializer_list<MessagePart> whence) {
  raise<ShapeError>(function, ": ", argument, " is ", extents, ", expected ", expected, " (",
                    join(whence), ")");
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Throws ShapeError for a view with an extent below 0, with more elements than any memory holds
/// (an extent of 0 counts as 1, so that no product of extents overflows), or with elements and
/// no address.
template <class T, int R>
[[gnu::noinline]] void require_countable(std::string_view function, std::string_view argument,
                                         const In<T, R>& tensor) {
  detail::require_countable(function, argument, tensor.shape().extents, tensor.data());
}

/// Throws ShapeError `function: argument is [got], expected [wanted] (whence)` unless they agree,
/// and for a view that is not countable. `whence` is a message: its parts, or a callable.
template <class T, int R, class... Whence>
HEADWISE_INLINE void require_shape(std::string_view function, std::string_view argument,
                                   const In<T, R>& tensor, const Shape<R>& expected,
                                   const Whence&... whence) {
  const auto& got = tensor.shape().extents;
  if (detail::is_of_shape(function, argument, tensor, expected)) [[likely]]
    return;
  if constexpr ((... && std::is_invocable_v<const Whence&>)) {
    detail::raise_shape(function, argument, got, expected.extents, {whence()...});
  } else {
    detail::raise_shape(function, argument, got, expected.extents, {whence...});
  }
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
