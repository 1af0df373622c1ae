// Reads JSON (RFC 8259) from the front, as far as a safetensors header needs it: objects, lists of
// unsigned integers, strings. Nothing is built that the caller does not ask for, and nothing nests
// but the caller's own calls, so that what a text can make it allocate is the string it is asked
// for.
//
// It refuses what the grammar refuses up to the point where it is: what stands behind a value of a
// kind that the caller has no use for is never looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "headwise/io/safetensors_format.hpp"

namespace headwise::inline v0_1::detail {

/// A place in a header, which moves on with what is read.
class JsonCursor {
 public:
  /// file   named in messages
  JsonCursor(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  /// Of the next byte, in the file.
  std::uint64_t position() const { return header_length_bytes + at_; }

  [[noreturn]] void refuse(std::string_view message) const { raise_at(file_, position(), message); }
  [[noreturn]] void refuse_json(std::string_view reason) const {
    refuse("the header is not JSON: " + std::string(reason));
  }

  /// The next byte that is no white space, which stays the next one; 0 at the end.
  char peek() {
    while (at_ < text_.size() && is_white(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  /// Passes the next byte where it is `c`.
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) refuse_json("expected '" + std::string(1, c) + "'" + got());
  }

  /// Nothing but white space may be left.
  void expect_end() {
    peek();
    if (at_ != text_.size()) refuse_json("expected its end" + got());
  }

  /// What kind of value comes next, in words.
  std::string_view kind() {
    const char first = peek();
    if (first == '{') return "an object";
    if (first == '[') return "an array";
    if (first == '"') return "a string";
    if (first == '-') return "a negative number";
    if (is_digit(first)) return "a number";
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("null")) return "null";
    if (rest.starts_with("true") || rest.starts_with("false")) return "a boolean";
    refuse_json("expected a value" + got());
  }

  /// Calls member(key) for each member of an object, which has to read its value.
  ///
  /// most   the longest key that is still allowed, in bytes; member() may lower it
  template <class Member>
  void object(const std::size_t& most, Member&& member) {
    expect('{');
    if (take('}')) return;
    do {
      if (peek() != '"') refuse_json("expected a name in quotes" + got());
      std::string key = string(most);
      expect(':');
      member(std::move(key));
    } while (take(','));
    expect('}');
  }

  /// Calls element() for each element of a list, which has to read it.
  template <class Element>
  void list(Element&& element) {
    expect('[');
    if (take(']')) return;
    do {
      element();
    } while (take(','));
    expect(']');
  }

  /// A string of at most `most` bytes. Allocates its length, and not before that is known.
  std::string string(std::size_t most) {
    const std::size_t begin = at_;
    std::size_t length = 0;
    scan_string([&](std::string_view part) { length += part.size(); });
    if (length > most) {
      at_ = begin;
      refuse("a string of " + std::to_string(length) + " bytes is more than the " +
             std::to_string(most) + " that the reader has left for names and metadata");
    }
    at_ = begin;
    std::string text;
    text.reserve(length);
    scan_string([&](std::string_view part) { text += part; });
    return text;
  }

  /// An integer without a sign; nothing, and nothing read, where the number is of another kind.
  std::optional<std::uint64_t> unsigned_integer() {
    if (!is_digit(peek())) return std::nullopt;
    const std::size_t begin = at_;
    constexpr std::uint64_t most = (std::numeric_limits<std::uint64_t>::max)();
    std::uint64_t value = 0;
    bool fits = true;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
      fits = fits && value <= (most - digit) / 10;
      value = value * 10 + digit;
    }
    if (text_[begin] == '0' && at_ - begin > 1) refuse_json("a number begins with 0");
    const char next = at_ < text_.size() ? text_[at_] : '\0';
    if (fits && next != '.' && next != 'e' && next != 'E') return value;
    at_ = begin;
    return std::nullopt;
  }

 private:
  static bool is_white(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
  /// Whether a string holds it as it is, in one byte.
  static bool is_plain(char c) {
    const auto code = static_cast<unsigned char>(c);
    return code >= 0x20 && code < 0x80 && c != '"' && c != '\\';
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  /// ", got ..." for a message.
  std::string got() const {
    return at_ < text_.size() ? ", got " + quote(text_.substr(at_, 1)) : ", got its end";
  }

  /// Passes a string, and calls take(part) for what it means, part by part.
  template <class Take>
  void scan_string(Take&& take) {
    ++at_;  // the quote
    std::string escaped;
    for (;;) {
      if (at_ == text_.size()) refuse_json("a string has no end");
      if (const std::size_t begin = at_; is_plain(text_[at_])) {
        while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
        take(text_.substr(begin, at_ - begin));
        continue;
      }
      const char c = text_[at_];
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) refuse_json("a control character in a string");
      if (c == '\\') {
        escaped.clear();
        append_utf8(escaped, escape());
        take(std::string_view(escaped));
        continue;
      }
      const std::size_t length = utf8_length(text_.substr(at_));
      if (length == 0) refuse_json("ill-formed UTF-8");
      take(text_.substr(at_, length));
      at_ += length;
    }
    ++at_;
  }

  /// The character that an escape means.
  std::uint32_t escape() {
    ++at_;  // the backslash
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char letter = at_ < text_.size() ? text_[at_] : '\0';
    if (letter == 'u') {
      ++at_;
      return escaped_code();
    }
    const std::size_t which = letters.find(letter);
    if (which == std::string_view::npos) refuse_json("an escape that JSON does not know");
    ++at_;
    return static_cast<unsigned char>(meanings[which]);
  }

  std::uint32_t escaped_code() {
    const std::uint32_t high = four_hex_digits();
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || text_.substr(at_, 2) != "\\u") refuse_json("half a surrogate pair");
    at_ += 2;
    const std::uint32_t low = four_hex_digits();
    if (low < 0xDC00 || low > 0xDFFF) refuse_json("half a surrogate pair");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  std::uint32_t four_hex_digits() {
    std::uint32_t code = 0;
    for (const std::size_t end = at_ + 4; at_ < end; ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) refuse_json("\\u without four hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(digit);
    }
    return code;
  }

  std::string_view text_;
  std::string_view file_;
  std::size_t at_ = 0;
};

/// Appends text as a JSON string: what must be escaped is, and nothing else.
inline void append_json_string(std::string& to, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  constexpr std::string_view with_letter = "\"\\\b\f\n\r\t";
  constexpr std::string_view letters = "\"\\bfnrt";
  to += '"';
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (const std::size_t which = with_letter.find(c); which != std::string_view::npos) {
      to += {'\\', letters[which]};
    } else if (code < 0x20) {
      to += {'\\', 'u', '0', '0', digits[code / 16u], digits[code % 16u]};
    } else {
      to += c;
    }
  }
  to += '"';
}

}  // namespace headwise::inline v0_1::detail
