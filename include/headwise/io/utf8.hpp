// UTF-8, as far as names in a file need it: whether text is well-formed, and how text of unknown
// origin is shown in a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headwise::inline v0_1::detail {

/// The bytes of the well-formed character that `text` begins with; 0 where there is none.
///
/// Overlong forms, surrogates and what lies above U+10FFFF are not well-formed (Unicode 15, table
/// 3-7).
constexpr std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t n) {
    return n < text.size() ? static_cast<unsigned char>(text[n]) : 0u;
  };
  const auto continues = [&](std::size_t n) { return (byte(n) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (text.empty()) return 0;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4 || !continues(1)) return 0;
  if (lead < 0xE0) return 2;
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) > 0x9F;
  const bool too_large = lead == 0xF4 && byte(1) > 0x8F;
  if (overlong || surrogate || too_large || !continues(2)) return 0;
  if (lead < 0xF0) return 3;
  return continues(3) ? 4 : 0;
}

constexpr bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

/// Appends a character of at most U+10FFFF.
inline void append_utf8(std::string& to, std::uint32_t code) {
  const auto put = [&](std::uint32_t bits) { to += static_cast<char>(bits); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | (code >> 6));
  } else {
    if (code < 0x10000) {
      put(0xE0 | (code >> 12));
    } else {
      put(0xF0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3F));
    }
    put(0x80 | ((code >> 6) & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

/// The bytes of the character that `text` begins with, where a message can show it; 0 for a control
/// character and for what is no UTF-8.
constexpr std::size_t shown_length(std::string_view text) {
  const std::size_t length = utf8_length(text);
  if (length == 0) return 0;
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
  const bool control =
      byte(0) < 0x20 || byte(0) == 0x7F || (length == 2 && byte(0) == 0xC2 && byte(1) < 0xA0);
  return control ? 0 : length;
}

/// Text out of a file, fit for a message: in quotes, on one line, not too long. Control characters
/// and bytes that are no UTF-8 are shown by their numbers.
inline std::string quote(std::string_view text) {
  constexpr std::size_t longest = 80;
  constexpr std::string_view digits = "0123456789abcdef";
  std::string quoted = "\"";
  std::size_t n = 0;
  while (n < text.size() && n < longest) {
    const auto first = static_cast<unsigned char>(text[n]);
    const std::size_t length = shown_length(text.substr(n));
    if (length == 0) {
      quoted += {'\\', 'x', digits[first / 16u], digits[first % 16u]};
      n += 1;
      continue;
    }
    if (first == '"' || first == '\\') quoted += '\\';
    quoted += text.substr(n, length);
    n += length;
  }
  return quoted + (n < text.size() ? "...\"" : "\"");
}

/// A file's name, fit to begin a message: as it is, or quoted where it is empty or holds what
/// cannot be shown.
inline std::string shown_name(std::string_view file) {
  std::size_t shown = 0;
  while (const std::size_t length = shown_length(file.substr(shown))) shown += length;
  return file.empty() || shown < file.size() ? quote(file) : std::string(file);
}

}  // namespace headwise::inline v0_1::detail
