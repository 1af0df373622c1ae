// Text that a model writes: how a prompt goes on, character by character.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "headwise/nn/sampling.hpp"
#include "model.hpp"
#include "options.hpp"
#include "training.hpp"

namespace char_gpt {

/// What was written, and how fast.
struct Sample {
  std::string text = {};
  double tokens_s = std::nan("");  // characters a second, the prompt's time included; NaN of none
};

/// What a text begins with: --prompt, or a character of what is held out. Throws TextError for a
/// character that the text does not have.
inline std::vector<TokenId> prompt_tokens(const Text& text, const Options& options) {
  if (options.prompt.empty()) return {text.held_out().front()};
  const std::vector<char32_t> characters = decode_utf8(options.prompt, "--prompt");
  for (const char32_t c : characters) {
    if (std::binary_search(text.alphabet().begin(), text.alphabet().end(), c)) continue;
    char code[16];
    std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(c));
    throw TextError("--prompt holds \"" + visible(c) + "\" (" + code +
                    "), expected characters of the text");
  }
  return text.encode(characters);
}

/// --prompt and --sample characters more, each drawn from what the model expects after those before
/// it: a function of its parameters and the options alone.
inline Sample write_sample(const Model& model, const Text& text, const Options& options,
                           const Context& context = {}) {
  if (options.sample == 0) return {};
  headwise::SamplingOptions sampling{.temperature = options.temperature,
                                     .top_k = options.top_k,
                                     .seed = static_cast<std::uint64_t>(options.seed)};
  const double start = now();
  const auto generator = model.generator(context);
  std::vector<TokenId> written, next = prompt_tokens(text, options);
  for (Index n = 0; n < options.sample; ++n) {
    sampling.step = static_cast<std::uint64_t>(n);
    const Index token = sample_token(generator->append(next), sampling, context);
    next = {static_cast<TokenId>(token)};
    written.push_back(next.front());
  }
  const double seconds = std::max(now() - start, 1e-9);
  return {options.prompt + text.decode(written), static_cast<double>(options.sample) / seconds};
}

}  // namespace char_gpt
