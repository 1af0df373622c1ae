// What a message may read: the forms of the expression that makes it, with a * where a number or
// something unknown stands. It knows the few expressions that this project makes messages of.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bad_calls/rule_tokens.hpp"

namespace headwise_tests {

/// Whether a text is of a form in which * stands for anything.
inline bool is_of_form(std::string_view text, std::string_view form) {
  const std::size_t star = form.find('*');
  if (star == form.npos) return text == form;
  if (text.substr(0, star) != form.substr(0, star)) return false;
  std::string_view rest = form.substr(star + 1);
  while (rest.starts_with('*')) rest.remove_prefix(1);
  for (std::size_t n = star; n <= text.size(); ++n) {
    if (is_of_form(text.substr(n), rest)) return true;
  }
  return false;
}

/// What each parameter that is a text was given.
using Names = std::map<std::string, std::string>;

inline std::string value_of(const Tokens& tokens, std::size_t before, const std::string& word,
                            const Names& names) {
  if (const auto given = names.find(word); given != names.end()) return given->second;
  for (std::size_t t = before; t-- > 2;) {  // word = "text";
    if (tokens[t].kind == 't' && tokens[t - 1].kind == '=' && tokens[t - 2].text == word) {
      return tokens[t].text;
    }
  }
  return "*";
}

inline std::vector<std::string> forms_of_part(const Tokens& tokens, Range range,
                                              const Names& names) {
  auto [begin, end] = range;
  // std::string(word) is the word.
  if (end - begin == 7 && tokens[begin + 3].text == "string") {
    begin += 5;
    end = begin + 1;
  }
  if (end - begin == 1 && tokens[begin].kind == 't') return {tokens[begin].text};
  if (end - begin == 1) return {value_of(tokens, begin, tokens[begin].text, names)};
  std::string text = "*";  // a call: the texts among its arguments
  for (std::size_t t = begin; t < end; ++t) {
    if (tokens[t].kind == 't') text += tokens[t].text + "*";
  }
  return {end - begin > 2 && tokens[end - 2].kind == 't' ? text.substr(0, text.size() - 1) : text};
}

/// The texts that an expression may be.
inline std::vector<std::string> forms_of(const Tokens& tokens, Range range, const Names& names) {
  auto [begin, end] = range;
  if (tokens[begin].kind == '{' && end - begin == 2) return {"*"};
  if (tokens[begin].kind == '{') {  // {"y", y}: its first text
    return forms_of(tokens, split(tokens, {begin + 1, end - 1}, ',')[0], names);
  }
  if (tokens[begin].kind == '[') {  // a lambda: what it returns
    for (std::size_t t = begin; t < end; ++t) {
      if (tokens[t].text != "return") continue;
      if (tokens[t + 1].kind == '[') return forms_of(tokens, {t + 1, end}, names);
      std::size_t stop = t;
      while (stop < end && tokens[stop].kind != ';') ++stop;
      return forms_of(tokens, {t + 1, stop}, names);
    }
  }
  if (const auto choice = split(tokens, range, '?'); choice.size() == 2) {
    std::vector<std::string> all;
    for (const Range& part : split(tokens, choice[1], ':')) {
      for (const std::string& text : forms_of(tokens, part, names)) all.push_back(text);
    }
    return all;
  }
  std::vector<std::string> all{""};
  for (const auto& [from, to] : split(tokens, range, '+')) {
    std::vector<std::string> more;
    for (const std::string& text : forms_of_part(tokens, {from, to}, names)) {
      for (const std::string& start : all) more.push_back(start + text);
    }
    all = more;
  }
  return all;
}

/// The texts that a message may be whose parts are arguments of a call: one behind the other.
inline std::vector<std::string> forms_of_parts(const Tokens& tokens, std::span<const Range> parts,
                                               const Names& names) {
  std::vector<std::string> all{""};
  for (const Range& part : parts) {
    std::vector<std::string> more;
    for (const std::string& text : forms_of(tokens, part, names)) {
      for (const std::string& start : all) more.push_back(start + text);
    }
    all = more;
  }
  return all;
}

}  // namespace headwise_tests
