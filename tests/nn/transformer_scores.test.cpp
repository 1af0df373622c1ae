// Blocks and decoders whose attention changes its scores, or sees no farther than a window.
#include "headwise/nn/transformer_block_step.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"
#include "support/score_tensors.hpp"

namespace nn_transformer_scores {

using namespace headwise_tests;

namespace {

constexpr Index H = 3;

/// A block of 3 heads of 2, and all that changes scores and is learned.
struct LearnedBlock {
  TransformerBlock<double> block;
  ScoreTensors<double> learned;

  explicit LearnedBlock(const TransformerBlockOptions& options) : block(options) {
    draw_all(block.parameters(), 3);
    learned.scale = Tensor1<double>({1}, {0.6});
    learned.slopes = random_tensor<double>(Shape{H}, 4);
    learned.sinks = random_tensor<double>(Shape{H}, 5);
    learned.table = random_tensor<double>(Shape{H, Index{5}}, 6);
  }
  TransformerBlockCall<double> call() const {
    TransformerBlockCall<double> with{.mask = {causal}};
    with.scale = learned.scale(0);
    with.score = learned.options(1.5);
    return with;
  }
};

/// Rotary positions, a window of 3 beside 2 first tokens, scores that are capped.
TransformerDecoderOptions windowed() {
  auto options = with(true, NormKind::rms_norm);
  options.position_vectors = false;
  options.block.rotary = RotaryOptions{.theta = 100};
  options.window = 3, options.first_keys = 2;
  options.scale = 0.9, options.softcap = 2;
  return options;
}

}  // namespace

TEST_CASE("the gradients of what changes the scores of a TransformerBlock are its differences",
          "[nn]") {
  LearnedBlock of(with(true, NormKind::rms_norm).block);
  auto x = random_tensor<double>(Shape{2, 5, 6}, 1);
  const auto dy = random_tensor<double>(x.shape(), 2);
  TransformerBlockCache<double> cache;
  auto gradients = of.block.zero_gradients();
  auto d_learned = of.learned.zeros();
  gradients.attention.score = d_learned.gradients();
  (void)of.block.forward(x, of.call(), cache);
  const auto dx = of.block.backward(dy, cache, gradients);
  GradientCheck<double> check({.tolerance = 1e-7, .stencil = Stencil::five_point});
  check.input("x", x, dx);
  of.learned.for_each([&](const char* name, auto& value, auto& d) { check.input(name, value, d); },
                      d_learned);
  check_inputs(check, of.block.parameters(), gradients);
  const auto report = check.run([&] { return weighted_sum(dy, of.block.forward(x, of.call())); });
  CAPTURE(report);
  CHECK(report);
}

TEST_CASE("a TransformerBlock that changes its scores decodes with the bits of the whole", "[nn]") {
  const LearnedBlock of(with(false, NormKind::layer_norm).block);
  const auto x = random_tensor<double>(Shape{2, 13, 6}, 1);
  const auto whole = of.block.forward(x, of.call());
  auto cache = key_value_cache<double>(of.block.options().attention(), 2, 13);
  const auto all = of.call();
  for (const Index n : {5, 1, 7}) {
    const Index before = cache.length();
    const auto y = transformer_block_step(
        of.block, slice(x, 1, before, n),
        MultiHeadAttentionStepCall<double>{.scale = all.scale, .score = all.score}, cache);
    CHECK(bitwise_equal(In<double, 3>(y), In<double, 3>(slice(whole, 1, before, n))));
  }
}

TEST_CASE("the gradients of a decoder of windows and capped scores are its differences", "[nn]") {
  auto decoder = drawn<double>(windowed());
  check_gradients(decoder, some_tokens(2, 7));
}

TEMPLATE_TEST_CASE("a decoder of windows and capped scores decodes with the bits of the whole",
                   "[nn]", float, double) {
  const auto decoder = drawn<TestType>(windowed());
  const auto tokens = some_tokens(2, 37);
  for (const std::vector<Index>& cut : {std::vector<Index>(37, 1), {9, 1, 27}}) {
    check_steps(decoder, tokens, cut, decoder.state(2));
  }
}

TEST_CASE("each of a decoder's window, first keys, scale and softcap changes what it says",
          "[nn]") {
  const auto tokens = some_tokens(1, 12);
  const auto all = drawn<double>(windowed()).forward(tokens);
  const auto without = [&](void (*leave_out)(TransformerDecoderOptions&)) {
    auto options = windowed();
    leave_out(options);
    return drawn<double>(options).forward(tokens);
  };
  using Options = TransformerDecoderOptions;
  CHECK_FALSE(close_to(all, without([](Options& o) { o.window = 4; }), 1e-6));
  CHECK_FALSE(close_to(all, without([](Options& o) { o.first_keys = 0; }), 1e-6));
  CHECK_FALSE(close_to(all, without([](Options& o) { o.scale.reset(); }), 1e-6));
  CHECK_FALSE(close_to(all, without([](Options& o) { o.softcap.reset(); }), 1e-6));
  CHECK(close_to(all, without([](Options& o) { o.embedding_deviation = 1; }), 0));
}

TEST_CASE("a decoder goes on from states of its window, first keys, scale and softcap alone",
          "[nn]") {
  const auto decoder = drawn<double>(windowed());
  const auto goes_on = [&](void (*change)(TransformerDecoderOptions&)) {
    auto options = windowed();
    change(options);
    auto state = drawn<double>(options).state();
    return error_of([&] { (void)decoder.step(some_tokens(1, 3), state); }) == std::nullopt;
  };
  using Options = TransformerDecoderOptions;
  CHECK(goes_on([](Options& o) { o.embedding_deviation = 1; }));
  CHECK_FALSE(goes_on([](Options& o) { o.window = 4; }));
  CHECK_FALSE(goes_on([](Options& o) { o.first_keys = 1; }));
  CHECK_FALSE(goes_on([](Options& o) { o.scale = 0.8; }));
  CHECK_FALSE(goes_on([](Options& o) { o.scale.reset(); }));
  CHECK_FALSE(goes_on([](Options& o) { o.softcap = 3; }));
}

TEST_CASE("a sequence outgrows the greatest length of a decoder of windows", "[nn]") {
  auto options = windowed();
  options.max_length = 4;
  const auto decoder = drawn<float>(options);
  options.max_length = 40;
  const auto tokens = some_tokens(1, 25);
  const auto whole = drawn<float>(options).forward(tokens);
  auto state = decoder.state();
  for (Index i = 0; i < 25; ++i) {
    const auto logits = decoder.step(slice(tokens, 1, i, 1), state);
    CHECK(bitwise_equal(In<float, 1>(select(logits, 0)), In<float, 1>(select(whole, i))));
  }
}

}  // namespace nn_transformer_scores
