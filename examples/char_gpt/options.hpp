// The command line of char_gpt: a table of options, each with what it does and the least that it
// may be. What cannot be understood is said in one sentence.
#pragma once

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
  std::string text = {};    // file or folder; empty: this project's own sources and pages
  Index steps = 2000;       // of the whole training, those before a --resume included
  Index layers = 4;         // blocks
  Index heads = 4;          // divides width
  Index width = 128;        // of the model
  Index context = 64;       // characters that it sees
  Index batch = 12;         // sequences a step
  Index seed = 0;           // of weights, batches and samples
  Index threads = 0;        // 0: as many as the machine has
  Index sample = 0;         // characters to write at the end
  std::string prompt = {};  // what they follow; empty: a character of what is held out
  double temperature = 1;   // their logits are divided by it; 0: always the likeliest
  Index top_k = 0;          // only among so many of the likeliest; 0: among all
  std::string save = {};    // checkpoint to write at the end
  Index save_every = 0;     // steps, and after each so many; 0: at the end alone
  std::string resume = {};  // checkpoint to go on from
  std::string svg = {};     // picture of the loss
  bool json = false;        // one line of JSON at the end
  bool profile = false;     // where time and memory of a step go
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
  Index Options::*number = nullptr;  // one of these three, or the last
  std::string Options::*path = nullptr;
  bool Options::*flag = nullptr;
  Index least = 1;                  // of a number
  double Options::*real = nullptr;  // 0 or more
};

inline const std::vector<OptionRow>& option_rows() {
  static const std::vector<OptionRow> rows = {
      {"--steps", "N", "steps of the whole training (2000)", &Options::steps, {}, {}, 0},
      {"--layers", "N", "blocks (4)", &Options::layers},
      {"--heads", "N", "heads of a block, a divisor of the width (4)", &Options::heads},
      {"--width", "N", "width of the model (128)", &Options::width},
      {"--context", "N", "characters that the model sees (64)", &Options::context},
      {"--batch", "N", "sequences of a step (12)", &Options::batch},
      {"--seed", "N", "of weights, batches and samples (0)", &Options::seed, {}, {}, 0},
      {"--threads", "N", "0 for as many as the machine has (0)", &Options::threads, {}, {}, 0},
      {"--sample", "N", "characters to write at the end (0)", &Options::sample, {}, {}, 0},
      {"--prompt", "TEXT", "what they go on from", {}, &Options::prompt},
      {"--temperature", "X", "0 for the likeliest (1)", {}, {}, {}, 0, &Options::temperature},
      {"--top-k", "N", "only of the N likeliest, 0 for all (0)", &Options::top_k, {}, {}, 0},
      {"--save", "FILE", "write a checkpoint at the end", {}, &Options::save},
      {"--save-every", "N", "save after every N steps, too (0)", &Options::save_every, {}, {}, 0},
      {"--resume", "FILE", "go on from a checkpoint", {}, &Options::resume},
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
  if (error != std::errc() || end != text.data() + text.size() || number < row.least) {
    throw UsageError(std::string(row.name) + " is \"" + std::string(text) +
                     "\", expected a whole number of " + std::to_string(row.least) + " or more");
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

/// Throws UsageError. `arguments` are those behind the program's name.
inline Options parse_options(std::span<const char* const> arguments) {
  Options options;
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    const std::string_view argument = arguments[n];
    if (!argument.starts_with("--")) {
      if (!options.text.empty()) throw UsageError("two texts are given, expected one");
      if (argument.empty()) throw UsageError("TEXT is empty, expected a file or a folder");
      options.text = argument;
      continue;
    }
    const auto& rows = option_rows();
    auto row = rows.begin();
    while (row != rows.end() && row->name != argument) ++row;
    if (row == rows.end()) throw UsageError("there is no option " + std::string(argument));
    if (row->flag != nullptr) {
      options.*(row->flag) = true;
      continue;
    }
    if (++n == arguments.size()) {
      throw UsageError(std::string(argument) + " needs a value: " + std::string(row->value));
    }
    if (row->number != nullptr) {
      options.*(row->number) = number_of(*row, arguments[n]);
    } else if (row->real != nullptr) {
      options.*(row->real) = real_of(*row, arguments[n]);
    } else {
      options.*(row->path) = arguments[n];
    }
  }
  if (!options.prompt.empty() && options.sample == 0) {
    throw UsageError("--prompt is given, expected a --sample beside it: how much to write");
  }
  if (options.width % options.heads != 0) {
    throw UsageError("--heads is " + std::to_string(options.heads) +
                     ", expected a divisor of --width " + std::to_string(options.width));
  }
  if (options.save_every != 0 && options.save.empty()) {
    throw UsageError("--save-every is " + std::to_string(options.save_every) +
                     ", expected a --save beside it: the file to write");
  }
  return options;
}

}  // namespace char_gpt
