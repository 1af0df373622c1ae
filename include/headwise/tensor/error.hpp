// What a caller's mistake turns into. Every public function checks its arguments before it writes
// anything, in release builds too; the sentence says what was given and what is expected.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "headwise/tensor/config.hpp"

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

/// The one place where the library throws.
template <class Error>
[[noreturn, gnu::cold, gnu::noinline]] void raise(const std::string& message) {
  throw Error(message);
}

/// Throws ArgumentError `function: message` unless `rule` holds. The message may be a callable, so
/// that a call that is right builds no text.
template <class Message>
void require(bool rule, std::string_view function, Message&& message) {
  if (rule) [[likely]]
    return;
  if constexpr (std::is_invocable_v<Message>) {
    raise<ArgumentError>(std::string(function) + ": " + std::string(message()));
  } else {
    raise<ArgumentError>(std::string(function) + ": " + std::string(message));
  }
}

}  // namespace headwise::inline v0_1
