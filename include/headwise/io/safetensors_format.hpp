// What a safetensors header says of a tensor, and the words in which a file is refused.
#pragma once

#include <bit>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/io/dtype.hpp"
#include "headwise/io/utf8.hpp"
#include "headwise/tensor/shape.hpp"

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
  raise<FileError>(std::string(file) + ": byte " + std::to_string(position) + ": " +
                   std::string(message));
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
    } else if (bytes > (std::numeric_limits<Index>::max)() / extent) {
      return std::nullopt;
    } else {
      bytes *= extent;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

}  // namespace headwise::inline v0_1::detail
