// Runs a reference case that PyTorch has computed, writes output, weights and gradients under
// PyTorch's names, and prints how far each is from what PyTorch found.
//
//   replay_pytorch IN.safetensors OUT.safetensors [--path materialized|flash] [--dtype f64|f32]
//                  [--threads N]
//
// Exits with 0 after a run, whatever its errors are; 1 for a file that cannot be run or written; 2
// for wrong usage.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/io/pytorch.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/reference_case.hpp"

using namespace headwise;
using namespace headwise::examples;

namespace {

constexpr const char* usage =
    "usage: replay_pytorch IN.safetensors OUT.safetensors [--path materialized|flash] "
    "[--dtype f64|f32] [--threads N]\n";

struct Arguments {
  std::vector<std::string> files;
  Path path = Path::flash;
  DType dtype = DType::f64;
  Index threads = 1;
};

/// Sets an option; false for a name or a value that it does not know.
bool set_option(Arguments& arguments, std::string_view option, std::string_view value) {
  if (option == "--path" && value == "flash") {
    arguments.path = Path::flash;
  } else if (option == "--path" && value == "materialized") {
    arguments.path = Path::materialized;
  } else if (option == "--dtype" && value == "f64") {
    arguments.dtype = DType::f64;
  } else if (option == "--dtype" && value == "f32") {
    arguments.dtype = DType::f32;
  } else if (option == "--threads") {
    const char* end = value.data() + value.size();
    const auto [parsed, error] = std::from_chars(value.data(), end, arguments.threads);
    return error == std::errc() && parsed == end && arguments.threads >= 1 &&
           arguments.threads <= 1024;
  } else {
    return false;
  }
  return true;
}

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int n = 1; n < argc; ++n) {
    const std::string_view argument = argv[n];
    if (!argument.starts_with("--")) {
      arguments.files.emplace_back(argument);
      continue;
    }
    const std::string_view value = n + 1 < argc ? argv[n + 1] : "";
    if (!set_option(arguments, argument, value)) {
      std::cerr << "replay_pytorch: " << argument << " does not take \"" << value << "\"\n";
      return std::nullopt;
    }
    ++n;
  }
  if (arguments.files.size() != 2) return std::nullopt;
  return arguments;
}

void print(const std::vector<CaseComparison>& rows) {
  std::size_t widths[] = {6, 5};
  for (const CaseComparison& row : rows) {
    widths[0] = std::max(widths[0], row.name.size());
    widths[1] = std::max(widths[1], format_extents(row.shape).size());
  }
  const auto print_row = [&](std::string name, std::string shape, const std::string& error) {
    name.resize(widths[0], ' ');
    shape.resize(widths[1], ' ');
    std::cout << name << "  " << shape << "  " << error << '\n';
  };
  print_row("tensor", "shape", "max error / max value");
  for (const CaseComparison& row : rows) {
    char error[32] = "-";
    if (row.closeness) std::snprintf(error, sizeof error, "%.2e", row.closeness->error);
    print_row(row.name, format_extents(row.shape), error);
  }
}

int replay(const Arguments& arguments) {
  const std::string& in = arguments.files[0];
  const std::string& out = arguments.files[1];
  const ReferenceCase c = read_reference_case(std::filesystem::path(in));
  try {
    ThreadPool pool(arguments.threads);
    const Context context{.executor = pool};
    const SafetensorsWriter results = arguments.dtype == DType::f64
                                          ? run_reference_case<double>(c, arguments.path, context)
                                          : run_reference_case<float>(c, arguments.path, context);
    const auto rows = compare_with_expected(c, SafetensorsFile::parse(results.bytes()));
    results.write(out);
    print(rows);
  } catch (const std::invalid_argument& error) {  // without the file's name
    raise<FileError>(in + ": " + error.what());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Arguments> arguments = parse(argc, argv);
  if (!arguments) {
    std::cerr << usage;
    return 2;
  }
  try {
    return replay(*arguments);
  } catch (const std::exception& error) {
    std::cerr << "replay_pytorch: " << error.what() << '\n';
    return 1;
  }
}
