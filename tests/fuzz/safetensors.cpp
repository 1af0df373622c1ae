// Fuzz target: any bytes as a safetensors file. It is refused with a FileError, or read whole,
// written again, and read again as the same.
//
// The first byte says how the rest becomes a file: 0 as it is; else it is a header, whose length is
// put before it, and so many zero bytes of data, less one, behind.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "fuzz/byte_reader.hpp"
#include "headwise/io/safetensors.hpp"

namespace headwise_fuzz {
namespace {

using namespace headwise;

std::vector<std::byte> file_of(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return {};
  const auto rest = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] == 0) return {rest.begin(), rest.end()};
  std::vector<std::byte> file(8 + rest.size() + data[0] - 1u);
  const std::uint64_t length = rest.size();
  std::memcpy(file.data(), &length, 8);
  std::copy(rest.begin(), rest.end(), file.begin() + 8);
  return file;
}

template <class T, int R>
void check_elements(const SafetensorsFile& file, const std::string& name) {
  const auto tensor = file.get<T, R>(name);
  const auto bytes = file.bytes(name);
  check(static_cast<std::size_t>(tensor.size()) * sizeof(T) == bytes.size(),
        "every element is read");
  check(bytes.empty() || std::memcmp(tensor.data(), bytes.data(), bytes.size()) == 0,
        "elements of the file's own type keep their bits");
  static_cast<void>(file.get<double, R>(name));
  static_cast<void>(file.get<Float16, R>(name));
}

template <int R>
void read_tensor(const SafetensorsFile& file, const std::string& name) {
  switch (file.dtype(name)) {
    case DType::f64:
      return check_elements<double, R>(file, name);
    case DType::f32:
      return check_elements<float, R>(file, name);
    case DType::f16:
      return check_elements<Float16, R>(file, name);
    case DType::bf16:
      return check_elements<BFloat16, R>(file, name);
    case DType::boolean:
      static_cast<void>(file.get<bool, R>(name));
      return;
    default:
      return;
  }
}

void check_same(const SafetensorsFile& a, const SafetensorsFile& b) {
  auto names = a.names(), others = b.names();
  std::ranges::sort(names), std::ranges::sort(others);
  check(names == others, "names are the same");
  check(a.metadata() == b.metadata(), "metadata is the same");
  for (const std::string& name : names) {
    check(a.dtype(name) == b.dtype(name), "types are the same");
    check(a.shape(name) == b.shape(name), "shapes are the same");
    check(std::ranges::equal(a.bytes(name), b.bytes(name)), "bytes are the same");
  }
}

void read_and_write(const SafetensorsFile& file, std::size_t file_bytes) {
  SafetensorsWriter writer;
  std::size_t held = 0;
  for (const std::string& name : file.names()) {
    held += file.bytes(name).size();
    const auto& shape = file.shape(name);
    if (shape.size() == 1) read_tensor<1>(file, name);
    if (shape.size() == 2) read_tensor<2>(file, name);
    if (shape.size() == 8) read_tensor<8>(file, name);
    writer.add_bytes(name, file.dtype(name), shape, file.bytes(name));
  }
  check(held <= file_bytes, "no more is held than the file has");
  for (const auto& [key, value] : file.metadata()) writer.set_metadata(key, value);
  const auto bytes = writer.bytes();
  const auto again = SafetensorsFile::parse(bytes);
  check_same(file, again);
}

}  // namespace
}  // namespace headwise_fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise_fuzz;
  const auto bytes = file_of(data, size);
  std::optional<SafetensorsFile> file;
  try {
    file = SafetensorsFile::parse(bytes);
  } catch (const FileError&) {
    return 0;
  }
  read_and_write(*file, bytes.size());
  return 0;
}
