// Reads tensors by name from a safetensors file: the length of a header (8 bytes, little-endian),
// the header (JSON), the elements, dense, row-major and little-endian.
//
// A file is refused, with its name and the byte at fault, unless its header accounts for every byte
// of it. That is found out before memory is asked for: what a file can make the reader allocate is
// less than its own size and 64 MiB. The elements are not looked at, so NaN passes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/io/read_file.hpp"
#include "headwise/io/safetensors_header.hpp"
#include "headwise/tensor/tensor.hpp"

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
