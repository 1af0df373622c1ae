// Modules whose matrices are kept in 16 bits: half the memory, and the bits that those numbers give
// as floats.
#include "headwise/nn/stored_weights.hpp"

#include "headwise/ops/bf16_products.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/stored_weights_case.hpp"
#include "support/bf16_units.hpp"
#include "support/catch.hpp"

namespace nn_stored_weights {

using namespace headwise_tests;

TEMPLATE_TEST_CASE("attention by weights of 16 bits has the bits of their numbers as floats",
                   "[stored]", BFloat16, Float16) {
  const auto x = random_tensor<float>(Shape{2, 7, 48}, 1);
  for (const MultiHeadAttentionOptions& options : self_attentions()) {
    with_both<TestType>(
        MultiHeadAttention<float>(options), [&](const auto& kept, const auto& wide) {
          for (const Path path : {Path::flash, Path::materialized}) {
            const auto of_x = contiguous(In<float, 3>(slice(x, 2, 0, options.d_model)));
            CHECK(bitwise_equal(kept.forward(of_x, {.mask = causal, .path = path}),
                                wide.forward(of_x, {.mask = causal, .path = path})));
          }
        });
  }
  const MultiHeadAttentionOptions cross{
      .d_model = 24, .num_heads = 3, .d_value = 5, .kdim = 17, .vdim = 9};
  const auto query = random_tensor<float>(Shape{2, 7, 24}, 2),
             key = random_tensor<float>(Shape{2, 5, 17}, 3),
             value = random_tensor<float>(Shape{2, 5, 9}, 4);
  with_both<TestType>(MultiHeadAttention<float>(cross), [&](const auto& kept, const auto& wide) {
    CHECK(bitwise_equal(kept.forward(query, key, value), wide.forward(query, key, value)));
  });
}

TEMPLATE_TEST_CASE("layers and blocks of 16-bit weights have the bits of their numbers as floats",
                   "[stored]", BFloat16, Float16) {
  const auto x = random_tensor<float>(Shape{9, 20}, 5);
  with_both<TestType>(Linear<float>(20, 13), [&](const auto& kept, const auto& wide) {
    CHECK(bitwise_equal(kept.forward(x), wide.forward(x)));
  });
  const Tensor1<Index> tokens({4}, {2, 0, 6, 2});
  with_both<TestType>(Embedding<float>(7, 20), [&](const auto& kept, const auto& wide) {
    CHECK(bitwise_equal(kept.forward(tokens), wide.forward(tokens)));
    CHECK(bitwise_equal(kept.logits(x), wide.logits(x)));
  });
  for (const bool gated : {false, true}) {
    const FeedForwardOptions options{.d_model = 20, .d_hidden = 33, .gated = gated};
    with_both<TestType>(FeedForward<float>(options), [&](const auto& kept, const auto& wide) {
      CHECK(bitwise_equal(kept.forward(x), wide.forward(x)));
    });
    const TransformerBlockOptions block{
        .d_model = 20, .num_heads = 2, .gated = gated, .norm_first = gated};
    const In<float, 3> sequence(x.data(), Shape{1, 9, 20});
    with_both<TestType>(TransformerBlock<float>(block), [&](const auto& kept, const auto& wide) {
      CHECK(bitwise_equal(kept.forward(sequence), wide.forward(sequence)));
      auto one = key_value_cache<float>(kept.options().attention(), 1, 9), other = one;
      CHECK(bitwise_equal(transformer_block_step(kept, sequence, one),
                          transformer_block_step(wide, sequence, other)));
    });
  }
}

TEMPLATE_TEST_CASE("a decoder of 16-bit weights writes token by token the bits of the whole",
                   "[stored]", BFloat16, Float16) {
  ThreadPool threads(3);
  const auto tokens = some_tokens(2, 12);
  for (const bool norm_first : {false, true}) {
    const auto options = with(norm_first, norm_first ? NormKind::rms_norm : NormKind::layer_norm);
    with_both<TestType>(
        TransformerDecoder<float>(options), [&](const auto& kept, const auto& wide) {
          const auto logits = kept.forward(tokens);
          CHECK(bitwise_equal(logits, wide.forward(tokens)));
          CHECK(bitwise_equal(logits, kept.forward(tokens, {}, {.executor = threads})));
          auto state = kept.state(2);
          auto stored = kept.state({.batch_size = 2, .stored_as = StoredAs::bf16}),
               stored_of_wide = wide.state({.batch_size = 2, .stored_as = StoredAs::bf16});
          for (const Index n : {1, 5, 1, 4, 1}) {
            const auto some = slice(In<std::int64_t, 2>(tokens), 1, state.length(), n);
            const auto step = kept.step(some, state);
            for (Index b = 0; b < 2; ++b) {
              CHECK(bitwise_equal(In<float, 1>(select(step, b)),
                                  In<float, 1>(select(logits, 12 * b + state.length() - 1))));
            }
            CHECK(bitwise_equal(kept.step(some, stored), wide.step(some, stored_of_wide)));
          }
        });
  }
}

TEMPLATE_TEST_CASE("weights are kept as the nearest numbers, and what is no matrix stays as it is",
                   "[stored]", BFloat16, Float16) {
  TransformerDecoder<float> decoder(with(true, NormKind::layer_norm));
  const TransformerDecoder<float, TestType> begun(decoder.options());
  const auto as_begun = store_weights_as<TestType>(decoder);
  CHECK(bitwise_equal(begun.parameters().blocks[1].feed_forward.w_in,
                      as_begun.parameters().blocks[1].feed_forward.w_in));
  CHECK(bitwise_equal(begun.parameters().token, as_begun.parameters().token));
  draw_all(decoder.parameters(), 8);
  const auto kept = store_weights_as<TestType>(decoder);
  int matrices = 0, others = 0;
  decoder.parameters().for_each([&](const std::string& name, auto from) {
    constexpr int rank = decltype(from)::rank;
    kept.parameters().for_each([&](const std::string& other, auto to) {
      if constexpr (rank == decltype(to)::rank) {
        if (name != other) return;
        CAPTURE(name);
        bool right = true;
        constexpr bool is_float = std::same_as<std::remove_cvref_t<decltype(*to.data())>, float>;
        for_each_index(from.shape(), [&](const auto& at) {
          if constexpr (is_float) {
            right = right && to(at) == from(at);
          } else {
            right = right && to(at) == convert_float<TestType>(from(at));
          }
        });
        CHECK(right);
        CHECK(is_float == (rank == 1 || name == "position"));
        ++(is_float ? others : matrices);
      }
    });
  });
  CHECK(matrices == 1 + 2 * 6);
  CHECK(others > 10);
}

TEST_CASE("weights of 16 bits take half the memory", "[stored]") {
  const TransformerDecoderOptions options = TransformerDecoderOptions{
      .vocabulary = 1000,
      .max_length = 8,
      .block = {.d_model = 128, .num_heads = 4}}.resolved();
  MemoryTally wide, narrow;
  const TransformerDecoderParameters<float> of_float(options, &wide);
  const TransformerDecoderParameters<float, BFloat16> of_bf16(options, &narrow);
  CHECK(narrow.live() * 100 < wide.live() * 51);
  // Nor does a call need them as floats: what it asks for is less than the largest one takes.
  const TransformerDecoder<float, BFloat16> decoder(options);
  const auto tokens = some_tokens(1, 1);
  auto state = decoder.state();
  for (int step = 0; step < 2; ++step) {
    MemoryTally call;
    (void)decoder.step(tokens, state, {.memory = &call});
    CHECK(call.peak() < 2 * 128 * 1000);
  }
}

TEST_CASE("a trace of a module of 16-bit weights holds their numbers", "[stored]") {
  with_both<BFloat16>(MultiHeadAttention<float>(24, 3), [&](const auto& kept, const auto& wide) {
    const auto x = random_tensor<float>(Shape{1, 4, 24}, 9);
    Trace trace, expected;
    (void)kept.forward(x, {}, {.trace = &trace});
    (void)wide.forward(x, {}, {.trace = &expected});
    for (const Trace::Entry& entry : expected.entries()) {
      CAPTURE(entry.name);
      CHECK(trace.at(entry.name).values == entry.values);
    }
  });
}

TEST_CASE("products of bf16 read weights of bf16 as they are", "[stored]") {
  const auto x = random_tensor<float>(Shape{2, 7, 24}, 1);
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    MultiHeadAttention<float> module(24, 3);
    const auto kept = store_weights_as<BFloat16>(module);
    CHECK(bitwise_equal(kept.forward(x, {}, context), module.forward(x, {}, context)));
  }
}

TEST_CASE("a module of 16-bit weights that was moved from is refused, as one of floats is",
          "[stored]") {
  auto decoder = store_weights_as<BFloat16>(TransformerDecoder<float>(with(true, {})));
  auto attention = store_weights_as<Float16>(MultiHeadAttention<float>(24, 3));
  const auto moved = std::move(decoder);
  const auto taken = std::move(attention);
  const auto x = random_tensor<float>(Shape{2, 7, 24}, 1);
  CHECK_THROWS_WITH((void)decoder.forward(some_tokens(1, 3)),
                    "TransformerDecoder::forward: token is [0, 0], expected [7, 6] (the options: a "
                    "decoder that was moved from has none)");
  CHECK_THROWS_WITH((void)attention.forward(x),
                    "MultiHeadAttention::forward: W_O is [0, 0], expected [24, 24] (the options: a "
                    "module that was moved from has none)");
}

}  // namespace nn_stored_weights
