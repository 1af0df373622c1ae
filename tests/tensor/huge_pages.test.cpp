// What is large asks for huge pages: seen in what Linux says of the addresses.
#include <cstdint>
#include <fstream>
#include <memory_resource>
#include <sstream>
#include <string>

#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"

namespace tensor_huge_pages {

using namespace headwise;

namespace {

/// The flags of the mapping that holds an address, as /proc/self/smaps has them; empty where there
/// are none to be read.
std::string flags_of(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream range(line);
    if (range >> std::hex >> begin >> dash >> end && dash == '-') here = at >= begin && at < end;
    if (here && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

bool system_has_huge_pages() {
  return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
}

}  // namespace

TEST_CASE("a tensor of 4 MiB asks for huge pages, a small one and one of another resource do not",
          "[tensor]") {
  constexpr Index floats = Index{1} << 20;  // 4 MiB
  const Tensor<float, 1> zeros(Shape{5 * floats});
  const auto large = Tensor<float, 1>::uninitialized({5 * floats});
  const Tensor<float, 1> small(Shape{floats / 2});
  std::pmr::monotonic_buffer_resource own;
  const Tensor<float, 1> of_own(Shape{5 * floats}, &own);
  const auto asks = [&](const Tensor<float, 1>& x) {
    return flags_of(x.data() + x.size() / 2).find(" hg ") != std::string::npos;
  };
  if (!system_has_huge_pages() || flags_of(large.data()).empty()) return;
  CHECK(asks(zeros));
  CHECK(asks(large));
  CHECK_FALSE(asks(small));
  CHECK_FALSE(asks(of_own));
}

}  // namespace tensor_huge_pages
