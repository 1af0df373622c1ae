// The command line of char_gpt: a table of options, each with what it does and the least that it
// may be. What cannot be understood is said in one sentence.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <locale>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/tensor/shape.hpp"

namespace char_gpt {

using headwise::Index;

struct Options {
  std::string text = {};     // file or folder; empty: this project's own sources and pages
  Index steps = 2000;        // of the whole training, those before a --resume included
  Index layers = 4;          // blocks
  Index heads = 4;           // divides width
  Index width = 128;         // of the model
  Index context = 64;        // characters that it sees
  Index batch = 12;          // sequences a step
  Index seed = 0;            // of weights, batches and samples
  Index threads = 0;         // 0: what the environment says, else as many as the machine has
  Index sample = 0;          // characters to write at the end
  std::string prompt = {};   // what they follow; empty: a character of what is held out
  double temperature = 1;    // their logits are divided by it; 0: always the likeliest
  Index top_k = 0;           // only among so many of the likeliest; 0: among all
  std::string save = {};     // checkpoint to write at the end
  Index save_every = 0;      // steps, and after each so many; 0: at the end alone
  std::string resume = {};   // checkpoint to go on from
  bool sample_only = false;  // no training: write with the model of --resume
  std::string svg = {};      // picture of the loss
  bool json = false;         // one line of JSON at the end
  bool profile = false;      // where time and memory of a step go
  bool help = false;
  std::string heads_svg = {};  // picture of what each head attends to
};

/// The command line is no call of this program. The message is for who typed it.
class UsageError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An option: its name, where its value goes, what it is for.
struct OptionRow {
  std::string_view name, value, meaning;
  Index Options::*number = nullptr;      // one of these three, or the last
  std::string Options::*text = nullptr;  // a path where the value is a FILE
  bool Options::*flag = nullptr;
  Index least = 1;                  // of a number
  double Options::*real = nullptr;  // 0 or more
  Index most = 0;                   // of a number; 0: any
};

/// More threads than any machine of today has cores, and few enough to be started.
inline constexpr Index most_threads = 1024;

inline const std::vector<OptionRow>& option_rows() {
  static const std::vector<OptionRow> rows = {
      {"--steps", "N", "steps of the whole training (2000)", &Options::steps, {}, {}, 0},
      {"--layers", "N", "blocks (4)", &Options::layers},
      {"--heads", "N", "heads of a block, a divisor of the width (4)", &Options::heads},
      {"--width", "N", "width of the model (128)", &Options::width},
      {"--context", "N", "characters that the model sees (64)", &Options::context},
      {"--batch", "N", "sequences of a step (12)", &Options::batch},
      {"--seed", "N", "of weights, batches and samples (0)", &Options::seed, {}, {}, 0},
      {"--threads",
       "N",
       "0 for HEADWISE_NUM_THREADS, else all that the machine has (0)",
       &Options::threads,
       {},
       {},
       0,
       {},
       most_threads},
      {"--sample", "N", "characters to write at the end (0)", &Options::sample, {}, {}, 0},
      {"--prompt", "TEXT", "what they go on from", {}, &Options::prompt},
      {"--temperature", "X", "0 for the likeliest (1)", {}, {}, {}, 0, &Options::temperature},
      {"--top-k", "N", "only of the N likeliest, 0 for all (0)", &Options::top_k, {}, {}, 0},
      {"--save", "FILE", "write a checkpoint at the end", {}, &Options::save},
      {"--save-every", "N", "save after every N steps, too (0)", &Options::save_every, {}, {}, 0},
      {"--resume", "FILE", "go on from a checkpoint", {}, &Options::resume},
      {"--sample-only",
       "",
       "write with the model of --resume, train nothing",
       {},
       {},
       &Options::sample_only},
      {"--svg", "FILE", "draw the loss", {}, &Options::svg},
      {"--heads-svg", "FILE", "draw what each head attends to", {}, &Options::heads_svg},
      {"--json", "", "one line of JSON at the end", {}, {}, &Options::json},
      {"--profile", "", "where time and memory of a step go", {}, {}, &Options::profile},
      {"--help", "", "this text", {}, {}, &Options::help}};
  return rows;
}

inline std::string usage() {
  std::string text =
      "usage: char_gpt [TEXT] [options]\n"
      "Trains a small character model on TEXT, a file in UTF-8 or a folder of sources and pages.\n";
  for (const OptionRow& row : option_rows()) {
    std::string left = "  " + std::string(row.name) + " " + std::string(row.value);
    left.resize(20, ' ');
    text += left + std::string(row.meaning) + "\n";
  }
  return text;
}

inline Index number_of(const OptionRow& row, std::string_view text) {
  Index number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || number < row.least || (row.most != 0 && number > row.most)) {
    throw UsageError(std::string(row.name) + " is \"" + std::string(text) +
                     "\", expected a whole number of " + std::to_string(row.least) +
                     (row.most == 0 ? " or more" : " to " + std::to_string(row.most)));
  }
  return number;
}

inline double real_of(const OptionRow& row, std::string_view text) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  double number = -1;
  stream >> number;
  if (!stream || stream.peek() != std::char_traits<char>::eof() || !(number >= 0)) {
    throw UsageError(std::string(row.name) + " is \"" + std::string(text) +
                     "\", expected a number of 0 or more");
  }
  return number;
}

/// A FILE that is empty or begins as an option does is one that was forgotten.
inline std::string text_of(const OptionRow& row, std::string_view text) {
  if (row.value == "FILE" && (text.empty() || text.starts_with("--"))) {
    throw UsageError(std::string(row.name) + " is \"" + std::string(text) + "\", expected a file" +
                     (text.empty() ? "" : ", or ./ before its name"));
  }
  return std::string(text);
}

inline const OptionRow& row_of(std::string_view argument) {
  const auto find = [](std::string_view name) {
    return std::ranges::find(option_rows(), name, &OptionRow::name);
  };
  if (const auto row = find(argument); row != option_rows().end()) return *row;
  const std::string_view name = argument.substr(0, argument.find('='));
  std::string sentence = "there is no option " + std::string(argument);
  if (const auto meant = find(name); meant != option_rows().end()) {
    sentence += ": write " + std::string(name);
    if (meant->flag == nullptr) sentence += " " + std::string(argument.substr(name.size() + 1));
  }
  throw UsageError(sentence);
}

/// Throws UsageError for options that do not go together; `given` are the names of all.
inline void require_together(const Options& options, std::span<const std::string_view> given) {
  const auto is_one_of = [](std::string_view name, std::span<const std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  constexpr std::string_view of_sample[] = {"--prompt", "--temperature", "--top-k",
                                            "--sample-only"};
  constexpr std::string_view beside_sample_only[] = {"--resume", "--sample", "--seed", "--threads"};
  for (const std::string_view name : given) {
    if (is_one_of(name, of_sample)) {
      if (options.sample != 0) continue;
      throw UsageError(std::string(name) +
                       " is given, expected a --sample beside it: how much to write");
    }
    if (options.sample_only && !is_one_of(name, beside_sample_only)) {
      throw UsageError(std::string(name) + " is given, expected none beside --sample-only: " +
                       "the model is that of --resume, and nothing is trained");
    }
  }
  if (options.sample_only && options.resume.empty()) {
    throw UsageError("--sample-only is given, expected a --resume beside it: whose model writes");
  }
  if (options.width % options.heads != 0) {
    throw UsageError("--heads is " + std::to_string(options.heads) +
                     ", expected a divisor of --width " + std::to_string(options.width));
  }
  if (options.save_every != 0 && options.save.empty()) {
    throw UsageError("--save-every is " + std::to_string(options.save_every) +
                     ", expected a --save beside it: the file to write");
  }
}

/// Throws UsageError. `arguments` are those behind the program's name; behind --help or -h they are
/// not read.
inline Options parse_options(std::span<const char* const> arguments) {
  Options options;
  std::vector<std::string_view> given;
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    const std::string_view argument = arguments[n];
    if (!argument.starts_with("-")) {
      if (!options.text.empty()) throw UsageError("two texts are given, expected one");
      if (argument.empty()) throw UsageError("TEXT is empty, expected a file or a folder");
      options.text = argument;
      given.push_back("TEXT");
      continue;
    }
    const OptionRow& row = row_of(argument == "-h" ? "--help" : argument);
    given.push_back(row.name);
    if (row.flag != nullptr) {
      options.*(row.flag) = true;
      if (options.help) return options;
      continue;
    }
    if (++n == arguments.size()) {
      throw UsageError(std::string(argument) + " needs a value: " + std::string(row.value));
    }
    if (row.number != nullptr) {
      options.*(row.number) = number_of(row, arguments[n]);
    } else if (row.real != nullptr) {
      options.*(row.real) = real_of(row, arguments[n]);
    } else {
      options.*(row.text) = text_of(row, arguments[n]);
    }
  }
  require_together(options, given);
  return options;
}

}  // namespace char_gpt
