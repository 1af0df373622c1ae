// The header of a safetensors file: a JSON object that says of each tensor what it is and where its
// bytes lie. Everything about it is checked here, before memory for any data is asked for.
//
// It accepts what the reference implementation accepts, white space around the object, names in
// any order, scalars and empty tensors included, and refuses more in seven places: a name or key
// that occurs twice (the format forbids it, the reference keeps the last), a field that it does not
// know (it could change what the bytes mean), a `__metadata__` that is null, more than 8 axes, a
// shape whose extents other than 0 multiply to more bytes than Index counts, elements of less than
// a byte, names and metadata that take more memory than max_entry_bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>

#include "headwise/io/safetensors_parser.hpp"

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
