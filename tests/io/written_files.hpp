// What the tests of reading and of writing share: a folder to write to, and numbers that a careless
// conversion loses.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "headwise/io/safetensors.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;
namespace fs = std::filesystem;

/// A folder of this test's own, gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "headwise-io-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const char* name) const { return path_ / name; }
  std::ptrdiff_t num_files() const {
    return std::distance(fs::directory_iterator(path_), fs::directory_iterator());
  }

 private:
  fs::path path_;
};

inline std::string content(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T, int R>
void require_same_bits(const Tensor<T, R>& a, const Tensor<T, R>& b) {
  REQUIRE(a.shape() == b.shape());
  REQUIRE(std::equal(a.begin(), a.end(), b.begin(),
                     [](const T& x, const T& y) { return std::memcmp(&x, &y, sizeof(T)) == 0; }));
}

template <class T>
Tensor<T, 3> awkward_numbers() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  Tensor<double, 3> wide(Shape{2, 1, 5},
                         {0.0, -0.0, 1.0 / 3, -1e-6, 0x1p-24, nan, infinity, -infinity, 1e30, -7});
  Tensor<T, 3> tensor(wide.shape());
  for_each_index(wide.shape(), [&](const auto& i) { tensor(i) = convert_float<T>(wide(i)); });
  return tensor;
}

}  // namespace headwise_tests
