// Writes tensors by name as a safetensors file, whole or not at all.
//
// It refuses what the reader would: a name twice, a name that is not UTF-8, more than 8 axes, names
// and metadata beyond what the reader keeps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/io/json_cursor.hpp"
#include "headwise/io/safetensors_format.hpp"
#include "headwise/io/write_file.hpp"
#include "headwise/tensor/require.hpp"

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
