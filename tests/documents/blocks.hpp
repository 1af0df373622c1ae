// The fenced blocks of the pages, with what a reader of the page is told about each. It knows
// fences that stand at the beginning of a line, and no other Markdown.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace documents {

namespace fs = std::filesystem;

struct Block {
  int line = 0;          // of the opening fence
  std::string language;  // behind the fence; empty for none
  std::string note;      // of an HTML comment on the line before the fence
  std::string text;      // lines between the fences, each with its end
};

struct Page {
  std::string name;  // relative to the root: docs/features/masks.md
  std::string text;
  std::string prose;  // without the blocks
  std::vector<Block> blocks;
};

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Throws std::runtime_error for a fence that is not closed.
inline Page parse_page(std::string name, const std::string& text) {
  Page page{std::move(name), text, "", {}};
  const auto lines = lines_of(text);
  constexpr std::string_view fence = "```", open = "<!-- ", close = " -->";
  for (std::size_t n = 0; n < lines.size(); ++n) {
    if (!lines[n].starts_with(fence)) {
      page.prose += lines[n] + '\n';
      continue;
    }
    Block block{static_cast<int>(n) + 1, lines[n].substr(fence.size()), "", ""};
    if (n > 0 && lines[n - 1].starts_with(open) && lines[n - 1].ends_with(close)) {
      block.note =
          lines[n - 1].substr(open.size(), lines[n - 1].size() - open.size() - close.size());
    }
    for (++n; n < lines.size() && lines[n] != fence; ++n) block.text += lines[n] + '\n';
    if (n == lines.size()) {
      throw std::runtime_error(page.name + ":" + std::to_string(block.line) +
                               ": the block is not closed");
    }
    page.blocks.push_back(std::move(block));
  }
  return page;
}

inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

/// README.md and every page below docs/, by name.
inline std::vector<Page> read_pages(const fs::path& root) {
  std::vector<std::string> names = {"README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() != ".md") continue;
    names.push_back(entry.path().lexically_relative(root).generic_string());
  }
  std::sort(names.begin(), names.end());
  std::vector<Page> pages;
  for (const std::string& name : names) pages.push_back(parse_page(name, read_text(root / name)));
  return pages;
}

constexpr std::string_view opening_of_main = "int main() {";

/// Whether a block is a program that can be built and run as it stands.
inline bool is_program(const Block& block) {
  return block.language == "cpp" && block.text.find(opening_of_main) != std::string::npos;
}

/// The block behind a program that holds its output; null where it prints nothing.
inline const Block* output_of(const Page& page, std::size_t program) {
  if (program + 1 >= page.blocks.size()) return nullptr;
  const Block& next = page.blocks[program + 1];
  return next.language == "text" ? &next : nullptr;
}

constexpr std::string_view numbers_vary = "numbers depend on the machine";
constexpr std::string_view not_compiled = "not compiled: ";
constexpr std::string_view taken_from = "from ";

}  // namespace documents
