// Holds the headers to the layers: an #include points to a lower rank, into its own folder, or to
// the system or Eigen. Fragments, x.inc, are read once for each instruction set: they include
// fragments alone, and only three headers include them. It reads lines, not C++: an #include that
// the preprocessor would skip counts too.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.hpp"

namespace {

constexpr int max_lines = 300;

const std::map<std::string, int, std::less<>> ranks = {
    {"tensor", 0},   {"runtime", 1}, {"score", 1}, {"simd", 1},     {"testing", 1}, {"kernels", 2},
    {"analysis", 3}, {"ops", 3},     {"nn", 4},    {"autograd", 5}, {"optim", 5},   {"io", 6}};

// Paths are relative to include/headwise: "ops/linear.hpp".
constexpr std::string_view umbrella = "headwise.hpp";
const std::set<std::string, std::less<>> tops = {"headwise.hpp", "compiled.hpp",
                                                 "print_config.hpp"};  // above all folders
constexpr std::string_view version = "version.hpp";
constexpr std::array<std::string_view, 4> reads_fragments = {
    "kernels/kernels.hpp", "kernels/bf16_kernels.hpp", "kernels/split_kernels.hpp",
    "kernels/pair_functions.hpp"};  // the last in the user's program

bool is_fragment(std::string_view path) { return path.ends_with(".inc"); }

// What adapts another library, by the way its headers are included: of who asks for it alone.
const std::map<std::string, std::string, std::less<>> adapters = {
    {"runtime/eigen_executor.hpp", "<unsupported/Eigen/CXX11/ThreadPool>"},
    {"runtime/openmp_executor.hpp", "<omp.h>"},
    {"runtime/tbb_executor.hpp", "<tbb/"}};

std::string folder_of(std::string_view path) {
  const auto slash = path.find('/');
  return std::string(slash == std::string_view::npos ? "" : path.substr(0, slash));
}

/// What stands after #include, quotes or angle brackets with it; nothing where the line is another.
std::optional<std::string> include_operand(std::string_view line) {
  const auto skip_blanks = [&] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  const auto skip = [&](std::string_view word) {
    skip_blanks();
    if (!line.starts_with(word)) return false;
    line.remove_prefix(word.size());
    return true;
  };
  if (!skip("#") || !skip("include")) return std::nullopt;
  skip_blanks();
  if (line.empty()) return "";
  const char close = line.front() == '<' ? '>' : line.front() == '"' ? '"' : ' ';
  return std::string(line.substr(0, line.find(close, 1) + (close == ' ' ? 0 : 1)));
}

/// One complaint about one arrow, or nothing: `from` and `to` are relative to include/headwise.
std::optional<std::string> arrow_fault(const std::string& from, const std::string& to) {
  if (is_fragment(from) && !is_fragment(to)) return "is a fragment and includes " + to;
  if (is_fragment(to) && !is_fragment(from) &&
      std::find(reads_fragments.begin(), reads_fragments.end(), from) == reads_fragments.end()) {
    return "includes " + to + ", a fragment";
  }
  if (to == version) return std::nullopt;
  if (adapters.contains(to)) return from + " includes " + to + ", which needs another library";
  if (tops.contains(from)) {
    if (folder_of(to) == "io") return from + " includes " + to + ", which handles files";
    if (from != umbrella && to == umbrella) return "includes the umbrella";
    return std::nullopt;
  }
  if (to == umbrella) return "includes the umbrella";
  const auto from_rank = ranks.find(folder_of(from));
  const auto to_rank = ranks.find(folder_of(to));
  if (from_rank == ranks.end()) return "is in no known layer";
  if (to_rank == ranks.end()) return "includes " + to + ", which is in no known layer";
  if (from_rank == to_rank || to_rank->second < from_rank->second) return std::nullopt;
  return from_rank->first + " (rank " + std::to_string(from_rank->second) + ") includes " + to +
         " (rank " + std::to_string(to_rank->second) + ")";
}

bool adapts(const std::string& path, const std::string& operand) {
  const auto adapter = adapters.find(path);
  return adapter != adapters.end() && operand.starts_with(adapter->second);
}

/// Every complaint about the #include lines of one file.
std::vector<std::string> include_faults(const std::string& path, const std::string& text) {
  std::vector<std::string> faults;
  if (!tops.contains(path) && path != version && !ranks.contains(folder_of(path))) {
    faults.push_back(path + ": is in no known layer");
  }
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto operand = include_operand(line);
    if (!operand) continue;
    const std::string where = path + ":" + std::to_string(number) + ": ";
    constexpr std::string_view own = "headwise/";
    const bool quoted = operand->starts_with('"');
    if (!quoted && !operand->starts_with('<')) {
      faults.push_back(where + "#include " + *operand + " hides where it points");
    } else if (std::string_view(*operand).substr(1).starts_with(own)) {
      const std::string to = operand->substr(1 + own.size(), operand->size() - own.size() - 2);
      if (const auto fault = arrow_fault(path, to)) faults.push_back(where + *fault);
    } else if (is_fragment(path)) {
      faults.push_back(where + "is a fragment and includes " + *operand);
    } else if (quoted) {
      faults.push_back(where + *operand + " must be written \"headwise/<folder>/<file>\"");
    } else if (operand->find('/') != std::string::npos && !operand->starts_with("<Eigen/") &&
               !operand->starts_with("<sys/") && !adapts(path, *operand)) {
      faults.push_back(where + *operand + " is of a library that headwise does without");
    }
  }
  return faults;
}

/// Every complaint about how one header looks from outside.
std::vector<std::string> form_faults(const std::string& path, const std::string& text) {
  std::vector<std::string> faults;
  if (!text.starts_with("//") && !text.starts_with("/*")) {
    faults.push_back(path + ": does not open with a comment that says what it does");
  }
  const bool guarded =
      text.starts_with("#pragma once\n") || text.find("\n#pragma once\n") != std::string::npos;
  if (guarded == is_fragment(path)) {
    faults.push_back(path + (guarded ? ": is a fragment, to be read again, and has #pragma once"
                                     : ": has no #pragma once"));
  }
  const auto lines = std::count(text.begin(), text.end(), '\n');
  if (lines >= max_lines) {
    faults.push_back(path + ": has " + std::to_string(lines) + " lines, expected fewer than " +
                     std::to_string(max_lines));
  }
  for (const char* call : {"std::max(", "std::min("}) {
    if (text.find(call) == std::string::npos) continue;
    faults.push_back(path + ": a macro would take " + call + ", expected std::max<Type>(");
  }
  // A formatter that fills the lines of a comment joins these with what stands before.
  for (const char* heading : {". Work  ", ". Throws  ", ". Source  "}) {
    if (text.find(heading) == std::string::npos) continue;
    faults.push_back(path + ": " + (heading + 2) +
                     "stands within a line, expected a line of its own");
  }
  return faults;
}

struct SourceFile {
  std::string path;  // relative to include/headwise
  std::string text;
};

std::vector<SourceFile> all_headers() {
  const std::filesystem::path root = std::filesystem::path(HEADWISE_INCLUDE_DIR) / "headwise";
  std::vector<SourceFile> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files.push_back({entry.path().lexically_relative(root).generic_string(),
                     {std::istreambuf_iterator<char>(in), {}}});
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::string joined(const std::vector<std::string>& faults) {
  std::string text;
  for (const auto& fault : faults) text += fault + "\n";
  return text;
}

}  // namespace

TEST_CASE("every include points to a lower layer or into its own folder") {
  const auto files = all_headers();
  REQUIRE(!files.empty());
  std::vector<std::string> faults;
  for (const auto& file : files) {
    std::ranges::copy(include_faults(file.path, file.text), std::back_inserter(faults));
  }
  INFO(joined(faults));
  CHECK(faults.empty());
}

TEST_CASE(
    "every header has a comment first, a guard unless it is a fragment, its headings on lines of "
    "their own, no call of max as a macro, and is short") {
  std::vector<std::string> faults;
  for (const auto& file : all_headers()) {
    std::ranges::copy(form_faults(file.path, file.text), std::back_inserter(faults));
  }
  INFO(joined(faults));
  CHECK(faults.empty());
}

TEST_CASE("an include that points down or stays in its folder is no fault") {
  const std::string text =
      "// #include \"headwise/io/safetensors.hpp\" is only spoken of here\n"
      "#include <vector>\n"
      "#include <Eigen/Core>\n"
      "#include \"headwise/version.hpp\"\n"
      "#include \"headwise/ops/softmax.hpp\"\n"
      "#include <headwise/kernels/kernels.hpp>  // tiles\n"
      "  #  include \"headwise/tensor/view.hpp\"\n";
  CHECK(joined(include_faults("ops/linear.hpp", text)).empty());
  CHECK(joined(include_faults("headwise.hpp", "#include \"headwise/nn/block.hpp\"\n")).empty());
  const std::string fragment = "#include \"headwise/simd/exp.inc\"\n";
  CHECK(joined(include_faults("kernels/kernels.hpp", fragment)).empty());
  CHECK(joined(include_faults("kernels/isa.inc", fragment)).empty());
}

TEST_CASE("a planted arrow upward is found") {
  struct Plant {
    std::string path, include, complaint;
  };
  const auto plant = GENERATE(values<Plant>({
      {"kernels/matrix.hpp", "\"headwise/ops/linear.hpp\"",
       "kernels (rank 2) includes ops/linear.hpp"},
      {"kernels/matrix.hpp", "<headwise/io/names.hpp>", "kernels (rank 2) includes io/names.hpp"},
      {"score/mask.hpp", "\"headwise/simd/constants.hpp\"",
       "score (rank 1) includes simd/constants.hpp (rank 1)"},
      {"simd/exp.inc", "\"headwise/kernels/tile.inc\"",
       "simd (rank 1) includes kernels/tile.inc (rank 2)"},
      {"kernels/tile.inc", "\"headwise/kernels/matrix.hpp\"",
       "is a fragment and includes kernels/matrix.hpp"},
      {"kernels/tile.inc", "<vector>", "is a fragment and includes <vector>"},
      {"ops/linear.hpp", "\"headwise/kernels/gemm.inc\"", "includes kernels/gemm.inc, a fragment"},
      {"nn/block.hpp", "\"headwise/headwise.hpp\"", "includes the umbrella"},
      {"nn/block.hpp", "\"headwise/misc/all.hpp\"", "misc/all.hpp, which is in no known layer"},
      {"nn/block.hpp", "\"../ops/linear.hpp\"", "must be written"},
      {"simd/region.hpp", "HEADWISE_TARGET", "hides where it points"},
      {"misc/all.hpp", "<vector>", "is in no known layer"},
      {"stray.hpp", "<vector>", "is in no known layer"},
      {"headwise.hpp", "\"headwise/io/names.hpp\"", "which handles files"},
      {"io/names.hpp", "<nlohmann/json.hpp>", "is of a library that headwise does without"},
      {"runtime/thread_pool.hpp", "<tbb/task_arena.h>",
       "is of a library that headwise does without"},
      {"runtime/tbb_executor.hpp", "<boost/asio.hpp>",
       "is of a library that headwise does without"},
      {"headwise.hpp", "\"headwise/runtime/tbb_executor.hpp\"", "which needs another library"},
      {"ops/linear.hpp", "\"headwise/runtime/openmp_executor.hpp\"", "which needs another library"},
  }));
  CAPTURE(plant.path, plant.include);
  const auto faults =
      include_faults(plant.path, "#pragma once\n  # include " + plant.include + "\n");
  REQUIRE(faults.size() == 1);
  CHECK_THAT(faults.front(), ContainsSubstring(plant.complaint));
  CHECK_THAT(faults.front(), ContainsSubstring(plant.path + ":"));
}

TEST_CASE("a planted header without comment, guard or measure is found") {
  const std::string good = "// Adds.\n#pragma once\n";
  CHECK(joined(form_faults("ops/add.hpp", good)).empty());
  CHECK(form_faults("ops/add.hpp", "#pragma once\n").size() == 1);
  CHECK(form_faults("ops/add.hpp", "// Adds.\n// #pragma once\n").size() == 1);
  CHECK(joined(form_faults("simd/add.inc", "// Adds.\n")).empty());
  CHECK(form_faults("simd/add.inc", good).size() == 1);
  const auto blank_lines = [](int n) { return std::string(static_cast<std::size_t>(n), '\n'); };
  CHECK(form_faults("ops/add.hpp", good + blank_lines(max_lines - 3)).empty());
  CHECK(form_faults("ops/add.hpp", good + blank_lines(max_lines - 2)).size() == 1);
  CHECK(form_faults("ops/add.hpp", good + "/// Adds x. Throws  ShapeError.\n").size() == 1);
  CHECK(form_faults("ops/add.hpp", good + "/// Adds x.\n/// Throws  ShapeError.\n").empty());
  CHECK(form_faults("ops/add.hpp", good + "int most = std::max(1, 2);\n").size() == 1);
  CHECK(form_faults("ops/add.hpp", good + "int most = std::max<int>(1, 2);\n").empty());
}
