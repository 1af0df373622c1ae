// What a file can make the reader allocate, counted: less than the file's own size and 64 MiB,
// whatever its header says.
#include <malloc.h>

#include <fstream>

#include "io/bad_files.hpp"
#include "io/written_files.hpp"
#include "outside_faults/allocations.hpp"

namespace outside_faults_memory_bound {

using namespace headwise_tests;

namespace {

constexpr std::size_t allowance = std::size_t{64} << 20;
constexpr std::size_t longest_header = 100'000'000;

/// Resident memory now, or the most since the last reset: VmRSS or VmHWM, in bytes.
std::size_t resident(const std::string& line) {
  std::ifstream status("/proc/self/status");
  for (std::string text; std::getline(status, text);) {
    if (text.starts_with(line)) return std::stoul(text.substr(line.size() + 1)) * 1024;
  }
  return 0;
}

bool reset_most_resident() {
  ::malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

/// Says whether a file of this size is accepted by `read`, and checks what that took.
template <class Read>
bool accepted_within_bounds(std::size_t size, Read&& read) {
  const bool measures = reset_most_resident();
  const std::size_t resident_before = resident("VmRSS:");
  reset_allocations();
  const std::size_t live_before = allocations().live;
  bool accepted = false;
  try {
    const SafetensorsFile file = read();
    accepted = true;
  } catch (const FileError& error) {
    CHECK(std::string(error.what()).size() < 400);
  }
  CHECK(allocations().peak - live_before < size + allowance);
  CHECK(allocations().live == live_before);
  if (measures) CHECK(resident("VmHWM:") < resident_before + size + allowance);
  return accepted;
}

bool accepts(const std::string& header) {
  const std::string file = with_length(header.size(), header);
  return accepted_within_bounds(file.size(), [&] { return parse(file); });
}

std::string repeated(const std::string& piece, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + piece.size());
  while (text.size() + piece.size() <= bytes) text += piece;
  return text;
}

/// {first, first, ...} of the longest length, or of so many members, with a number in each name.
template <class Member>
std::string object_of(std::size_t most_members, Member&& member) {
  std::string text = "{";
  text.reserve(longest_header);
  for (std::size_t n = 0; n < most_members; ++n) {
    const std::string next = member(std::to_string(n));
    if (text.size() + next.size() + 2 > longest_header) break;
    if (n != 0) text += ',';
    text += next;
  }
  return text + "}";
}

std::string empty_tensor(const std::string& name) { return entry(name, "U8", "[0]", "[0,0]"); }
std::string empty_line(const std::string& name) { return "\"" + name + "\":\"\""; }

constexpr std::size_t no_limit = std::size_t{1} << 40;

}  // namespace

TEST_CASE("the largest headers that are accepted stay within their memory", "[outside]") {
  const std::string long_name(60, 'n');
  CHECK(accepts(
      object_of(170'000, [&](const std::string& n) { return empty_tensor(long_name + n); })));
  CHECK(accepts(R"({"__metadata__":)" + object_of(200'000, empty_line) + "}"));
  CHECK(accepts(R"({"__metadata__":{"k":")" + std::string(48'000'000, 'v') + "\"}}"));
  CHECK(accepts(R"({"__metadata__":{"k":")" + repeated("\\u00e9", 60'000'000) + "\"}}"));
  CHECK(accepts("{" + empty_tensor(std::string(48'000'000, 'n')) + "}"));
  CHECK(accepts("{" + std::string(longest_header - 2, ' ') + "}"));
  CHECK(accepts("{" + entry("a", "U8", "[" + std::string(60'000'000, '\n') + "0]", "[0,0]") + "}"));
}

TEST_CASE("headers that would take more memory are refused within it", "[outside]") {
  CHECK_FALSE(accepts(object_of(no_limit, empty_tensor)));
  CHECK_FALSE(accepts(R"({"__metadata__":)" + object_of(no_limit - 1, empty_line)));
  CHECK_FALSE(accepts(R"({"__metadata__":{"k":")" + std::string(60'000'000, 'v') + "\"}}"));
  CHECK_FALSE(accepts("{" + empty_tensor(std::string(60'000'000, 'n')) + "}"));
  CHECK_FALSE(accepts("{\"" + std::string(60'000'000, 'n')));
  CHECK_FALSE(accepts("{" + entry("a", std::string(60'000'000, 'U'), "[0]", "[0,0]") + "}"));
  CHECK_FALSE(
      accepts("{" + entry("a", "U8", "[" + std::string(60'000'000, '9') + "]", "[0,0]") + "}"));
  CHECK_FALSE(
      accepts("{" + entry("a", "U8", "[" + repeated("0,", 60'000'000) + "0]", "[0,0]") + "}"));
  CHECK_FALSE(accepts(std::string(longest_header, '[')));
  CHECK_FALSE(accepts(repeated("{\"a\":", longest_header)));
  CHECK_FALSE(accepts(std::string(longest_header, '\xFF')));
}

TEST_CASE("a file of data is held once", "[outside]") {
  const std::size_t bytes = std::size_t{96} << 20;
  const std::string extent = std::to_string(bytes);
  const std::string header = "{" + entry("a", "U8", "[" + extent + "]", "[0," + extent + "]") + "}";
  const TemporaryFolder folder;
  const fs::path path = folder / "x";
  std::ofstream(path, std::ios::binary) << with_length(header.size(), header);
  const auto read = [&] { return SafetensorsFile::read(path); };
  CHECK_FALSE(accepted_within_bounds(fs::file_size(path), read));
  fs::resize_file(path, 8 + header.size() + bytes);  // a hole: no byte of it is on the disk
  CHECK(accepted_within_bounds(fs::file_size(path), read));
}

}  // namespace outside_faults_memory_bound
