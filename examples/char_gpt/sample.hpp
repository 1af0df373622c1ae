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

/// What a sample goes on from: --prompt, or where there is none this token. Throws TextError for a
/// character that the alphabet does not have.
inline std::vector<TokenId> prompt_tokens(const Alphabet& alphabet, TokenId otherwise,
                                          const Options& options) {
  if (options.prompt.empty()) return {otherwise};
  const std::vector<char32_t> characters = decode_utf8(options.prompt, "--prompt");
  const auto known = alphabet.alphabet();
  for (const char32_t c : characters) {
    if (std::binary_search(known.begin(), known.end(), c)) continue;
    char code[16];
    std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(c));
    throw TextError("--prompt holds \"" + visible(c) + "\" (" + code +
                    "), expected characters of the text");
  }
  return alphabet.encode(characters);
}
/// The same; where there is none, a character of what is held out.
inline std::vector<TokenId> prompt_tokens(const Text& text, const Options& options) {
  return prompt_tokens(text, text.held_out().front(), options);
}

/// --sample characters behind those of `prompt`, each drawn from what the model expects after those
/// before it: a function of its parameters and the options alone. Begins with --prompt.
inline Sample write_sample(const Model& model, const Alphabet& alphabet,
                           const std::vector<TokenId>& prompt, const Options& options,
                           const Context& context = {}) {
  if (options.sample == 0) return {};
  headwise::SamplingOptions sampling{.temperature = options.temperature,
                                     .top_k = options.top_k,
                                     .seed = static_cast<std::uint64_t>(options.seed)};
  const double start = now();
  const auto generator = model.generator(context);
  std::vector<TokenId> written, next = prompt;
  for (Index n = 0; n < options.sample; ++n) {
    sampling.step = static_cast<std::uint64_t>(n);
    const Index token = sample_token(generator->append(next), sampling, context);
    next = {static_cast<TokenId>(token)};
    written.push_back(next.front());
  }
  const double seconds = std::max(now() - start, 1e-9);
  return {options.prompt + alphabet.decode(written), static_cast<double>(options.sample) / seconds};
}
inline Sample write_sample(const Model& model, const Text& text, const Options& options,
                           const Context& context = {}) {
  return write_sample(model, text, prompt_tokens(text, options), options, context);
}

}  // namespace char_gpt
