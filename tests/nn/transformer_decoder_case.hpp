// Small decoders of every kind, with numbers that are drawn, and what they are given.
#pragma once

#include <vector>

#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
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

/// Every gradient of the parameters, for sequences of 0 to 6, is its differences.
inline void check_gradients(TransformerDecoder<double>& decoder,
                            const Tensor2<std::int64_t>& tokens) {
  const auto d_logits = random_tensor<double>(Shape{tokens.size(), 7}, 3);
  TransformerDecoderCache<double> cache;
  auto gradients = decoder.zero_gradients();
  (void)decoder.forward(tokens, {}, cache);
  decoder.backward(d_logits, cache, gradients);
  GradientCheck<double> check({.tolerance = 1e-7, .stencil = Stencil::five_point});
  check_inputs(check, decoder.parameters(), gradients);
  const auto report = check.run([&] { return weighted_sum(d_logits, decoder.forward(tokens)); });
  CAPTURE(report);
  CHECK(report);
}

/// Steps of so many tokens have the bits of the whole sequences.
template <class T>
void check_steps(const TransformerDecoder<T>& decoder, const Tensor2<std::int64_t>& tokens,
                 const std::vector<Index>& cut, TransformerDecoderState<T> state) {
  const Index B = tokens.extent(0), L = tokens.extent(1);
  const auto whole = decoder.forward(tokens);
  for (const Index n : cut) {
    const auto logits = decoder.step(slice(tokens, 1, state.length(), n), state);
    for (Index b = 0; b < B; ++b) {
      CHECK(bitwise_equal(In<T, 1>(select(logits, b)),
                          In<T, 1>(select(whole, b * L + state.length() - 1))));
    }
  }
  CHECK(state.length() == L);
}

}  // namespace headwise_tests
