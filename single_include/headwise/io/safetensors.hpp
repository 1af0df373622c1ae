// headwise 0.1.0: headwise/io/safetensors.hpp and the headers below it in one file, made from include/ by
// tools/amalgamate. It is not for editing.
//
// MIT License
//
// Copyright (c) 2026 The headwise authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../headwise.hpp"

// headwise/io/utf8.hpp
// UTF-8, as far as names in a file need it: whether text is well-formed, and how text of unknown
// origin is shown in a message.

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

// headwise/io/read_file.hpp
// A regular file that is read from its beginning. Folders, pipes and devices are refused: they have
// no size that a header could be held against.

namespace headwise::inline v0_1::detail {

/// A file descriptor, closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  /// Opens again where a signal came between. A new file gets `mode`, less the umask.
  static int open(const char* path, int flags, ::mode_t mode = 0666) {
    for (;;) {
      const int number = ::open(path, flags | O_CLOEXEC, mode);
      if (number >= 0 || errno != EINTR) return number;
    }
  }

  int number() const { return number_; }

 private:
  int number_;
};

[[noreturn]] inline void raise_file_error(const std::string& file, std::string_view what,
                                          int error) {
  raise<FileError>(shown_name(file) + ": " + std::string(what) + ": " +
                   std::generic_category().message(error));
}

inline void require_regular(const std::string& file, const struct ::stat& status) {
  if (!S_ISREG(status.st_mode)) raise<FileError>(shown_name(file) + ": is not a regular file");
}

class InputFile {
 public:
  /// Throws FileError for what is not there, cannot be opened, or is no regular file.
  explicit InputFile(const std::filesystem::path& path)
      : name_(path.string()),
        // Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        file_(Descriptor::open(name_.c_str(), O_RDONLY | O_NONBLOCK)) {
    if (file_.number() < 0) raise_file_error(name_, "cannot be opened for reading", errno);
    struct ::stat status {};
    if (::fstat(file_.number(), &status) != 0) raise_file_error(name_, "cannot be read", errno);
    require_regular(name_, status);
    size_ = static_cast<std::uint64_t>(status.st_size);
  }

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }

  /// The next `count` bytes. Throws FileError where they do not come.
  void read(void* to, std::uint64_t count) {
    auto* next = static_cast<std::byte*>(to);
    while (count != 0) {
      constexpr std::uint64_t most = std::uint64_t{1} << 30;  // what one call is sure to take
      const ::ssize_t got = ::read(file_.number(), next, std::min<std::uint64_t>(count, most));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail(got < 0 ? errno : 0);
      next += got;
      position_ += static_cast<std::uint64_t>(got);
      count -= static_cast<std::uint64_t>(got);
    }
  }

 private:
  [[noreturn]] void fail(int error) const {
    const std::string what = "byte " + std::to_string(position_) + ": cannot be read further";
    if (error != 0) raise_file_error(name_, what, error);
    raise<FileError>(shown_name(name_) + ": " + what + ": it has become shorter");
  }

  std::string name_;
  Descriptor file_;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace headwise::inline v0_1::detail

// headwise/io/dtype.hpp
// The element types of a safetensors file.

namespace headwise::inline v0_1 {

/// What the bytes of a stored tensor are, narrow types first.
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

namespace detail {

struct DTypeInfo {
  std::string_view name;
  unsigned bytes;
};

/// In the order of DType.
inline constexpr std::array<DTypeInfo, 17> dtype_infos{{{"BOOL", 1},
                                                        {"U8", 1},
                                                        {"I8", 1},
                                                        {"F8_E5M2", 1},
                                                        {"F8_E4M3", 1},
                                                        {"F8_E8M0", 1},
                                                        {"I16", 2},
                                                        {"U16", 2},
                                                        {"F16", 2},
                                                        {"BF16", 2},
                                                        {"I32", 4},
                                                        {"U32", 4},
                                                        {"F32", 4},
                                                        {"C64", 8},
                                                        {"F64", 8},
                                                        {"I64", 8},
                                                        {"U64", 8}}};

}  // namespace detail

/// `F64`, `BOOL`: as the file spells it.
constexpr std::string_view dtype_name(DType dtype) {
  return detail::dtype_infos[static_cast<std::size_t>(dtype)].name;
}

/// Bytes of one element.
constexpr unsigned dtype_bytes(DType dtype) {
  return detail::dtype_infos[static_cast<std::size_t>(dtype)].bytes;
}

/// The inverse of dtype_name; nothing for a name that this library does not know.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t d = 0; d < detail::dtype_infos.size(); ++d) {
    if (detail::dtype_infos[d].name == name) return static_cast<DType>(d);
  }
  return std::nullopt;
}

/// What a tensor of a file can be read as, and written from.
template <class T>
concept StoredScalar = StoredFloat<T> || std::same_as<T, bool>;

/// The type that holds a T without a conversion.
template <StoredScalar T>
inline constexpr DType dtype_of = std::same_as<T, double>     ? DType::f64
                                  : std::same_as<T, float>    ? DType::f32
                                  : std::same_as<T, Float16>  ? DType::f16
                                  : std::same_as<T, BFloat16> ? DType::bf16
                                                              : DType::boolean;

namespace detail {

/// Calls f with a std::type_identity of the type that holds this dtype; false if it is no float.
template <class F>
bool with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      f(std::type_identity<double>());
      return true;
    case DType::f32:
      f(std::type_identity<float>());
      return true;
    case DType::f16:
      f(std::type_identity<Float16>());
      return true;
    case DType::bf16:
      f(std::type_identity<BFloat16>());
      return true;
    default:
      return false;
  }
}

}  // namespace detail

}  // namespace headwise::inline v0_1

// headwise/io/safetensors_format.hpp
// What a safetensors header says of a tensor, and the words in which a file is refused.

namespace headwise::inline v0_1::detail {

static_assert(std::endian::native == std::endian::little,
              "headwise reads and writes safetensors on little-endian machines only");

inline constexpr std::uint64_t header_length_bytes = 8;
inline constexpr std::uint64_t max_header_length = 100'000'000;
inline constexpr std::size_t max_rank = 8;
/// What a header may make the reader keep beside the file's own bytes. About 170,000 tensors.
inline constexpr std::size_t max_entry_bytes = std::size_t{48} << 20;
inline constexpr std::string_view metadata_key = "__metadata__";

struct StoredTensor {
  std::string name;
  DType dtype{};
  std::vector<Index> shape;
  std::uint64_t begin = 0;     // of its bytes, counted from the end of the header
  std::uint64_t end = 0;       // one past its last byte
  std::uint64_t position = 0;  // of its entry in the file
};

struct SafetensorsHeader {
  std::deque<StoredTensor> tensors;  // as the header lists them; growing it copies nothing
  std::vector<std::size_t> by_name;  // their numbers, in the order of their names
  std::map<std::string, std::string> metadata;
};

[[noreturn]] inline void raise_at(std::string_view file, std::uint64_t position,
                                  std::string_view message) {
  raise<FileError>(shown_name(file) + ": byte " + std::to_string(position) + ": " +
                   std::string(message));
}

/// The memory that an entry is counted with: its bytes, and what each block of the heap adds.
///@{
constexpr std::size_t entry_charge(std::size_t bytes, std::size_t blocks) {
  constexpr std::size_t block_overhead = 32;
  return bytes + blocks * block_overhead;
}
/// A line of metadata, without its value.
constexpr std::size_t metadata_charge(std::size_t key_bytes) {
  constexpr std::size_t node_bytes = sizeof(std::pair<std::string, std::string>) + 32;
  return entry_charge(node_bytes + key_bytes, 3);
}
/// A tensor, its place in `tensors` and in two orders of them, without its shape.
constexpr std::size_t tensor_charge(std::size_t name_bytes) {
  return entry_charge(sizeof(StoredTensor) + 3 * sizeof(std::size_t) + name_bytes, 2);
}
constexpr std::size_t shape_charge(std::size_t rank) { return rank * sizeof(Index); }
///@}

/// The bytes of a dense tensor. Nothing for an extent below 0 and where Index cannot count the
/// bytes of the extents other than 0: strides are products of those.
inline std::optional<std::uint64_t> tensor_bytes(std::span<const Index> shape, DType dtype) {
  Index bytes = dtype_bytes(dtype);
  bool empty = false;
  for (Index extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (bytes > (std::numeric_limits<Index>::max)() / extent) {
      return std::nullopt;
    } else {
      bytes *= extent;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

}  // namespace headwise::inline v0_1::detail

// headwise/io/json_cursor.hpp
// Reads JSON (RFC 8259) from the front, as far as a safetensors header needs it: objects, lists of
// unsigned integers, strings. Nothing is built that the caller does not ask for, and nothing nests
// but the caller's own calls, so that what a text can make it allocate is the string it is asked
// for.
//
// It refuses what the grammar refuses up to the point where it is: what stands behind a value of a
// kind that the caller has no use for is never looked at.

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

// headwise/io/safetensors_parser.hpp
// The entries of a safetensors header, read one behind the other. What has no place in the format
// ends the reading at once, and so does a header whose entries would take more memory than the
// format's use ever asks for.

namespace headwise::inline v0_1::detail {

/// Turns a header's text into its entries, each checked for itself.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string_view file)
      : text_(text), file_(file), json_(text, file) {}

  SafetensorsHeader read() {
    if (text_.starts_with("\xEF\xBB\xBF")) json_.refuse("the header begins with a byte order mark");
    if (const auto zero = text_.find('\0'); zero != std::string_view::npos) {
      raise_at(file_, header_length_bytes + zero, "the header holds a zero byte");
    }
    if (json_.peek() == '\0') json_.refuse_json("it is empty");
    if (json_.peek() != '{') json_.refuse("the header is " + value_kind() + ", expected an object");
    json_.object(left_, [&](std::string key) {
      if (key == metadata_key) {
        read_metadata();
      } else {
        read_tensor(std::move(key));
      }
    });
    json_.expect_end();
    return std::move(header_);
  }

 private:
  struct Fields {
    bool dtype = false, shape = false, data_offsets = false;
  };

  /// Takes the memory of an entry from what is left.
  void charge(std::size_t bytes) {
    if (bytes > left_) {
      json_.refuse("names, shapes and metadata take more than " + std::to_string(max_entry_bytes) +
                   " bytes of memory");
    }
    left_ -= bytes;
  }

  /// As `kind`, and for a number why it is no unsigned integer.
  std::string value_kind() {
    const std::string_view kind = json_.kind();
    if (kind == "a number" && !json_.unsigned_integer()) {
      return "a number with a fraction, an exponent or too many digits";
    }
    return std::string(kind);
  }

  void read_metadata() {
    if (std::exchange(has_metadata_, true)) json_.refuse("__metadata__ occurs twice");
    if (json_.peek() != '{')
      json_.refuse("__metadata__ is " + value_kind() + ", expected an object");
    json_.object(left_, [&](std::string key) {
      charge(metadata_charge(key.size()));
      if (json_.peek() != '"') {
        json_.refuse("__metadata__: " + quote(key) + " is " + value_kind() + ", expected a string");
      }
      std::string value = json_.string(left_);
      charge(value.size());
      const auto [line, inserted] = header_.metadata.try_emplace(std::move(key), std::move(value));
      if (!inserted) json_.refuse("__metadata__: the key " + quote(line->first) + " occurs twice");
    });
  }

  void read_tensor(std::string name) {
    charge(tensor_charge(name.size()));
    StoredTensor tensor;
    tensor.name = std::move(name);
    if (json_.peek() != '{') {
      json_.refuse(where(tensor) + " is " + value_kind() + ", expected an object");
    }
    tensor.position = json_.position();
    Fields seen;
    json_.object(left_, [&](const std::string& field) {
      bool* const is_seen = field == "dtype"          ? &seen.dtype
                            : field == "shape"        ? &seen.shape
                            : field == "data_offsets" ? &seen.data_offsets
                                                      : nullptr;
      if (is_seen == nullptr) {
        json_.refuse(where(tensor) + ": the field " + quote(field) + " is not known");
      }
      if (std::exchange(*is_seen, true)) {
        json_.refuse(where(tensor) + ": " + field + " occurs twice");
      }
      if (field == "dtype") {
        read_dtype(tensor);
      } else if (field == "shape") {
        read_shape(tensor);
      } else {
        read_offsets(tensor);
      }
    });
    check_tensor(tensor, seen);
    header_.tensors.push_back(std::move(tensor));
  }

  void read_dtype(StoredTensor& tensor) {
    if (json_.peek() != '"') {
      json_.refuse(where(tensor) + ": dtype is " + value_kind() + ", expected a string");
    }
    const std::uint64_t position = json_.position();
    const std::string name = json_.string(left_);
    const std::optional<DType> dtype = dtype_from_name(name);
    if (!dtype) {
      raise_at(file_, position, where(tensor) + ": dtype " + quote(name) + " is not known");
    }
    tensor.dtype = *dtype;
  }

  void read_shape(StoredTensor& tensor) {
    std::array<Index, max_rank> extents{};
    std::size_t rank = 0;
    read_numbers(tensor, "shape", [&](std::uint64_t number) {
      if (rank == max_rank) {
        json_.refuse(where(tensor) + ": shape has more than " + std::to_string(max_rank) + " axes");
      }
      if (number > static_cast<std::uint64_t>((std::numeric_limits<Index>::max)())) {
        json_.refuse(where(tensor) + ": shape holds " + std::to_string(number) +
                     ", more than can be counted");
      }
      extents[rank++] = static_cast<Index>(number);
    });
    charge(shape_charge(rank));
    tensor.shape.assign(extents.begin(), extents.begin() + static_cast<std::ptrdiff_t>(rank));
  }

  void read_offsets(StoredTensor& tensor) {
    int count = 0;
    read_numbers(tensor, "data_offsets", [&](std::uint64_t number) {
      if (count == 2) json_.refuse(where(tensor) + ": data_offsets holds more than 2 numbers");
      (count++ == 0 ? tensor.begin : tensor.end) = number;
    });
    if (count != 2) refuse_entry(tensor, "data_offsets does not hold 2 numbers");
  }

  template <class Take>
  void read_numbers(const StoredTensor& tensor, std::string_view field, Take&& take) {
    if (json_.peek() != '[') {
      json_.refuse(where(tensor) + ": " + std::string(field) + " is " + value_kind() +
                   ", expected an array of unsigned integers");
    }
    json_.list([&] {
      const std::optional<std::uint64_t> number = json_.unsigned_integer();
      if (!number) {
        json_.refuse(where(tensor) + ": " + std::string(field) + " holds " + value_kind() +
                     ", expected an unsigned integer");
      }
      take(*number);
    });
  }

  static std::string where(const StoredTensor& tensor) { return "tensor " + quote(tensor.name); }

  [[noreturn]] void refuse_entry(const StoredTensor& tensor, const std::string& message) const {
    raise_at(file_, tensor.position, where(tensor) + ": " + message);
  }

  void check_tensor(const StoredTensor& tensor, const Fields& seen) const {
    if (!seen.dtype) refuse_entry(tensor, "dtype is missing");
    if (!seen.shape) refuse_entry(tensor, "shape is missing");
    if (!seen.data_offsets) refuse_entry(tensor, "data_offsets is missing");
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor.shape, tensor.dtype);
    if (bytes && tensor.begin <= tensor.end && tensor.end - tensor.begin == *bytes) return;

    const std::string offsets =
        "data_offsets [" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + "]";
    if (tensor.begin > tensor.end) refuse_entry(tensor, offsets + " end before they begin");
    const std::string shape =
        "shape " + format_extents(tensor.shape) + " of " + std::string(dtype_name(tensor.dtype));
    if (!bytes) refuse_entry(tensor, shape + " has more bytes than can be counted");
    refuse_entry(tensor, offsets + " hold " + std::to_string(tensor.end - tensor.begin) +
                             " bytes, " + shape + " needs " + std::to_string(*bytes));
  }

  std::string_view text_;
  std::string_view file_;
  JsonCursor json_;
  std::size_t left_ = max_entry_bytes;  // that the entries may still take
  bool has_metadata_ = false;
  SafetensorsHeader header_;
};

}  // namespace headwise::inline v0_1::detail

// headwise/io/safetensors_header.hpp
// The header of a safetensors file: a JSON object that says of each tensor what it is and where its
// bytes lie. Everything about it is checked here, before memory for any data is asked for.
//
// It accepts what the reference implementation accepts, white space around the object, names in
// any order, scalars and empty tensors included, and refuses more in seven places: a name or key
// that occurs twice (the format forbids it, the reference keeps the last), a field that it does not
// know (it could change what the bytes mean), a `__metadata__` that is null, more than 8 axes, a
// shape whose extents other than 0 multiply to more bytes than Index counts, elements of less than
// a byte, names and metadata that take more memory than max_entry_bytes.

namespace headwise::inline v0_1::detail {

/// Throws FileError unless every name occurs once. Leaves the names' order in by_name.
inline void index_names(SafetensorsHeader& header, std::string_view file) {
  header.by_name.resize(header.tensors.size());
  std::iota(header.by_name.begin(), header.by_name.end(), std::size_t{0});
  const auto& tensors = header.tensors;
  std::sort(header.by_name.begin(), header.by_name.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(tensors[a].name, tensors[a].position) <
           std::tie(tensors[b].name, tensors[b].position);
  });
  const auto twice = std::adjacent_find(
      header.by_name.begin(), header.by_name.end(),
      [&](std::size_t a, std::size_t b) { return tensors[a].name == tensors[b].name; });
  if (twice == header.by_name.end()) return;
  const StoredTensor& second = tensors[*std::next(twice)];
  raise_at(file, second.position, "tensor " + quote(second.name) + " occurs twice");
}

/// Throws FileError unless the tensors fill the data one behind the other: no hole, no overlap,
/// nothing behind the last.
inline void check_tiling(const SafetensorsHeader& header, std::uint64_t data_begin,
                         std::uint64_t data_bytes, std::string_view file) {
  std::vector<std::size_t> order(header.by_name);
  const auto& tensors = header.tensors;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(tensors[a].begin, tensors[a].end, tensors[a].position) <
           std::tie(tensors[b].begin, tensors[b].end, tensors[b].position);
  });
  std::uint64_t filled = 0;
  for (std::size_t t : order) {
    const StoredTensor& tensor = tensors[t];
    if (tensor.begin != filled) {
      raise_at(file, tensor.position,
               "tensor " + quote(tensor.name) + ": data_offsets begin at " +
                   std::to_string(tensor.begin) + ", the tensors before end at " +
                   std::to_string(filled));
    }
    filled = tensor.end;
  }
  if (filled != data_bytes) {
    raise_at(file, data_begin + (std::min)(filled, data_bytes),
             "the tensors take " + std::to_string(filled) + " bytes of data, the file holds " +
                 std::to_string(data_bytes));
  }
}

/// Reads and checks the whole header.
///
/// text         the bytes between the header length and the data
/// data_bytes   how many bytes follow the header
/// file         named in the messages
///
/// Work     O(n log n) for n tensors; memory at most max_entry_bytes and a message.
/// Throws   FileError `file: byte N: what is wrong`, before any data is read.
inline SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                  std::string_view file) {
  SafetensorsHeader header = HeaderReader(text, file).read();
  index_names(header, file);
  check_tiling(header, header_length_bytes + text.size(), data_bytes, file);
  return header;
}

/// Throws FileError unless a file of this many bytes can have a header of this length.
inline void check_header_length(std::uint64_t length, std::uint64_t file_bytes,
                                std::string_view file) {
  if (length > max_header_length) {
    raise_at(file, 0,
             "the header length is " + std::to_string(length) + ", expected at most " +
                 std::to_string(max_header_length));
  }
  if (length > file_bytes - header_length_bytes) {
    raise_at(file, 0,
             "the header length is " + std::to_string(length) + ", but only " +
                 std::to_string(file_bytes - header_length_bytes) + " bytes follow it");
  }
}

}  // namespace headwise::inline v0_1::detail

// headwise/io/safetensors_reader.hpp
// Reads tensors by name from a safetensors file: the length of a header (8 bytes, little-endian),
// the header (JSON), the elements, dense, row-major and little-endian.
//
// A file is refused, with its name and the byte at fault, unless its header accounts for every byte
// of it. That is found out before memory is asked for: what a file can make the reader allocate is
// less than its own size and 64 MiB. The elements are not looked at, so NaN passes.

namespace headwise::inline v0_1 {

/// The tensors of one file, held in memory. Const calls from many threads are safe. One that was
/// moved from holds no tensor, and its name is empty.
class SafetensorsFile {
 public:
  /// An empty file.
  SafetensorsFile() = default;

  /// Reads a whole file.
  ///
  /// Throws   FileError where it cannot be read, is no regular file, or breaks the format;
  ///          std::bad_alloc.
  static SafetensorsFile read(const std::filesystem::path& path) {
    detail::InputFile file(path);
    return read_parts(file.name(), file.size(),
                      [&](void* to, std::uint64_t count) { file.read(to, count); });
  }

  /// The same from memory; the bytes are copied.
  ///
  /// name   of the file in messages; they quote it where it is empty or has control characters
  ///
  /// Throws   FileError where they are not what the format says, std::bad_alloc.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string name = "memory") {
    return read_parts(std::move(name), bytes.size(), [&](void* to, std::uint64_t count) {
      if (count == 0) return;
      std::memcpy(to, bytes.data(), count);
      bytes = bytes.subspan(count);
    });
  }

  /// The file's path, or the name that `parse` was given: what messages begin with.
  const std::string& name() const { return name_; }

  /// The tensors' names in the order of the header.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    names.reserve(header_.tensors.size());
    for (const auto& tensor : header_.tensors) names.push_back(tensor.name);
    return names;
  }

  /// The `__metadata__` of the header; empty where it has none.
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Whether the file holds a tensor of this name.
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// The extents of a tensor. Throws FileError for a name that the file does not hold.
  const std::vector<Index>& shape(std::string_view name) const { return at(name).shape; }
  /// The type of its elements. Throws FileError likewise.
  DType dtype(std::string_view name) const { return at(name).dtype; }

  /// The elements as they stand in the file, for types that `get` does not read. Throws FileError
  /// likewise.
  std::span<const std::byte> bytes(std::string_view name) const { return bytes_of(at(name)); }

  /// A copy of one tensor, its elements converted to T.
  ///
  /// T   double, float, Float16, BFloat16: from F64, F32, F16, BF16, rounded to nearest, ties to
  ///     even. bool: from BOOL, where any byte but 0 is true
  /// R   the number of axes, as the file has it; see `scalar` for none
  ///
  /// Throws   FileError for a name that the file does not hold, for another rank, and for a type
  ///          that does not convert to T.
  template <StoredScalar T, int R>
  Tensor<T, R> get(std::string_view name,
                   std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    const detail::StoredTensor& tensor = at(name);
    require_rank(tensor, R);
    Shape<R> shape;
    for (int r = 0; r < R; ++r) shape[r] = tensor.shape[static_cast<std::size_t>(r)];
    require_type<T>(tensor);
    Tensor<T, R> result(shape, memory);
    convert_elements(tensor, result.data(), result.size());
    return result;
  }

  /// The one element of a tensor without axes. Throws FileError as `get` does.
  template <StoredScalar T>
  T scalar(std::string_view name) const {
    const detail::StoredTensor& tensor = at(name);
    require_rank(tensor, 0);
    require_type<T>(tensor);
    T value{};
    convert_elements(tensor, &value, 1);
    return value;
  }

 private:
  /// read_next(to, count) delivers the next bytes of the file.
  template <class ReadNext>
  static SafetensorsFile read_parts(std::string name, std::uint64_t file_bytes,
                                    ReadNext&& read_next) {
    using detail::header_length_bytes;
    if (file_bytes < header_length_bytes) {
      detail::raise_at(name, file_bytes,
                       "the file ends inside the header length, its first 8 bytes");
    }
    std::uint64_t length = 0;
    read_next(&length, header_length_bytes);
    detail::check_header_length(length, file_bytes, name);
    std::string text(length, '\0');
    read_next(text.data(), length);
    const std::uint64_t data_bytes = file_bytes - header_length_bytes - length;

    SafetensorsFile file;
    file.header_ = detail::parse_safetensors_header(text, data_bytes, name);
    file.name_ = std::move(name);
    std::string().swap(text);
    file.data_.resize(data_bytes);
    read_next(file.data_.data(), data_bytes);
    return file;
  }

  const detail::StoredTensor* find(std::string_view name) const {
    const auto& order = header_.by_name;
    const auto found = std::lower_bound(
        order.begin(), order.end(), name,
        [&](std::size_t t, std::string_view wanted) { return header_.tensors[t].name < wanted; });
    if (found == order.end() || header_.tensors[*found].name != name) return nullptr;
    return &header_.tensors[*found];
  }

  const detail::StoredTensor& at(std::string_view name) const {
    if (const detail::StoredTensor* tensor = find(name)) return *tensor;
    constexpr std::size_t most = 16;
    std::string held;
    for (std::size_t t = 0; t < header_.tensors.size() && t < most; ++t) {
      held += (t == 0 ? "" : ", ") + detail::quote(header_.tensors[t].name);
    }
    if (header_.tensors.size() > most) held += ", ...";
    raise<FileError>(detail::shown_name(name_) + ": holds no tensor " + detail::quote(name) +
                     ", but " + std::to_string(header_.tensors.size()) +
                     (held.empty() ? "" : ": ") + held);
  }

  std::span<const std::byte> bytes_of(const detail::StoredTensor& tensor) const {
    return std::span(data_).subspan(tensor.begin, tensor.end - tensor.begin);
  }

  [[noreturn]] void refuse(const detail::StoredTensor& tensor, const std::string& message) const {
    detail::raise_at(name_, tensor.position,
                     "tensor " + detail::quote(tensor.name) + " is " + message);
  }

  void require_rank(const detail::StoredTensor& tensor, int rank) const {
    if (tensor.shape.size() == static_cast<std::size_t>(rank)) return;
    refuse(tensor, format_extents(tensor.shape) + ", expected " + std::to_string(rank) +
                       (rank == 1 ? " axis" : " axes"));
  }

  template <StoredScalar T>
  void require_type(const detail::StoredTensor& tensor) const {
    const bool stored_float = detail::with_float_type(tensor.dtype, [](auto) {});
    if (StoredFloat<T> ? stored_float : tensor.dtype == DType::boolean) return;
    refuse(tensor, std::string(dtype_name(tensor.dtype)) + ", which does not convert to " +
                       std::string(dtype_name(dtype_of<T>)));
  }

  template <StoredScalar T>
  void convert_elements(const detail::StoredTensor& tensor, T* to, Index count) const {
    const std::byte* from = bytes_of(tensor).data();
    if constexpr (StoredFloat<T>) {
      detail::with_float_type(tensor.dtype, [&]<class From>(std::type_identity<From>) {
        for (Index i = 0; i < count; ++i, from += sizeof(From)) {
          From value;
          std::memcpy(&value, from, sizeof(From));
          to[i] = convert_float<T>(value);
        }
      });
    } else {
      for (Index i = 0; i < count; ++i) to[i] = from[i] != std::byte{0};
    }
  }

  std::string name_ = "memory";
  detail::SafetensorsHeader header_;
  std::vector<std::byte> data_;
};

}  // namespace headwise::inline v0_1

// headwise/io/write_file.hpp
// A file that is written whole or not at all: into a temporary neighbour, which then takes its
// name. A reader sees the old content or the new, never a part; so does the disk after a crash.
//
// It replaces regular files alone, and the new file keeps the old one's permissions, but neither
// set-user-ID nor set-group-ID: those were given to the old content. A symbolic link stays: the
// file that it leads to is the one that is written, and there has to be one. Folders, pipes and
// devices are refused before anything is made.
//
// A process that is killed while it writes leaves its temporary file, .headwise-<process>-<n>.tmp,
// in the folder of what it wrote. Nobody reads it, and later writes take the next number; it is
// deleted by hand alone, for it might be another process that is writing.

namespace headwise::inline v0_1::detail {

/// The file that a path leads to. Throws FileError for a symbolic link to nothing.
inline std::filesystem::path follow_link(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, error))) return path;
  std::filesystem::path file = std::filesystem::canonical(path, error);
  if (error) raise_file_error(path.string(), "cannot be followed", error.value());
  return file;
}

/// Who may read, write and execute the file at `path`; nothing where there is none. Throws
/// FileError where there is something else.
inline std::optional<::mode_t> permissions_at(const std::filesystem::path& path,
                                              const std::string& name) {
  struct ::stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT && !path.empty()) return std::nullopt;
    raise_file_error(name, "cannot be written", errno);
  }
  require_regular(name, status);
  return status.st_mode & 0777;
}

/// Gone with the object, unless it has replaced its target.
class TemporaryFile {
 public:
  /// Throws FileError where the target is no regular file, and where its folder does not take a new
  /// one.
  explicit TemporaryFile(const std::filesystem::path& target)
      : name_(target.string()),
        target_(follow_link(target)),
        folder_(target_.has_parent_path() ? target_.parent_path() : ".") {
    const std::optional<::mode_t> permissions = permissions_at(target_, name_);
    // Nobody may open it who may not read what it replaces.
    const ::mode_t mode = permissions ? 0600 : 0666;
    const std::string stem = ".headwise-" + std::to_string(::getpid()) + "-";
    for (int attempt = 0; attempt < 1000; ++attempt) {
      // Not the target's name and a suffix: that could be longer than a name may be.
      path_ = target_.parent_path() / (stem + std::to_string(attempt) + ".tmp");
      descriptor_ = Descriptor::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL, mode);
      if (descriptor_ >= 0 || errno != EEXIST) break;
    }
    if (descriptor_ < 0) {
      raise_file_error(name_, "no temporary file can be made in its folder", errno);
    }
    if (permissions) keep_permissions(*permissions);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { discard(); }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ::ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail_write(count < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      written_ += static_cast<std::uint64_t>(count);
    }
  }

  void replace_target() {
    while (::fsync(descriptor_) != 0) {
      if (errno != EINTR) fail("cannot be brought to the disk");
    }
    // Linux closes a file even where a signal comes between.
    const int closing = std::exchange(descriptor_, -1);
    if (::close(closing) != 0 && errno != EINTR) fail("cannot be closed");
    if (std::rename(path_.c_str(), target_.c_str()) != 0) fail("cannot be replaced");
    renamed_ = true;
    // The new name, too, on the disk. Some file systems refuse this for a folder; the content is
    // whole either way.
    const Descriptor folder(Descriptor::open(folder_.c_str(), O_RDONLY));
    if (folder.number() >= 0) static_cast<void>(::fsync(folder.number()));
  }

 private:
  void keep_permissions(::mode_t permissions) {
    while (::fchmod(descriptor_, permissions) != 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      discard();  // the destructor of what was never whole does not run
      raise_file_error(name_, "its permissions cannot be kept", error);
    }
  }
  void discard() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    if (!renamed_) ::unlink(path_.c_str());
  }
  [[noreturn]] void fail(std::string_view what) const { raise_file_error(name_, what, errno); }
  [[noreturn]] void fail_write(int error) const {
    raise_file_error(name_, "byte " + std::to_string(written_) + ": cannot be written", error);
  }

  std::string name_;              // of the target, as it was given
  std::filesystem::path target_;  // behind all links
  std::filesystem::path folder_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool renamed_ = false;
};

}  // namespace headwise::inline v0_1::detail

// headwise/io/safetensors_writer.hpp
// Writes tensors by name as a safetensors file, whole or not at all.
//
// It refuses what the reader would: a name twice, a name that is not UTF-8, more than 8 axes, names
// and metadata beyond what the reader keeps.

namespace headwise::inline v0_1 {

/// Collects copies of tensors, then writes them as one file.
///
/// The same tensors and metadata give the same bytes, in whatever order they were added: wide types
/// come first, then names decide, as in the reference implementation, so that every element lies at
/// a multiple of its size.
class SafetensorsWriter {
 public:
  /// Adds a tensor; it is copied, so `tensor` need not outlive the call.
  ///
  /// name     UTF-8, not "__metadata__", not added before
  /// tensor   any strides; an absent one is stored as an empty one
  /// dtype    for floating-point T one of f64, f32, f16, bf16, rounded to nearest, ties to even;
  ///          for bool boolean
  ///
  /// Throws   ArgumentError or ShapeError, and the writer stays as it was.
  template <StoredScalar T, int R>
  void add(std::string name, const In<T, R>& tensor, DType dtype = dtype_of<T>) {
    static_assert(R <= static_cast<int>(detail::max_rank), "the reader takes no more axes");
    constexpr std::string_view function = "SafetensorsWriter::add";
    require_countable(function, "tensor " + detail::quote(name), tensor);
    Entry entry = start_converted<T>(function, name, tensor.shape().extents, dtype);
    for_each_index(tensor.shape(), [&](const Shape<R>& index) { append(entry, tensor(index)); });
    entries_.emplace(std::move(name), std::move(entry));
  }

  /// Adds a tensor without axes. Throws ArgumentError, and the writer stays as it was.
  template <StoredScalar T>
  void add_scalar(std::string name, T value, DType dtype = dtype_of<T>) {
    Entry entry = start_converted<T>("SafetensorsWriter::add_scalar", name, {}, dtype);
    append(entry, value);
    entries_.emplace(std::move(name), std::move(entry));
  }

  /// Adds a tensor of any type by the bytes of its elements, dense and row-major: to pass on what
  /// SafetensorsFile::bytes gave.
  ///
  /// Throws   ArgumentError, or ShapeError for more than 8 axes and for bytes that do not fit the
  ///          shape; the writer stays as it was.
  void add_bytes(std::string name, DType dtype, std::span<const Index> shape,
                 std::span<const std::byte> bytes) {
    constexpr std::string_view function = "SafetensorsWriter::add_bytes";
    Entry entry = start_entry(function, name, shape, dtype);
    if (shape.size() > detail::max_rank || bytes.size() != detail::tensor_bytes(shape, dtype)) {
      raise<ShapeError>(std::string(function) + ": tensor " + detail::quote(name) + " has " +
                        std::to_string(bytes.size()) + " bytes, which do not fit shape " +
                        format_extents(shape) + " of " + std::string(dtype_name(dtype)) +
                        " with at most " + std::to_string(detail::max_rank) + " axes");
    }
    entry.bytes.assign(bytes.begin(), bytes.end());
    entries_.emplace(std::move(name), std::move(entry));
  }

  /// Moves all tensors and metadata of another writer here; a line of metadata that both have gets
  /// the other's value.
  ///
  /// Throws   ArgumentError for a name that is here already; both writers then stay as they were.
  ///          Allocates nothing.
  void merge(SafetensorsWriter&& other) {
    for (const auto& entry : other.entries_) {
      require_new("SafetensorsWriter::merge", entry.first);
    }
    entries_.merge(other.entries_);
    other.metadata_.merge(metadata_);
    metadata_.swap(other.metadata_);
    other.entries_.clear();
    other.metadata_.clear();
  }

  /// Whether a tensor of this name was added.
  bool contains(std::string_view name) const { return entries_.find(name) != entries_.end(); }

  /// Sets a line of the metadata; a key that is there already gets the new value. Throws
  /// ArgumentError for text that is not UTF-8.
  void set_metadata(const std::string& key, const std::string& value) {
    require_utf8("SafetensorsWriter::set_metadata", "key", key);
    require_utf8("SafetensorsWriter::set_metadata", "value", value);
    metadata_.insert_or_assign(key, value);
  }

  /// The file as it would be written. Throws ArgumentError for a header that the reader would
  /// refuse: names, shapes and metadata of more than 48 MiB, text of more than 100 MB.
  std::vector<std::byte> bytes() const {
    const auto order = in_file_order();
    const std::string text = header("SafetensorsWriter::bytes", order);
    const auto first = std::as_bytes(std::span(text));
    std::vector<std::byte> file(first.begin(), first.end());
    for (const auto* entry : order) {
      file.insert(file.end(), entry->second.bytes.begin(), entry->second.bytes.end());
    }
    return file;
  }

  /// Writes the file whole or not at all: what `path` held before stays until the new file is on
  /// the disk, and stays for good where that fails.
  ///
  /// path   a regular file, which is replaced by one of the same permissions, or nothing yet; for
  ///        a symbolic link the file that it leads to
  ///
  /// Throws   ArgumentError as `bytes` does, FileError where there is something else or the system
  ///          refuses, std::bad_alloc.
  void write(const std::filesystem::path& path) const {
    const auto order = in_file_order();
    const std::string text = header("SafetensorsWriter::write", order);
    detail::TemporaryFile file(path);
    file.append(std::as_bytes(std::span(text)));
    for (const auto* entry : order) file.append(std::span(entry->second.bytes));
    file.replace_target();
  }

 private:
  struct Entry {
    DType dtype{};
    std::vector<Index> shape;
    std::vector<std::byte> bytes;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  static void require_utf8(std::string_view function, std::string_view argument,
                           const std::string& text) {
    require(detail::is_utf8(text), function,
            [&] { return std::string(argument) + " " + detail::quote(text) + " is not UTF-8"; });
  }

  void require_new(std::string_view function, const std::string& name) const {
    require(name != detail::metadata_key, function, "name __metadata__ is the format's own");
    require(!entries_.contains(name), function,
            [&] { return "name " + detail::quote(name) + " was added before"; });
  }

  Entry start_entry(std::string_view function, const std::string& name,
                    std::span<const Index> shape, DType dtype) const {
    require_utf8(function, "name", name);
    require_new(function, name);
    return {dtype, {shape.begin(), shape.end()}, {}};
  }

  /// An entry with room for its elements, which are converted from T.
  template <StoredScalar T>
  Entry start_converted(std::string_view function, const std::string& name,
                        std::span<const Index> shape, DType dtype) const {
    Entry entry = start_entry(function, name, shape, dtype);
    const bool float_type = detail::with_float_type(dtype, [](auto) {});
    require(StoredFloat<T> ? float_type : dtype == DType::boolean, function, [&] {
      return "tensor " + detail::quote(name) + " of " + std::string(dtype_name(dtype_of<T>)) +
             " does not convert to " + std::string(dtype_name(dtype));
    });
    // A shape that is countable has a number of bytes.
    entry.bytes.reserve(detail::tensor_bytes(shape, dtype).value_or(0));
    return entry;
  }

  template <StoredScalar T>
  static void append(Entry& entry, T value) {
    const auto append_bits = [&](auto stored) {
      std::byte bytes[sizeof(stored)];
      std::memcpy(bytes, &stored, sizeof(stored));
      entry.bytes.insert(entry.bytes.end(), bytes, bytes + sizeof(stored));
    };
    if constexpr (StoredFloat<T>) {
      detail::with_float_type(entry.dtype, [&]<class To>(std::type_identity<To>) {
        append_bits(convert_float<To>(value));
      });
    } else {
      append_bits(std::uint8_t{value});
    }
  }

  std::vector<Entries::const_pointer> in_file_order() const {
    std::vector<Entries::const_pointer> order;
    order.reserve(entries_.size());
    for (const auto& entry : entries_) order.push_back(&entry);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      const DType left = a->second.dtype, right = b->second.dtype;
      return left != right ? left > right : a->first < b->first;
    });
    return order;
  }

  /// Throws ArgumentError for entries that the reader has no memory for.
  void require_readable(std::string_view function) const {
    // What it keeps free for the longest name of a field.
    std::size_t charge = std::string_view("data_offsets").size();
    for (const auto& [key, value] : metadata_) {
      charge += detail::metadata_charge(key.size()) + value.size();
    }
    for (const auto& [name, entry] : entries_) {
      charge += detail::tensor_charge(name.size()) + detail::shape_charge(entry.shape.size());
    }
    require(charge <= detail::max_entry_bytes, function, [&] {
      return "names, shapes and metadata take " + std::to_string(charge) +
             " bytes of the reader's memory, expected at most " +
             std::to_string(detail::max_entry_bytes);
    });
  }

  /// The header's length and the header, padded with spaces until the data starts at a multiple
  /// of 8.
  std::string header(std::string_view function,
                     const std::vector<Entries::const_pointer>& order) const {
    require_readable(function);
    std::string text(detail::header_length_bytes, '\0');
    text += '{';
    for (const auto& [key, value] : metadata_) {
      text += text.back() == '{' ? "\"__metadata__\":{" : ",";
      detail::append_json_string(text, key);
      text += ':';
      detail::append_json_string(text, value);
    }
    if (!metadata_.empty()) text += '}';
    std::uint64_t offset = 0;
    for (const auto* entry : order) {
      const auto& [dtype, shape, bytes] = entry->second;
      if (text.back() != '{') text += ',';
      detail::append_json_string(text, entry->first);
      text += ":{\"dtype\":\"" + std::string(dtype_name(dtype)) + "\",\"shape\":[";
      for (std::size_t r = 0; r < shape.size(); ++r) {
        if (r != 0) text += ',';
        text += std::to_string(shape[r]);
      }
      text += "],\"data_offsets\":[" + std::to_string(offset) + ',' +
              std::to_string(offset + bytes.size()) + "]}";
      offset += bytes.size();
    }
    text += '}';
    while (text.size() % 8 != 0) text += ' ';
    const std::uint64_t length = text.size() - detail::header_length_bytes;
    require(length <= detail::max_header_length, function, [&] {
      return "the header has " + std::to_string(length) + " bytes, expected at most " +
             std::to_string(detail::max_header_length);
    });
    std::memcpy(text.data(), &length, detail::header_length_bytes);
    return text;
  }

  Entries entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace headwise::inline v0_1

// headwise/io/safetensors.hpp
// Tensors in files, by name: the safetensors format, read and written.

