// Blocks and decoders whose queries and keys are normalised and turned by their positions.
#include "headwise/nn/transformer_block_step.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"

namespace nn_transformer_positions {

using namespace headwise_tests;

namespace {

TransformerDecoderOptions placed(bool position_vectors) {
  auto options = with(true, NormKind::rms_norm);
  options.position_vectors = position_vectors;
  options.block.qk_norm = true;
  options.block.rotary = RotaryOptions{.theta = 100};
  return options;
}

}  // namespace

TEST_CASE("a TransformerBlock hands norm and rotary positions to its attention", "[nn]") {
  const TransformerBlockOptions options = placed(true).block.resolved();
  const MultiHeadAttentionOptions within = options.attention();
  CHECK((within.qk_norm && within.qk_norm_epsilon == 1e-2 && within.rotary->theta == 100));
  TransformerBlock<double> block(options);
  draw_all(block.parameters(), 3);
  CHECK(names_of(block.parameters()).find("attention.gamma_K norm2.gamma ") != std::string::npos);
  auto x = random_tensor<double>(Shape{2, 4, 6}, 1);
  const auto dy = random_tensor<double>(x.shape(), 2);
  const TransformerBlockCall<double> call{.mask = {causal}};
  TransformerBlockCache<double> cache;
  auto gradients = block.zero_gradients();
  (void)block.forward(x, call, cache);
  const auto dx = block.backward(dy, cache, gradients);
  GradientCheck<double> check({.tolerance = 1e-7, .stencil = Stencil::five_point});
  check.input("x", x, dx);
  check_inputs(check, block.parameters(), gradients);
  const auto report = check.run([&] { return weighted_sum(dy, block.forward(x, call)); });
  CAPTURE(report);
  CHECK(report);
}

TEST_CASE("the gradients of a decoder with rotary positions are its differences", "[nn]") {
  const bool position_vectors = GENERATE(false, true);
  auto decoder = drawn<double>(placed(position_vectors));
  CAPTURE(position_vectors);
  check_gradients(decoder, some_tokens(2, 4));
}

TEMPLATE_TEST_CASE("a decoder with rotary positions decodes with the bits of the whole", "[nn]",
                   float, double) {
  const bool position_vectors = GENERATE(false, true);
  const auto decoder = drawn<TestType>(placed(position_vectors));
  const auto tokens = some_tokens(2, 23);
  for (const std::vector<Index>& cut : {std::vector<Index>(23, 1), {9, 1, 13}}) {
    check_steps(decoder, tokens, cut, decoder.state(2, 23));
  }
}

TEST_CASE("a decoder without vectors of positions has none, and tells tokens apart by rotation",
          "[nn]") {
  auto options = placed(false);
  const auto decoder = drawn<double>(options);
  CHECK(decoder.parameters().position.absent());
  CHECK(names_of(decoder.parameters()).starts_with("token blocks.0."));
  CHECK(names_of(decoder.zero_gradients()) == names_of(decoder.parameters()));
  const Tensor2<std::int64_t> one({1, 4}, {1, 2, 3, 3}), other({1, 4}, {2, 1, 3, 3});
  const auto last = [](const TransformerDecoder<double>& of, const Tensor2<std::int64_t>& tokens) {
    const auto logits = of.forward(tokens);
    return contiguous(In<double, 1>(select(logits, 3)));
  };
  CHECK_FALSE(close_to(last(decoder, one), last(decoder, other), 1e-6));
  // Without positions a causal block of one layer sees a bag of the tokens before it.
  options.num_blocks = 1, options.block.rotary.reset();
  const auto blind = drawn<double>(options);
  CHECK(close_to(last(blind, one), last(blind, other), 1e-13));
}

}  // namespace nn_transformer_positions
