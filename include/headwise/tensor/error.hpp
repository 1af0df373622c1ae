// What a caller's mistake turns into. Every public function checks its arguments before it writes
// anything, in release builds too; the sentence says what was given and what is expected. Where
// exceptions are switched off it goes to a handler of the user's.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "headwise/tensor/message.hpp"

namespace headwise::inline v0_1 {

/// A tensor has another shape or layout than the call needs.
class ShapeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An option, an index or a state does not fit the call.
class ArgumentError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A file cannot be read or written, or is not what its format says.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

inline std::atomic<void (*)(const char*)> error_handler = nullptr;

}  // namespace detail

/// What a program built with -fno-exceptions does about an error: it gets the sentence that would
/// have been thrown, and must not return (the program ends if it does).
using ErrorHandler = void (*)(const char* message);

/// Sets the handler for -fno-exceptions and returns the one before; nullptr brings back the
/// default, which prints to stderr and aborts. Code with exceptions throws and never asks it. A
/// std::bad_alloc and what else the standard library throws does not come here.
inline ErrorHandler set_error_handler(ErrorHandler handler) {
  return detail::error_handler.exchange(handler);
}

inline namespace HEADWISE_CODE {  // what they do depends on a flag

/// The message of the std::exception that `call` throws, or nothing. Without exceptions it only
/// calls.
template <class Call>
std::optional<std::string> error_of(Call&& call) {
#if HEADWISE_HAS_EXCEPTIONS
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
#else
  call();
#endif
  return std::nullopt;
}

/// The one place where the library throws.
template <class Error>
[[noreturn, gnu::cold, gnu::noinline]] void raise(const std::string& message) {
#if HEADWISE_HAS_EXCEPTIONS
  throw Error(message);
#else
  if (const ErrorHandler handler = detail::error_handler.load()) handler(message.c_str());
  std::fprintf(stderr, "headwise: %s\n", message.c_str());
  std::abort();
#endif
}

/// The same of a message in parts: texts, numbers and shapes.
///@{
template <class Error>
[[noreturn, gnu::cold, gnu::noinline]] void raise(
    std::initializer_list<detail::MessagePart> message) {
  raise<Error>(detail::join(message));
}
template <class Error, class... Parts>
requires(sizeof...(Parts) > 1) [[noreturn]] HEADWISE_INLINE void raise(const Parts&... message) {
  raise<Error>(std::initializer_list<detail::MessagePart>{message...});
}
///@}

/// Throws ArgumentError `function: message` unless `rule` holds. A message is its parts, or a
/// callable that returns a text: called only where the rule is broken.
template <class... Parts>
HEADWISE_INLINE void require(bool rule, std::string_view function, const Parts&... message) {
  if (rule) [[likely]]
    return;
  if constexpr ((... && std::is_invocable_v<const Parts&>)) {
    raise<ArgumentError>(function, ": ", message()...);
  } else {
    raise<ArgumentError>(function, ": ", message...);
  }
}

}  // namespace HEADWISE_CODE

}  // namespace headwise::inline v0_1
