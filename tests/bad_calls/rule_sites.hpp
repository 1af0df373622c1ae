// Reads the rules out of the headers' text: what every require, require_shape ... and raise would
// say, under the name of each public function that reaches it, with a * where a number stands; but
// no FileError, which is about a file and no call. It knows the few forms in which this project
// writes them, and no more C++ than that.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bad_calls/rule_forms.hpp"
#include "bad_calls/rule_tokens.hpp"

namespace headwise_tests {

/// One rule: a message of one of these forms shows that it holds.
struct RuleSite {
  std::string where;               // file:line
  std::vector<std::string> forms;  // any of them
};

class RuleReader {
 public:
  void read(const std::filesystem::path& root, const std::filesystem::path& header) {
    std::ifstream in(header);
    std::stringstream text;
    text << in.rdbuf();
    read_text(std::filesystem::relative(header, root).string(), text.str());
  }
  void read_text(const std::string& name, const std::string& text) {
    const std::size_t source = sources_.size();
    sources_.push_back({name, tokens_of(text)});
    find_helpers(source);
    const Tokens& tokens = sources_[source].tokens;
    for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
      if (tokens[t].kind == 'w') places_[tokens[t].text].push_back({source, t});
    }
  }

  /// All rules; and, as rules without a form, the places where something is required or raised and
  /// the reader cannot tell what.
  std::vector<RuleSite> rules() {
    std::vector<RuleSite> found;
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      for (std::size_t t = 0; t < sources_[s].tokens.size(); ++t) add_rules(s, t, found);
    }
    return found;
  }

 private:
  struct Source {
    std::string name;
    Tokens tokens;
  };
  struct Place {
    std::size_t source, token;
  };
  /// A function that is told by its caller what to say: it has parameters that are texts.
  struct Helper {
    std::size_t source, begin, end;  // of its body
    std::string name;
    std::vector<std::string> parameters;
    std::size_t needed;  // of them; the others have defaults
  };

  void find_helpers(std::size_t source) {
    const Tokens& tokens = sources_[source].tokens;
    for (std::size_t t = 1; t < tokens.size(); ++t) {
      if (tokens[t].kind != '(') continue;
      std::string name;
      if (tokens[t - 1].kind == 'w') name = tokens[t - 1].text;
      if (tokens[t - 1].kind == ']') {  // name = [..](..) {..}
        std::size_t open = t - 1;
        while (open > 0 && tokens[open].kind != '[') --open;
        if (open >= 2 && tokens[open - 1].kind == '=') name = tokens[open - 2].text;
      }
      std::size_t body = behind(tokens, t);
      const std::size_t close = body - 1;
      while (body < tokens.size() && (tokens[body].text == "const")) ++body;
      if (name.empty() || name == "for") continue;  // a loop over names tells nobody
      if (body >= tokens.size() || tokens[body].kind != '{') continue;
      Helper helper{source, body, behind(tokens, body), name, {}, 0};
      bool told = false;
      for (const auto& [begin, end] : parameters_of(tokens, {t + 1, close})) {
        bool text = false, fallback = false;
        std::size_t last = begin;
        for (std::size_t p = begin; p < end; ++p) fallback = fallback || tokens[p].kind == '=';
        helper.needed += fallback ? 0 : 1;
        for (std::size_t p = begin; p < end && tokens[p].kind != '='; ++p) {
          text = text || tokens[p].text == "string_view" || tokens[p].text == "char";
          if (tokens[p].kind == 'w') last = p;
        }
        helper.parameters.push_back(tokens[last].text);
        told = told || text;
      }
      if (told) helpers_.push_back(helper);
    }
  }

  /// The innermost helper around a token, or -1.
  int around(std::size_t source, std::size_t token) const {
    int found = -1;
    for (std::size_t h = 0; h < helpers_.size(); ++h) {
      const Helper& helper = helpers_[h];
      if (helper.source != source || token < helper.begin || token >= helper.end) continue;
      if (found < 0 || helpers_[static_cast<std::size_t>(found)].begin < helper.begin) {
        found = static_cast<int>(h);
      }
    }
    return found;
  }

  /// What the texts around a token may be: one set of names for each way to reach it.
  std::vector<Names> names_at(std::size_t source, std::size_t token) {
    const int index = around(source, token);
    if (index < 0) return {{}};
    const Helper& helper = helpers_[static_cast<std::size_t>(index)];
    if (!open_.insert(index).second) return {};
    std::vector<Names> all;
    for (const auto& [s, t] : places_[helper.name]) {
      if (s != helper.source && (defines(s, helper) || is_local(helper))) continue;
      const Tokens& tokens = sources_[s].tokens;
      const std::size_t open = opening(tokens, t);
      if (open == 0) continue;
      const std::size_t close = behind(tokens, open) - 1;
      const auto arguments = split(tokens, {open + 1, close}, ',');
      if (arguments.size() > helper.parameters.size()) continue;
      if (arguments.size() < helper.needed) continue;
      if (close + 1 < tokens.size() &&
          (tokens[close + 1].kind == '{' || tokens[close + 1].text == "const")) {
        continue;  // its definition
      }
      for (const Names& outer : names_at(s, t)) {
        std::vector<Names> ways{outer};
        for (std::size_t a = 0; a < arguments.size(); ++a) {
          std::vector<Names> more;
          for (const std::string& text : forms_of(tokens, arguments[a], outer)) {
            for (Names way : ways) {
              way[helper.parameters[a]] = text;
              more.push_back(way);
            }
          }
          ways = more;
        }
        all.insert(all.end(), ways.begin(), ways.end());
      }
    }
    open_.erase(index);
    if (all.empty()) all.push_back({});  // called by users alone, with whatever text
    return all;
  }

  bool defines(std::size_t source, const Helper& like) const {
    for (const Helper& h : helpers_) {
      if (h.source == source && h.name == like.name &&
          h.parameters.size() == like.parameters.size()) {
        return true;
      }
    }
    return false;
  }
  /// Lambdas and private members are called in their own file.
  bool is_local(const Helper& helper) {
    const Tokens& tokens = sources_[helper.source].tokens;
    for (const auto& [source, token] : places_[helper.name]) {
      if (source == helper.source && tokens[token + 1].kind == '=') return true;
    }
    return false;
  }

  void add_rules(std::size_t source, std::size_t token, std::vector<RuleSite>& found) {
    static const std::set<std::string> words{
        "require",         "require_shape",    "require_apart",     "require_outputs_apart",
        "raise",           "require_distinct", "require_countable", "require_same_or_apart",
        "require_disjoint"};
    const Tokens& tokens = sources_[source].tokens;
    if (tokens[token].kind != 'w' || words.count(tokens[token].text) == 0) return;
    const std::size_t open = opening(tokens, token);
    if (open == 0) return;
    // What a file holds, no call: tests/io/bad_*.test.cpp compare those messages.
    if (tokens[open - 2].text == "FileError") return;
    const Range inside{open + 1, behind(tokens, open) - 1};
    if (sources_[source].name == "headwise/tensor/require.hpp" ||
        sources_[source].name == "headwise/tensor/overlap.hpp") {
      // The rules' own rules: under whatever name.
      if (tokens[token].text != "raise") return;
      add(source, token, {forms_of_parts(tokens, split(tokens, inside, ','), {})}, found);
      return;
    }
    const std::size_t before = found.size();
    for (const Names& names : names_at(source, token)) {
      add(source, token, forms_of_rule(tokens, tokens[token].text, inside, names), found);
    }
    if (found.size() == before) add(source, token, {{}}, found);
  }

  void add(std::size_t source, std::size_t token,
           const std::vector<std::vector<std::string>>& rules, std::vector<RuleSite>& found) const {
    const std::string where =
        sources_[source].name + ":" + std::to_string(sources_[source].tokens[token].line);
    for (const auto& any : rules) found.push_back({where, any});
  }

  static std::vector<std::vector<std::string>> forms_of_rule(const Tokens& tokens,
                                                             const std::string& word, Range inside,
                                                             const Names& names) {
    const auto arguments = split(tokens, inside, ',');
    std::vector<std::vector<std::string>> rules;
    if (word == "raise") {
      for (const std::string& text : forms_of_parts(tokens, arguments, names)) {
        rules.push_back({text});
      }
      return rules;
    }
    const std::size_t place = word == "require" ? 1 : 0;
    if (arguments.size() < place + 2) return {};  // a declaration
    const std::string start = forms_of(tokens, arguments[place], names)[0] + ": ";
    const auto message_behind = [&](std::size_t first) {
      return forms_of_parts(tokens, std::span(arguments).subspan(first), names);
    };
    if (word == "require") {
      for (const std::string& text : message_behind(2)) {
        rules.push_back({start + text});
      }
    } else if (word == "require_shape" || word == "require_countable") {
      for (const std::string& argument : forms_of(tokens, arguments[1], names)) {
        const std::string is = start + argument + " is ";
        if (word == "require_countable") {
          rules.push_back({is + "*, expected extents*", is + "* at a null address*"});
          continue;
        }
        for (const std::string& whence : message_behind(4)) {
          rules.push_back({is + "*, expected * (" + whence + ")"});
        }
      }
    } else if (word == "require_outputs_apart") {
      std::vector<std::string> before = names_in(tokens, arguments[2], names);
      for (const std::string& out : names_in(tokens, arguments[1], names)) {
        add_apart(start + out, before, rules);
        before.push_back(out);
      }
    } else {
      const std::string out = start + forms_of(tokens, arguments[1], names)[0];
      if (word == "require_same_or_apart") {
        const std::string in = forms_of(tokens, arguments[2], names)[0];
        rules.push_back({out + " overlaps " + in + " shifted*"});
      } else if (word == "require_apart") {
        add_apart(out, names_in(tokens, arguments[2], names), rules);
      } else if (word == "require_disjoint") {
        rules.push_back({out + " overlaps *, *"});
      } else {
        add_apart(out, {}, rules);
      }
    }
    return rules;
  }

  /// The names of {{"x", x}, {"y", y}}.
  static std::vector<std::string> names_in(const Tokens& tokens, Range list, const Names& names) {
    std::vector<std::string> all;
    for (const Range& one : split(tokens, {list.first + 1, list.second - 1}, ',')) {
      for (const std::string& name : forms_of(tokens, one, names)) all.push_back(name);
    }
    return all;
  }
  /// What an output that has to lie apart from others is refused for.
  static void add_apart(const std::string& out, const std::vector<std::string>& others,
                        std::vector<std::vector<std::string>>& rules) {
    rules.push_back({out + " holds one element*"});
    for (const std::string& other : others) rules.push_back({out + " overlaps " + other + ", *"});
  }

  std::vector<Source> sources_;
  std::map<std::string, std::vector<Place>> places_;  // of a word, but where it ends a file
  std::vector<Helper> helpers_;
  std::set<int> open_;
};

}  // namespace headwise_tests
