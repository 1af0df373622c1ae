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

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../headwise.hpp"

// headwise/io/dtype.hpp
// The element types of a safetensors file, and conversions between its floating-point ones.
//
// A conversion works on the bits alone, so that it is the same under every compiler flag, rounding
// mode and flush-to-zero setting. The 2-byte types are storage: they hold bits and compute nothing.

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

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Float16 {
  std::uint16_t bits = 0;                                        // as IEEE 754 lays them out
  friend constexpr bool operator==(Float16, Float16) = default;  // of the bits: NaN equals itself
};

/// The upper half of a binary32: 1 sign, 8 exponent, 7 fraction bits.
struct BFloat16 {
  std::uint16_t bits = 0;  // the upper half of the binary32
  friend constexpr bool operator==(BFloat16, BFloat16) = default;
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

struct FloatFormat {
  int exponent_bits;
  int fraction_bits;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

constexpr std::uint64_t low_bits(int count) { return (std::uint64_t{1} << count) - 1; }

/// The nearest number of another format; of two equally near, the one with an even last bit.
///
/// Subnormal numbers are kept, what is too large becomes infinite. A NaN stays one and keeps the
/// leading bits of its payload.
constexpr std::uint64_t convert_float_bits(std::uint64_t bits, FloatFormat from, FloatFormat to) {
  const std::uint64_t sign = (bits >> (from.exponent_bits + from.fraction_bits)) & 1;
  const std::uint64_t signed_zero = sign << (to.exponent_bits + to.fraction_bits);
  const std::uint64_t infinity = low_bits(to.exponent_bits) << to.fraction_bits;
  const std::uint64_t exponent = (bits >> from.fraction_bits) & low_bits(from.exponent_bits);
  const std::uint64_t fraction = bits & low_bits(from.fraction_bits);

  if (exponent == low_bits(from.exponent_bits)) {
    if (fraction == 0) return signed_zero | infinity;
    const int widen = to.fraction_bits - from.fraction_bits;
    const std::uint64_t payload = widen >= 0 ? fraction << widen : fraction >> -widen;
    const std::uint64_t quiet = std::uint64_t{1} << (to.fraction_bits - 1);
    return signed_zero | infinity | (payload == 0 ? quiet : payload);
  }
  if (exponent == 0 && fraction == 0) return signed_zero;

  // The number is significand 2^scale, and its leading bit is worth 2^top.
  const bool subnormal = exponent == 0;
  const std::uint64_t significand =
      subnormal ? fraction : fraction | (std::uint64_t{1} << from.fraction_bits);
  const int scale = (subnormal ? 1 : static_cast<int>(exponent)) - from.bias() - from.fraction_bits;
  const int top = static_cast<int>(std::bit_width(significand)) - 1 + scale;
  if (top > to.bias()) return signed_zero | infinity;

  // What the target's last bit is worth, 2^last, decides how many bits of the significand go.
  const int lowest_top = 1 - to.bias();
  const int last = (top < lowest_top ? lowest_top : top) - to.fraction_bits;
  const int drop = last - scale;
  if (drop > 62) return signed_zero;
  std::uint64_t rounded = drop <= 0 ? significand << -drop : significand >> drop;
  if (drop > 0) {
    const std::uint64_t rest = significand & low_bits(drop);
    const std::uint64_t half = std::uint64_t{1} << (drop - 1);
    if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  }
  // The leading bit of a normal number counts as one step of the exponent, and so does a carry:
  // the largest subnormal rounds up to the smallest normal, the largest finite to infinity.
  const int exponent_steps = top < lowest_top ? 0 : top - lowest_top;
  return signed_zero | ((static_cast<std::uint64_t>(exponent_steps) << to.fraction_bits) + rounded);
}

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

template <class T>
concept StoredFloat = std::same_as<T, double> || std::same_as<T, float> ||
    std::same_as<T, Float16> || std::same_as<T, BFloat16>;

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

template <StoredFloat T>
inline constexpr FloatFormat float_format = std::same_as<T, double>    ? FloatFormat{11, 52}
                                            : std::same_as<T, float>   ? FloatFormat{8, 23}
                                            : std::same_as<T, Float16> ? FloatFormat{5, 10}
                                                                       : FloatFormat{8, 7};

template <StoredFloat T>
using float_bits =
    std::conditional_t<sizeof(T) == 8, std::uint64_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

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

/// The same number in another floating-point type: rounded to nearest, ties to even.
///
/// from   float, double, Float16 or BFloat16
///
/// Subnormal numbers, infinities, the sign of zero and NaN are kept; what is too large becomes
/// infinite. Each step rounds once: double to Float16 does not pass through float.
template <StoredFloat To, StoredFloat From>
constexpr To convert_float(From from) {
  if constexpr (std::same_as<To, From>) {
    return from;
  } else {
    const std::uint64_t bits = std::bit_cast<detail::float_bits<From>>(from);
    return std::bit_cast<To>(static_cast<detail::float_bits<To>>(
        detail::convert_float_bits(bits, detail::float_format<From>, detail::float_format<To>)));
  }
}

}  // namespace headwise::inline v0_1

// headwise/io/safetensors_format.hpp
// What a safetensors header says of a tensor, and the words in which a file is refused.

namespace headwise::inline v0_1::detail {

static_assert(std::endian::native == std::endian::little,
              "headwise reads and writes safetensors on little-endian machines only");

inline constexpr std::uint64_t header_length_bytes = 8;
inline constexpr std::uint64_t max_header_length = 100'000'000;
inline constexpr std::size_t max_rank = 8;
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
  std::vector<StoredTensor> tensors;  // as the header lists them
  std::vector<std::size_t> by_name;   // their numbers, in the order of their names
  std::map<std::string, std::string> metadata;
};

[[noreturn]] inline void raise_at(std::string_view file, std::uint64_t position,
                                  std::string_view message) {
  raise<FileError>(std::string(file) + ": byte " + std::to_string(position) + ": " +
                   std::string(message));
}

/// A name out of a file, fit for a message: in quotes, one line, not too long.
inline std::string quote(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::size_t length = std::min(text.size(), longest);
  while (length < text.size() && length > 0 && (text[length] & 0xC0) == 0x80) --length;
  std::string quoted = "\"";
  for (char c : text.substr(0, length)) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if ((c >= 0 && c < 0x20) || c == 0x7F) {
      constexpr std::string_view digits = "0123456789abcdef";
      quoted += {'\\', 'x', digits[static_cast<std::size_t>(c) / 16],
                 digits[static_cast<std::size_t>(c) % 16]};
    } else {
      quoted += c;
    }
  }
  return quoted + (length < text.size() ? "...\"" : "\"");
}

/// The bytes of a dense tensor. Nothing for an extent below 0 and where Index cannot count the
/// bytes of the extents other than 0: strides are products of those.
inline std::optional<std::uint64_t> tensor_bytes(std::span<const Index> shape, DType dtype) {
  Index bytes = dtype_bytes(dtype);
  bool empty = false;
  for (Index extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (bytes > std::numeric_limits<Index>::max() / extent) {
      return std::nullopt;
    } else {
      bytes *= extent;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

}  // namespace headwise::inline v0_1::detail

// headwise/io/safetensors_parser.hpp
// The JSON of a safetensors header, taken event by event. Nothing nests deeper than the format
// itself does, header, tensor, list, and what has no place in it ends the reading at once.

namespace headwise::inline v0_1::detail {

/// Walks over the header's text and leaves behind how far it has come.
class HeaderCursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  HeaderCursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  HeaderCursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  HeaderCursor operator++(int) {
    const HeaderCursor before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const HeaderCursor& a, const HeaderCursor& b) { return a.at_ == b.at_; }
  friend bool operator!=(const HeaderCursor& a, const HeaderCursor& b) { return a.at_ != b.at_; }

 private:
  const char* at_;
  const char** reached_;
};

/// Takes the events of the JSON parser, and keeps nothing but what the format has a place for.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::string_view text, std::string_view file)
      : file_(file), text_(text), reached_(text.data()) {}

  SafetensorsHeader read() {
    if (text_.starts_with("\xEF\xBB\xBF")) {
      raise_at(file_, header_length_bytes, "the header begins with a byte order mark");
    }
    // The parser would take a zero byte for the end of the text.
    if (const auto zero = text_.find('\0'); zero != std::string_view::npos) {
      raise_at(file_, header_length_bytes + zero, "the header holds a zero byte");
    }
    const char* const last = text_.data() + text_.size();
    nlohmann::json::sax_parse(HeaderCursor(text_.data(), &reached_), HeaderCursor(last, &reached_),
                              this);
    return std::move(header_);
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_float(double, const std::string&) override {
    unexpected("a number with a fraction, an exponent or too many digits");
  }
  bool number_integer(std::int64_t) override { unexpected("a negative number"); }
  bool binary(nlohmann::json::binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(std::uint64_t number) override {
    if (place_ != Place::list) unexpected("a number");
    if (key_ == "shape") {
      if (tensor_.shape.size() == max_rank) {
        refuse(where() + ": shape has more than " + std::to_string(max_rank) + " axes");
      }
      if (number > static_cast<std::uint64_t>(std::numeric_limits<Index>::max())) {
        refuse(where() + ": shape holds " + std::to_string(number) + ", more than can be counted");
      }
      tensor_.shape.push_back(static_cast<Index>(number));
    } else {
      if (num_offsets_ == 2) refuse(where() + ": data_offsets holds more than 2 numbers");
      (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = number;
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      if (!header_.metadata.try_emplace(std::move(key_), std::move(value)).second) {
        // A name that is there already leaves key_ as it was.
        refuse("__metadata__: the key " + quote(key_) + " occurs twice");
      }
    } else if (place_ == Place::tensor && key_ == "dtype") {
      const std::optional<DType> dtype = dtype_from_name(value);
      if (!dtype) refuse(where() + ": dtype " + quote(value) + " is not known");
      tensor_.dtype = *dtype;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::header;
    } else if (place_ == Place::header && key_ == metadata_key) {
      if (std::exchange(has_metadata_, true)) refuse("__metadata__ occurs twice");
      place_ = Place::metadata;
    } else if (place_ == Place::header) {
      place_ = Place::tensor;
      tensor_ = {};
      tensor_.name = std::move(key_);
      tensor_.position = position() - 1;
      num_offsets_ = 0;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& key) override {
    key_ = std::move(key);
    if (place_ == Place::tensor) {
      bool* const seen = key_ == "dtype"          ? &has_dtype_
                         : key_ == "shape"        ? &has_shape_
                         : key_ == "data_offsets" ? &has_offsets_
                                                  : nullptr;
      if (seen == nullptr) refuse(where() + ": the field " + quote(key_) + " is not known");
      if (std::exchange(*seen, true)) refuse(where() + ": " + key_ + " occurs twice");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      check_tensor();
      header_.tensors.push_back(std::move(tensor_));
    }
    place_ = Place::header;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") unexpected("an array");
    place_ = Place::list;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    constexpr std::size_t longest_prefix = 80;
    std::string_view reason = error.what();  // "[json.exception...] ... column 7: the reason"
    for (const std::string_view prefix_end : {"] ", "column ", ": "}) {
      const auto found = reason.substr(0, longest_prefix).find(prefix_end);
      if (found == std::string_view::npos) break;
      reason.remove_prefix(found + prefix_end.size());
    }
    constexpr std::size_t longest = 160;
    refuse("the header is not JSON: " + std::string(reason.substr(0, longest)));
  }

 private:
  enum class Place { start, header, metadata, tensor, list };

  std::uint64_t position() const {
    return header_length_bytes + static_cast<std::uint64_t>(reached_ - text_.data());
  }

  [[noreturn]] void refuse(const std::string& message) const {
    raise_at(file_, position(), message);
  }

  std::string where() const { return "tensor " + quote(tensor_.name); }

  [[noreturn]] void unexpected(const std::string& got) const {
    switch (place_) {
      case Place::start:
        refuse("the header is " + got + ", expected an object");
      case Place::header:
        refuse((key_ == metadata_key ? key_ : "tensor " + quote(key_)) + " is " + got +
               ", expected an object");
      case Place::metadata:
        refuse("__metadata__: " + quote(key_) + " is " + got + ", expected a string");
      case Place::tensor:
        refuse(where() + ": " + key_ + " is " + got + ", expected " +
               (key_ == "dtype" ? "a string" : "an array of unsigned integers"));
      case Place::list:
        break;
    }
    refuse(where() + ": " + key_ + " holds " + got + ", expected an unsigned integer");
  }

  void check_tensor() const {
    const auto refuse_entry = [&](const std::string& message) {
      raise_at(file_, tensor_.position, where() + ": " + message);
    };
    if (!has_dtype_) refuse_entry("dtype is missing");
    if (!has_shape_) refuse_entry("shape is missing");
    if (!has_offsets_) refuse_entry("data_offsets is missing");
    if (num_offsets_ != 2) refuse_entry("data_offsets does not hold 2 numbers");
    const std::string offsets =
        "data_offsets [" + std::to_string(tensor_.begin) + ", " + std::to_string(tensor_.end) + "]";
    if (tensor_.begin > tensor_.end) refuse_entry(offsets + " end before they begin");
    const std::string shape =
        "shape " + format_extents(tensor_.shape) + " of " + std::string(dtype_name(tensor_.dtype));
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor_.shape, tensor_.dtype);
    if (!bytes) refuse_entry(shape + " has more bytes than can be counted");
    if (tensor_.end - tensor_.begin != *bytes) {
      refuse_entry(offsets + " hold " + std::to_string(tensor_.end - tensor_.begin) + " bytes, " +
                   shape + " needs " + std::to_string(*bytes));
    }
  }

  std::string_view file_;
  std::string_view text_;
  const char* reached_;
  Place place_ = Place::start;
  std::string key_;
  StoredTensor tensor_;
  int num_offsets_ = 0;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  bool has_metadata_ = false;
  SafetensorsHeader header_;
};

}  // namespace headwise::inline v0_1::detail

// headwise/io/safetensors_header.hpp
// The header of a safetensors file: a JSON object that says of each tensor what it is and where its
// bytes lie. Everything about it is checked here, before memory for any data is asked for.
//
// It accepts what the reference implementation accepts, white space around the object, names in
// any order, scalars and empty tensors included, and refuses more in six places: a name or key that
// occurs twice (the format forbids it, the reference keeps the last), a field that it does not know
// (it could change what the bytes mean), a `__metadata__` that is null, more than 8 axes, a shape
// whose extents other than 0 multiply to more bytes than Index counts, elements of less than a
// byte.

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
    raise_at(file, data_begin + std::min(filled, data_bytes),
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
/// Work     O(n log n) for n tensors; memory at most about ten times the text's length (measured:
///          3 for empty tensors, 6 for one long name, 10 for empty lines of metadata).
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
// its own size and about ten times its header's length. The elements are not looked at, so NaN
// passes.

namespace headwise::inline v0_1 {

/// The tensors of one file, held in memory. Const calls from many threads are safe.
class SafetensorsFile {
 public:
  /// An empty file.
  SafetensorsFile() = default;

  /// Reads a whole file.
  ///
  /// Throws   FileError where it cannot be read, is no regular file, or is not what the format
  /// says.
  static SafetensorsFile read(const std::filesystem::path& path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!error && !std::filesystem::is_regular_file(status)) {
      raise<FileError>(path.string() + ": is not a regular file");
    }
    const std::uint64_t file_bytes = error ? 0 : std::filesystem::file_size(path, error);
    if (error) raise<FileError>(path.string() + ": cannot be read: " + error.message());
    std::ifstream stream(path, std::ios::binary);
    if (!stream) raise<FileError>(path.string() + ": cannot be opened for reading");
    std::uint64_t position = 0;
    return read_parts(path.string(), file_bytes, [&](void* to, std::uint64_t count) {
      stream.read(static_cast<char*>(to), static_cast<std::streamsize>(count));
      position += static_cast<std::uint64_t>(stream.gcount());
      if (static_cast<std::uint64_t>(stream.gcount()) != count) {
        detail::raise_at(path.string(), position, "cannot be read further");
      }
    });
  }

  /// The same from memory; the bytes are copied.
  ///
  /// name   of the file in messages
  ///
  /// Throws   FileError where they are not what the format says, std::bad_alloc.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string name = "memory") {
    return read_parts(std::move(name), bytes.size(), [&](void* to, std::uint64_t count) {
      if (count == 0) return;
      std::memcpy(to, bytes.data(), count);
      bytes = bytes.subspan(count);
    });
  }

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
    raise<FileError>(name_ + ": holds no tensor " + detail::quote(name) + ", but " +
                     std::to_string(header_.tensors.size()) + (held.empty() ? "" : ": ") + held);
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
// A path that is a symbolic link is replaced by the file, what it pointed to stays.

namespace headwise::inline v0_1::detail {

/// Gone with the object, unless it has replaced its target.
class TemporaryFile {
 public:
  /// Throws FileError where the target's folder does not take a new file.
  explicit TemporaryFile(std::filesystem::path target) : target_(std::move(target)) {
    const std::string stem = ".headwise-" + std::to_string(::getpid()) + "-";
    for (int attempt = 0; attempt < 1000; ++attempt) {
      // Not the target's name and a suffix: that could be longer than a name may be.
      path_ = target_.parent_path() / (stem + std::to_string(attempt) + ".tmp");
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ >= 0 || errno != EEXIST) break;
    }
    if (descriptor_ < 0) fail("no temporary file can be made in its folder");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!renamed_) ::unlink(path_.c_str());
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ::ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("cannot be written");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      written_ += static_cast<std::uint64_t>(count);
    }
  }

  void replace_target() {
    if (::fsync(descriptor_) != 0) fail("cannot be brought to the disk");
    const int closing = std::exchange(descriptor_, -1);
    if (::close(closing) != 0) fail("cannot be closed");
    if (std::rename(path_.c_str(), target_.c_str()) != 0) fail("cannot be replaced");
    renamed_ = true;
    // The new name, too, on the disk. Some file systems refuse this for a folder; the content is
    // whole either way.
    const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    static_cast<void>(::fsync(descriptor));
    ::close(descriptor);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const std::string reason = std::generic_category().message(errno);
    raise<FileError>(target_.string() + ": byte " + std::to_string(written_) + ": " + what + ": " +
                     reason);
  }

  std::filesystem::path target_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool renamed_ = false;
};

}  // namespace headwise::inline v0_1::detail

// headwise/io/safetensors_writer.hpp
// Writes tensors by name as a safetensors file, whole or not at all.
//
// It refuses what the reader would: a name twice, a name that is not UTF-8, more than 8 axes.

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
    const auto& extents = tensor.shape().extents;
    Entry entry = start_entry<T>(name, extents, dtype);
    for_each_index(tensor.shape(), [&](const Shape<R>& index) { append(entry, tensor(index)); });
    entries_.emplace(std::move(name), std::move(entry));
  }

  /// Adds a tensor without axes. Throws ArgumentError, and the writer stays as it was.
  template <StoredScalar T>
  void add_scalar(std::string name, T value, DType dtype = dtype_of<T>) {
    Entry entry = start_entry<T>(name, {}, dtype);
    append(entry, value);
    entries_.emplace(std::move(name), std::move(entry));
  }

  /// Sets a line of the metadata; a key that is there already gets the new value. Throws
  /// ArgumentError for text that is not UTF-8.
  void set_metadata(const std::string& key, const std::string& value) {
    require_utf8("SafetensorsWriter::set_metadata", "key", key);
    require_utf8("SafetensorsWriter::set_metadata", "value", value);
    metadata_.insert_or_assign(key, value);
  }

  /// The file as it would be written. Throws ArgumentError for a header that is too long.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> file;
    for_each_part([&](std::span<const std::byte> part) {
      file.insert(file.end(), part.begin(), part.end());
    });
    return file;
  }

  /// Writes the file whole or not at all: what `path` held before stays until the new file is on
  /// the disk, and stays for good where that fails.
  ///
  /// Throws   FileError.
  void write(const std::filesystem::path& path) const {
    detail::TemporaryFile file(path);
    for_each_part([&](std::span<const std::byte> part) { file.append(part); });
    file.replace_target();
  }

 private:
  struct Entry {
    DType dtype{};
    std::vector<Index> shape;
    std::vector<std::byte> bytes;
  };
  using Entries = std::map<std::string, Entry>;

  static void require_utf8(std::string_view function, std::string_view argument,
                           const std::string& text) {
    bool valid = true;
    try {
      static_cast<void>(nlohmann::json(text).dump());
    } catch (const nlohmann::json::exception&) {
      valid = false;
    }
    require(valid, function, std::string(argument) + " " + detail::quote(text) + " is not UTF-8");
  }

  template <StoredScalar T>
  Entry start_entry(const std::string& name, std::span<const Index> shape, DType dtype) const {
    constexpr std::string_view function = "SafetensorsWriter::add";
    require_utf8(function, "name", name);
    require(name != detail::metadata_key, function, "name __metadata__ is the format's own");
    require(!entries_.contains(name), function,
            "name " + detail::quote(name) + " was added before");
    const bool float_type = detail::with_float_type(dtype, [](auto) {});
    require(StoredFloat<T> ? float_type : dtype == DType::boolean, function,
            "tensor " + detail::quote(name) + " of " + std::string(dtype_name(dtype_of<T>)) +
                " does not convert to " + std::string(dtype_name(dtype)));
    const std::optional<std::uint64_t> count = detail::tensor_bytes(shape, dtype);
    if (!count) {
      raise<ShapeError>(std::string(function) + ": tensor " + detail::quote(name) + " is " +
                        format_extents(shape) + ", which has more bytes than can be counted");
    }
    Entry entry{dtype, {shape.begin(), shape.end()}, {}};
    entry.bytes.reserve(*count);
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
    for (const auto& entry : entries_) order.push_back(&entry);
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      return a->second.dtype > b->second.dtype;
    });
    return order;
  }

  /// The header's length and the header, padded with spaces until the data starts at a multiple
  /// of 8.
  std::string header(const std::vector<Entries::const_pointer>& order) const {
    std::string text(detail::header_length_bytes, '\0');
    text += '{';
    if (!metadata_.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata_).dump();
    std::uint64_t offset = 0;
    for (const auto* entry : order) {
      const auto& [dtype, shape, bytes] = entry->second;
      if (text.back() != '{') text += ',';
      text += nlohmann::json(entry->first).dump() + ":{\"dtype\":\"";
      text += dtype_name(dtype);
      text += "\",\"shape\":" + nlohmann::json(shape).dump() + ",\"data_offsets\":[" +
              std::to_string(offset) + ',' + std::to_string(offset + bytes.size()) + "]}";
      offset += bytes.size();
    }
    text += '}';
    while (text.size() % 8 != 0) text += ' ';
    const std::uint64_t length = text.size() - detail::header_length_bytes;
    require(length <= detail::max_header_length, "SafetensorsWriter",
            "the header has " + std::to_string(length) + " bytes, expected at most " +
                std::to_string(detail::max_header_length));
    std::memcpy(text.data(), &length, detail::header_length_bytes);
    return text;
  }

  template <class F>
  void for_each_part(F&& f) const {
    const auto order = in_file_order();
    const std::string text = header(order);
    f(std::as_bytes(std::span(text)));
    for (const auto* entry : order) f(std::span(entry->second.bytes));
  }

  Entries entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace headwise::inline v0_1

// headwise/io/safetensors.hpp
// Tensors in files, by name: the safetensors format, read and written.

