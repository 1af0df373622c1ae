// Runs a program of a page and holds what it prints against what the page shows.
#pragma once

#include <cctype>
#include <iostream>
#include <sstream>
#include <string>

#include "documents/blocks.hpp"
#include "support/catch.hpp"

namespace documents {

/// What goes to std::cout while this lives.
class CapturedOutput {
 public:
  CapturedOutput() : before_(std::cout.rdbuf(text_.rdbuf())) { format_.copyfmt(std::cout); }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  ~CapturedOutput() {
    std::cout.rdbuf(before_);
    std::cout.copyfmt(format_);
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ios format_{nullptr};
  std::streambuf* before_;
};

/// Without blanks at the ends of lines and empty lines at the end, which no reader sees.
inline std::string without_trailing_blanks(const std::string& text) {
  std::string kept;
  for (std::string line : lines_of(text)) {
    line.erase(line.find_last_not_of(" \t") + 1);
    kept += line + '\n';
  }
  kept.erase(kept.find_last_not_of('\n') + 1);
  return kept;
}

/// With # for each number and the blanks before it, which vary with its width.
inline std::string without_numbers(const std::string& text) {
  std::string kept;
  for (std::size_t n = 0; n < text.size();) {
    const auto digit = [&](std::size_t at) {
      return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (!digit(n)) {
      kept += text[n++];
      continue;
    }
    while (digit(n) || (n < text.size() && text[n] == '.') ||
           (n + 1 < text.size() && text[n] == 'e' && (digit(n + 1) || digit(n + 2)))) {
      n += text[n] == 'e' ? 2 : 1;
    }
    kept.erase(kept.find_last_not_of(" -") + 1);
    kept += " #";
  }
  return kept;
}

inline bool same_output(const std::string& printed, const std::string& shown, bool vary) {
  const std::string a = without_trailing_blanks(printed), b = without_trailing_blanks(shown);
  return vary ? without_numbers(a) == without_numbers(b) : a == b;
}

inline void check_program(int (*program)(), const std::string& shown, bool vary) {
  std::string printed;
  int status = 0;
  {
    const CapturedOutput output;
    status = program();
    printed = output.text();
  }
  INFO("printed:\n" << printed << "shown:\n" << shown);
  CHECK(status == 0);
  CHECK(same_output(printed, shown, vary));
}

}  // namespace documents
