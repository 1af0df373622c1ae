// What an error says: texts, numbers and extents, one behind the other, as
//   raise<ShapeError>(function, ": q is ", q.shape(), ", expected ", H, " heads");
// A place that may fail lists the parts, and one function writes them all: a std::string put
// together at each place took 0.9 KiB of code there, as compilers inline its + and its to_string.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1 {

/// Counts and offsets, in elements. Signed, so that differences are numbers.
using Index = std::ptrdiff_t;

/// `[2, 3, 4]`
inline std::string format_extents(std::span<const Index> extents) {
  std::string text = "[";
  for (std::size_t r = 0; r < extents.size(); ++r) {
    if (r != 0) text += ", ";
    text += std::to_string(extents[r]);
  }
  return text + "]";
}

namespace detail {

/// One of the things that a message is made of. It views them.
class MessagePart {
 public:
  MessagePart(std::string_view text) : kind_(Kind::text), text_(text.data()), size_(text.size()) {}
  MessagePart(const char* text) : MessagePart(std::string_view(text)) {}
  MessagePart(const std::string& text) : MessagePart(std::string_view(text)) {}
  MessagePart(std::integral auto whole) : kind_(Kind::whole), whole_(static_cast<Index>(whole)) {}
  MessagePart(std::floating_point auto real)
      : kind_(std::same_as<decltype(real), float> ? Kind::single : Kind::real),
        real_(static_cast<double>(real)) {}
  /// Extents, and what has them: a shape.
  ///@{
  template <std::convertible_to<std::span<const Index>> S>
  MessagePart(const S& list) : kind_(Kind::extents) {
    const std::span<const Index> extents = list;
    extents_ = extents.data();
    size_ = extents.size();
  }
  template <class S>
  requires requires(const S& shape) { std::span<const Index>(shape.extents); }
  MessagePart(const S& shape) : MessagePart(std::span<const Index>(shape.extents)) {}
  ///@}

  std::string format() const {
    if (kind_ == Kind::whole) return std::to_string(whole_);
    if (kind_ == Kind::single) return format_real(static_cast<float>(real_));
    if (kind_ == Kind::real) return format_real(real_);
    if (kind_ == Kind::extents) return format_extents({extents_, size_});
    return {text_, size_};
  }

 private:
  /// As few digits as tell it from all other numbers of its type: 1.5, 1e-50.
  static std::string format_real(auto real) {
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof(digits), real).ptr};
  }

  enum class Kind { text, whole, single, real, extents };
  Kind kind_;
  union {
    const char* text_;
    Index whole_;
    double real_;
    const Index* extents_;
  };
  std::size_t size_ = 0;  // of a text, or the number of extents
};

/// The parts as one text.
[[gnu::cold, gnu::noinline]] inline std::string join(std::initializer_list<MessagePart> parts) {
  std::string text;
  for (const MessagePart& part : parts) text += part.format();
  return text;
}

}  // namespace detail

}  // namespace headwise::inline v0_1
