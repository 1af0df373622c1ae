// Small decoders and texts for what char_gpt does without its tape.
#pragma once

#include <string>
#include <vector>

#include "../../examples/char_gpt/decoder.hpp"
#include "../../examples/char_gpt/options.hpp"
#include "../../examples/char_gpt/text.hpp"

namespace char_gpt {

/// Widths that are no multiples of a vector or of the panels of a product.
inline const ModelOptions odd = {
    .vocabulary = 37, .layers = 3, .heads = 3, .width = 39, .context = 23, .seed = 5};

/// A decoder that is far from where training starts: heads that attend, norms that are not 1.
template <class T>
Decoder<T> trained_decoder(const ModelOptions& options) {
  Decoder<T> decoder(options);
  decoder.for_each([&](const std::string&, auto& weight) {
    for (Index n = 0; n < weight.value.size(); ++n) {
      weight.value.data()[n] = T(7) * weight.value.data()[n] + T(0.001) * static_cast<T>(n % 13);
    }
  });
  return decoder;
}

inline std::vector<TokenId> some_tokens(Index count) {
  std::vector<TokenId> tokens;
  for (Index n = 0; n < count; ++n) tokens.push_back(static_cast<TokenId>((n * n + 3 * n) % 37));
  return tokens;
}

inline const char* const sentence = "the sum of a row, the head of a row, the sum of heads. ";

inline std::string some_text() {
  std::string text;
  for (int n = 0; n < 30; ++n) text += sentence;
  return text;
}

inline const Options small = {
    .steps = 5, .layers = 2, .heads = 3, .width = 24, .context = 11, .batch = 3, .seed = 5};

inline ModelOptions model_options(const Text& text, const Options& o) {
  return {text.vocabulary(), o.layers, o.heads, o.width, o.context, 5};
}

}  // namespace char_gpt
