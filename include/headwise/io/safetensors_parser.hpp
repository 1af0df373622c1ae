// The entries of a safetensors header, read one behind the other. What has no place in the format
// ends the reading at once, and so does a header whose entries would take more memory than the
// format's use ever asks for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "headwise/io/json_cursor.hpp"

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
