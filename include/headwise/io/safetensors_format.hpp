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
#include <utility>
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
