// Small decoders of every kind, with numbers that are drawn, and what they are given.
#pragma once

#include "headwise/nn/transformer_decoder.hpp"
#include "support/parameter_values.hpp"

namespace headwise_tests {

using namespace headwise;

inline TransformerDecoderOptions with(bool norm_first, NormKind norm, Index width = 6) {
  return {.vocabulary = 7,
          .max_length = 40,
          .num_blocks = 2,
          .block = {.d_model = width,
                    .num_heads = 3,
                    .num_kv_heads = 1,
                    .d_hidden = 5,
                    .gated = norm == NormKind::rms_norm,
                    .norm_first = norm_first,
                    .norm = norm,
                    .norm_epsilon = 1e-2}};
}

template <class T>
TransformerDecoder<T> drawn(const TransformerDecoderOptions& options) {
  TransformerDecoder<T> decoder(options);
  draw_all(decoder.parameters(), 7);
  return decoder;
}

inline Tensor2<std::int64_t> some_tokens(Index B, Index L, std::uint64_t seed = 1) {
  Draw draw(seed);
  Tensor2<std::int64_t> tokens({B, L});
  for (std::int64_t& token : tokens) token = draw.between(0, 6);
  return tokens;
}

inline TransformerDecoderCall dropping() {
  return {.weight_dropout = {.rate = 0.2, .seed = 1},
          .attention_dropout = {.rate = 0.2, .seed = 2},
          .hidden_dropout = {.rate = 0.2, .seed = 3},
          .output_dropout = {.rate = 0.2, .seed = 4}};
}

}  // namespace headwise_tests
