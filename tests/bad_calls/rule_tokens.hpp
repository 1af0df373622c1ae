// C++ as far as the reader of rules needs it: words, texts and signs, the brackets around them, and
// the parts between commas. Comments and preprocessor lines are left out.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

namespace headwise_tests {

struct Token {
  char kind;  // w word, t text, or the sign itself
  std::string text;
  int line;
};
using Tokens = std::vector<Token>;
/// Of tokens, the end excluded.
using Range = std::pair<std::size_t, std::size_t>;

inline Tokens tokens_of(const std::string& text) {
  Tokens tokens;
  int line = 1;
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (std::size_t n = 0; n < text.size();) {
    const char c = text[n];
    if (c == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++n;
    } else if (text.compare(n, 2, "//") == 0 || c == '#') {
      n = std::min(text.find('\n', n), text.size());
    } else if (c == '"') {
      std::string value;
      for (++n; n < text.size() && text[n] != '"'; ++n) {
        if (text[n] == '\\') ++n;
        value += text[n];
      }
      ++n;
      if (!tokens.empty() && tokens.back().kind == 't') {
        tokens.back().text += value;
      } else {
        tokens.push_back({'t', value, line});
      }
    } else if (c == '\'') {
      n = text.find('\'', n + (text[n + 1] == '\\' ? 3 : 2)) + 1;
      tokens.push_back({'w', "char", line});
    } else if (is_word(c)) {
      const std::size_t begin = n;
      while (n < text.size() && is_word(text[n])) ++n;
      tokens.push_back({'w', text.substr(begin, n - begin), line});
    } else {
      tokens.push_back({c, std::string(1, c), line});
      ++n;
    }
  }
  return tokens;
}

/// Behind the bracket that closes the one at `open`.
inline std::size_t behind(const Tokens& tokens, std::size_t open) {
  int depth = 0;
  for (std::size_t t = open; t < tokens.size(); ++t) {
    const char kind = tokens[t].kind;
    if (kind == '(' || kind == '{' || kind == '[') ++depth;
    if (kind == ')' || kind == '}' || kind == ']') {
      if (--depth == 0) return t + 1;
    }
  }
  return tokens.size();
}

/// The parts of a range between signs that stand outside all brackets. (A < is no bracket.)
inline std::vector<Range> split(const Tokens& tokens, Range range, char sign) {
  std::vector<Range> parts;
  std::size_t begin = range.first;
  for (std::size_t t = range.first; t < range.second; ++t) {
    const char kind = tokens[t].kind;
    if (kind == '(' || kind == '{' || kind == '[') {
      t = behind(tokens, t) - 1;
    } else if (kind == sign) {
      parts.push_back({begin, t});
      begin = t + 1;
    }
  }
  if (begin < range.second) parts.push_back({begin, range.second});
  return parts;
}

/// In a declaration each < is a bracket.
inline std::vector<Range> parameters_of(const Tokens& tokens, Range range) {
  std::vector<Range> parts;
  int depth = 0;
  for (const Range& part : split(tokens, range, ',')) {
    if (depth > 0) {
      parts.back().second = part.second;
    } else {
      parts.push_back(part);
    }
    for (std::size_t t = part.first; t < part.second; ++t) {
      depth += tokens[t].kind == '<' ? 1 : tokens[t].kind == '>' ? -1 : 0;
    }
  }
  return parts;
}

/// The bracket that opens the arguments of the call at a word; 0 where there is none.
inline std::size_t opening(const Tokens& tokens, std::size_t word) {
  std::size_t t = word + 1;
  if (t < tokens.size() && tokens[t].kind == '<') {
    while (t < tokens.size() && tokens[t].kind != '>' && tokens[t].kind != ';') ++t;
    ++t;
  }
  return t < tokens.size() && tokens[t].kind == '(' ? t : 0;
}

}  // namespace headwise_tests
