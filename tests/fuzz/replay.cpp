// Runs a fuzz target without a fuzzer: over every file of a folder, and over some thousand changed
// copies of them, the same ones each time. It ends with 0 where the target finds no fault.
//
//   replay <folder> <changed copies>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "headwise/tensor/philox.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

std::vector<Input> inputs_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry);
  std::ranges::sort(paths);
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

/// A copy with one to four bytes changed, dropped or doubled, and now and then another's tail or
/// random bytes behind it.
Input changed(Input input, const Input& other, std::uint32_t number) {
  const auto key = headwise::philox_key(5);
  const auto words = headwise::philox({number, 0, 0, 0}, key);
  if (words[1] % 8 == 0 && !input.empty() && !other.empty()) {
    input.resize(words[2] % input.size());
    const auto cut = other.begin() + static_cast<std::ptrdiff_t>(words[3] % other.size());
    input.insert(input.end(), cut, other.end());
  }
  for (std::uint32_t n = 0; words[1] % 4 == 1 && n < words[2] % 160; ++n) {
    input.push_back(static_cast<std::uint8_t>(headwise::philox({number, n, 2, 0}, key)[0]));
  }
  for (std::uint32_t change = 0; change <= words[0] % 4 && !input.empty(); ++change) {
    const auto draw = headwise::philox({number, change, 1, 0}, key);
    const auto at = input.begin() + static_cast<std::ptrdiff_t>(draw[0] % input.size());
    if (draw[1] % 4 == 0) {
      input.insert(at, *at);
    } else if (draw[1] % 4 == 1) {
      input.erase(at);
    } else {
      *at = static_cast<std::uint8_t>(draw[1] % 4 == 2 ? draw[2] : *at ^ (1u << (draw[2] % 8)));
    }
  }
  return input;
}

const Input* current = nullptr;

/// What a target dies of is the input's fault: its bytes are the one line that repeats it.
void print_current(int) {
  if (current != nullptr) {
    std::fputs("input:", stderr);
    for (const std::uint8_t byte : *current) std::fprintf(stderr, " %02x", byte);
    std::fputc('\n', stderr);
  }
}

void run(const Input& input) {
  current = &input;
  try {
    LLVMFuzzerTestOneInput(input.data(), input.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the target throws: %s\n", error.what());
    print_current(0);
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: replay <folder> <changed copies>\n", stderr);
    return 2;
  }
  const auto inputs = inputs_of(argv[1]);
  if (inputs.empty()) {
    std::fprintf(stderr, "replay: %s holds no input\n", argv[1]);
    return 1;
  }
  std::signal(SIGABRT, print_current);
  for (const Input& input : inputs) run(input);
  const auto copies = static_cast<std::uint32_t>(std::atoi(argv[2]));
  for (std::uint32_t n = 0; n < copies; ++n) {
    run(changed(inputs[n % inputs.size()], inputs[n * 7 % inputs.size()], n));
  }
  std::printf("%zu inputs and %u changed copies\n", inputs.size(), copies);
  return 0;
}
