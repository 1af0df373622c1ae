// The JSON of a safetensors header, taken event by event. Nothing nests deeper than the format
// itself does, header, tensor, list, and what has no place in it ends the reading at once.
#pragma once

#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "headwise/io/safetensors_format.hpp"

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
      if (number > static_cast<std::uint64_t>((std::numeric_limits<Index>::max)())) {
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
