// What has to hold for the pages. Each rule is a function from a page to complaints, so that a test
// can plant a fault in a page of its own.
#pragma once

#include <cctype>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "documents/blocks.hpp"

namespace documents {

using Faults = std::vector<std::string>;

inline std::string at(const Page& page, int line) {
  return page.name + ":" + std::to_string(line) + ": ";
}

inline std::string trimmed(const std::string& line) {
  const auto begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_last_not_of(" \t") - begin + 1);
}

inline std::vector<std::string> trimmed_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string& line : lines_of(text)) {
    if (!trimmed(line).empty()) lines.push_back(trimmed(line));
  }
  return lines;
}

/// Whether the lines of `part` follow one another somewhere in `whole`, indentation aside.
inline bool contains_lines(const std::string& whole, const std::string& part) {
  const auto all = trimmed_lines(whole), some = trimmed_lines(part);
  return !some.empty() &&
         std::search(all.begin(), all.end(), some.begin(), some.end()) != all.end();
}

/// A block of C++ is a program, a part of one on the same page or of the file that its note names,
/// or says why it is not compiled.
inline std::optional<std::string> cpp_fault(const Page& page, const Block& block,
                                            const fs::path& root) {
  if (is_program(block)) return std::nullopt;
  if (block.note.starts_with(not_compiled) && block.note.size() > not_compiled.size()) {
    return std::nullopt;
  }
  if (block.note.starts_with(taken_from)) {
    const std::string name = block.note.substr(taken_from.size());
    if (!fs::exists(root / name)) return "there is no " + name;
    if (!contains_lines(read_text(root / name), block.text)) return "is not a part of " + name;
    return std::nullopt;
  }
  for (const Block& other : page.blocks) {
    if (is_program(other) && contains_lines(other.text, block.text)) return std::nullopt;
  }
  return "is no program, no part of one on this page, and has no note (from FILE, not compiled: "
         "WHY)";
}

inline Faults block_faults(const Page& page, const fs::path& root) {
  const std::set<std::string> known = {"", "cpp", "text", "sh", "cmake", "math"};
  Faults faults;
  for (const Block& block : page.blocks) {
    if (!known.contains(block.language)) {
      faults.push_back(at(page, block.line) + "no test knows what to do with " + block.language);
    }
    if (block.language == "cpp") {
      if (const auto fault = cpp_fault(page, block, root)) {
        faults.push_back(at(page, block.line) + *fault);
      }
    }
    if (!block.language.empty()) continue;
    for (const std::string& line : trimmed_lines(block.text)) {
      if (line.starts_with("./") || line.starts_with("git ") || line.starts_with("#include")) {
        faults.push_back(at(page, block.line) + "holds commands or code without saying so");
        break;
      }
    }
  }
  return faults;
}

/// The commands of ./dev, as its usage lists them: two blanks, then the name.
inline std::set<std::string> dev_commands(const fs::path& root) {
  std::set<std::string> commands;
  const std::regex entry("^  ([a-z]+)( .*)?$");
  std::smatch match;
  for (const std::string& line : lines_of(read_text(root / "dev"))) {
    if (line == "TEXT") break;
    if (std::regex_match(line, match, entry)) commands.insert(match[1]);
  }
  return commands;
}

/// The names and tags of the test cases of a layer, in small letters.
inline std::string test_names(const fs::path& root, const std::string& layer) {
  std::string names;
  const std::regex test_case("TEST_CASE\\(\\s*((?:\"[^\"]*\"[\\s,]*)+)");
  const auto add = [&](const fs::path& file) {
    const std::string source = read_text(file);
    for (std::sregex_iterator m(source.begin(), source.end(), test_case), end; m != end; ++m) {
      names += (*m)[1].str() + '\n';
    }
  };
  if (!fs::exists(root / "tests" / layer)) return names;
  for (const auto& entry : fs::directory_iterator(root / "tests" / layer)) {
    if (entry.path().string().ends_with(".test.cpp")) add(entry.path());
  }
  std::transform(names.begin(), names.end(), names.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return names;
}

/// `headwise_tests_ops "*bits*,*NaN*"` runs something, each part of it.
inline Faults filter_faults(const Page& page, const fs::path& root) {
  Faults faults;
  const std::regex call("headwise_tests_([a-z_]+) \"([^\"]+)\"");
  for (std::sregex_iterator m(page.text.begin(), page.text.end(), call), end; m != end; ++m) {
    const std::string names = test_names(root, (*m)[1]);
    std::istringstream parts((*m)[2].str());
    for (std::string part; std::getline(parts, part, ',');) {
      std::string wanted;
      for (const char c : part) {
        if (c != '*') wanted += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
      if (names.find(wanted) != std::string::npos) continue;
      faults.push_back(page.name + ": headwise_tests_" + (*m)[1].str() + " has no " + part);
    }
  }
  return faults;
}

/// Every program that a page tells its reader to run exists.
inline Faults command_faults(const Page& page, const fs::path& root) {
  const auto commands = dev_commands(root);
  const std::set<std::string> tools = {"git",   "cd",    "g++",       "clang++",
                                       "cmake", "ctest", "pkg-config"};
  Faults faults;
  for (const Block& block : page.blocks) {
    if (block.language != "sh") continue;
    for (const std::string& line : trimmed_lines(block.text)) {
      const std::string first = line.substr(0, line.find(' '));
      if (first == "./dev" || first.starts_with("#") || first.starts_with("./headwise_tests_"))
        continue;
      if (!tools.contains(first)) faults.push_back(at(page, block.line) + "what is " + first + "?");
    }
  }
  const std::regex dev("\\./dev ([a-z]+)"), tests("headwise_tests_([a-z_]+)");
  const auto each = [&](const std::regex& pattern, auto&& take) {
    for (std::sregex_iterator m(page.text.begin(), page.text.end(), pattern), end; m != end; ++m) {
      take((*m)[1].str());
    }
  };
  each(dev, [&](const std::string& command) {
    if (!commands.contains(command)) faults.push_back(page.name + ": ./dev has no " + command);
  });
  each(tests, [&](const std::string& layer) {
    if (!fs::exists(root / "tests" / layer) &&
        !fs::exists(root / "tests" / (layer + ".test.cpp"))) {
      faults.push_back(page.name + ": there is no headwise_tests_" + layer);
    }
  });
  return faults;
}

/// Every link that is relative leads to a file or a folder.
inline Faults link_faults(const Page& page, const fs::path& root) {
  Faults faults;
  const std::regex link("\\]\\(([^)#]+)(#[^)]*)?\\)");
  for (std::sregex_iterator m(page.prose.begin(), page.prose.end(), link), end; m != end; ++m) {
    const std::string target = (*m)[1];
    if (target.starts_with("http")) continue;
    if (!fs::exists((root / page.name).parent_path() / target)) {
      faults.push_back(page.name + ": leads to " + target + ", which is not there");
    }
  }
  return faults;
}

/// Whether a source has a test case of this name, which may be written in pieces.
inline bool has_test(const std::string& source, const std::string& name) {
  static const std::regex joint("\"\\s*\"|(\\()\\s+(?=\")");
  const std::string joined = std::regex_replace(source, joint, "$1");
  return joined.find("TEST_CASE(\"" + name + "\"") != std::string::npos;
}

/// `- `tests/FILE`: NAME` below "## Proven by" is a test that exists.
inline Faults proof_faults(const Page& page, const fs::path& root) {
  Faults faults;
  const std::string heading = "\n## Proven by\n";
  const auto begin = page.text.find(heading);
  if (begin == std::string::npos) return {page.name + ": has no \"## Proven by\""};
  const std::regex item("- `(tests/[^`]+)`: (.+)");
  int found = 0;
  for (const std::string& line : trimmed_lines(page.text.substr(begin + heading.size()))) {
    std::smatch match;
    if (!std::regex_match(line, match, item)) {
      faults.push_back(page.name + ": is no test: " + line);
      continue;
    }
    ++found;
    const fs::path source = root / match[1].str();
    if (!fs::exists(source)) {
      faults.push_back(page.name + ": there is no " + match[1].str());
    } else if (source.extension() == ".cpp" && !has_test(read_text(source), match[2])) {
      faults.push_back(page.name + ": " + match[1].str() + " has no test: " + match[2].str());
    }
  }
  if (found == 0) faults.push_back(page.name + ": names no test");
  return faults;
}

/// A page of a feature has a program, its output, its edges and its tests.
inline Faults feature_faults(const Page& page) {
  Faults faults;
  bool shown = false;
  for (std::size_t n = 0; n < page.blocks.size(); ++n) {
    const Block* output = is_program(page.blocks[n]) ? output_of(page, n) : nullptr;
    shown = shown || (output != nullptr && !output->text.empty());
  }
  if (!shown) faults.push_back(page.name + ": has no program with its output");
  if (page.text.find("\n## Edges\n") == std::string::npos) {
    faults.push_back(page.name + ": has no \"## Edges\"");
  }
  return faults;
}

}  // namespace documents
