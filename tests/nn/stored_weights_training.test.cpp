// Training by matrices that are kept in 16 bits: the bits that those numbers give as floats, and
// weights that follow an optimiser's.
#include <algorithm>

#include "headwise/nn/stored_weights.hpp"
#include "headwise/ops/bf16_products.hpp"
#include "headwise/ops/saved_in.hpp"
#include "headwise/optim/sgd.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/stored_weights_case.hpp"
#include "support/bf16_units.hpp"
#include "support/catch.hpp"

namespace nn_stored_weights_training {

using namespace headwise_tests;

namespace {

/// Gradients of two modules, both new: the same bits, and not all of them 0.
template <class Gradients>
void check_same_gradients(const Gradients& of_kept, const Gradients& of_wide) {
  const std::vector<float> mine = values_of<float>(of_kept);
  CHECK(same_bits(mine, values_of<float>(of_wide)));
  CHECK(std::any_of(mine.begin(), mine.end(), [](float x) { return x != 0; }));
}

/// forward and backward by both modules: the same bits of y, dx and every gradient.
template <class Kept, class Wide, class U, int R>
void check_same_training(const Kept& kept, const Wide& wide, const Tensor<U, R>& x,
                         const Tensor<U, R>& dy, const typename Kept::Call& call,
                         const Context& context = {}) {
  typename Kept::Cache cache, cache_of_wide;
  auto gradients = kept.zero_gradients(), gradients_of_wide = wide.zero_gradients();
  CHECK(bitwise_equal(kept.forward(x, call, cache, context),
                      wide.forward(x, call, cache_of_wide, context)));
  CHECK(bitwise_equal(kept.backward(dy, cache, gradients, context),
                      wide.backward(dy, cache_of_wide, gradients_of_wide, context)));
  check_same_gradients(gradients, gradients_of_wide);
}

}  // namespace

TEMPLATE_TEST_CASE("attention by weights of 16 bits has the gradients of their numbers as floats",
                   "[stored]", BFloat16, Float16) {
  ThreadPool threads(3);
  const Saved saved = saved_in<BFloat16>();
  for (const MultiHeadAttentionOptions& options : self_attentions()) {
    const auto x = random_tensor<float>(Shape{2, 7, options.d_model}, 1),
               dy = random_tensor<float>(Shape{2, 7, options.d_model}, 2);
    with_both<TestType>(
        MultiHeadAttention<float>(options), [&](const auto& kept, const auto& wide) {
          for (const Path path : {Path::flash, Path::materialized}) {
            check_same_training(kept, wide, x, dy, {.mask = causal, .path = path});
          }
          check_same_training(kept, wide, x, dy, {}, {.executor = threads});
          check_same_training(kept, wide, x, dy, {}, {.saved = saved});
          check_same_training(kept, wide, convert<TestType>(In<float, 3>(x)),
                              convert<TestType>(In<float, 3>(dy)), {});
          for (const Bf16Unit unit : supported_bf16_units()) {
            check_same_training(kept, wide, x, dy, {}, {.products = bf16_products(unit)});
          }
        });
  }
}

TEMPLATE_TEST_CASE("cross-attention and packed sequences by weights of 16 bits have those, too",
                   "[stored]", BFloat16, Float16) {
  const MultiHeadAttentionOptions cross{
      .d_model = 24, .num_heads = 3, .d_value = 5, .kdim = 17, .vdim = 9};
  const auto query = random_tensor<float>(Shape{2, 7, 24}, 2),
             key = random_tensor<float>(Shape{2, 5, 17}, 3),
             value = random_tensor<float>(Shape{2, 5, 9}, 4),
             dy = random_tensor<float>(Shape{2, 7, 24}, 5);
  with_both<TestType>(MultiHeadAttention<float>(cross), [&](const auto& kept, const auto& wide) {
    MultiHeadAttentionCache<float> cache, cache_of_wide;
    auto gradients = kept.zero_gradients(), gradients_of_wide = wide.zero_gradients();
    (void)kept.forward(query, key, value, {}, cache);
    (void)wide.forward(query, key, value, {}, cache_of_wide);
    const auto d = kept.backward_cross(dy, cache, gradients);
    const auto expected = wide.backward_cross(dy, cache_of_wide, gradients_of_wide);
    CHECK(bitwise_equal(d.query, expected.query));
    CHECK(bitwise_equal(d.key, expected.key));
    CHECK(bitwise_equal(d.value, expected.value));
    check_same_gradients(gradients, gradients_of_wide);
  });
  const std::vector<Index> starts{0, 3, 3, 7};
  const auto packed = random_tensor<float>(Shape{1, 7, 24}, 6),
             d_packed = random_tensor<float>(Shape{1, 7, 24}, 7);
  with_both<TestType>(MultiHeadAttention<float>(24, 3), [&](const auto& kept, const auto& wide) {
    check_same_training(kept, wide, packed, d_packed, {.mask = causal, .query_starts = starts});
  });
}

TEMPLATE_TEST_CASE("layers and blocks of 16-bit weights have the gradients of their numbers",
                   "[stored]", BFloat16, Float16) {
  const auto x = random_tensor<float>(Shape{9, 20}, 5), dy = random_tensor<float>(Shape{9, 13}, 6),
             dh = random_tensor<float>(Shape{9, 20}, 7);
  with_both<TestType>(Linear<float>(20, 13), [&](const auto& kept, const auto& wide) {
    typename std::remove_cvref_t<decltype(kept)>::Cache cache;
    typename std::remove_cvref_t<decltype(wide)>::Cache cache_of_wide;
    auto gradients = kept.zero_gradients(), gradients_of_wide = wide.zero_gradients();
    (void)kept.forward(x, cache);
    (void)wide.forward(x, cache_of_wide);
    CHECK(bitwise_equal(kept.backward(dy, cache, gradients),
                        wide.backward(dy, cache_of_wide, gradients_of_wide)));
    check_same_gradients(gradients, gradients_of_wide);
  });
  const Tensor1<Index> tokens({9}, {2, 0, 6, 2, 1, 1, 3, 0, 2});
  const auto d_logits = random_tensor<float>(Shape{9, 7}, 8);
  with_both<TestType>(Embedding<float>(7, 20), [&](const auto& kept, const auto& wide) {
    typename std::remove_cvref_t<decltype(kept)>::Cache cache;
    auto gradients = kept.zero_gradients(), gradients_of_wide = wide.zero_gradients();
    (void)kept.forward(tokens, cache);
    kept.backward(dh, cache, gradients);
    embedding_backward(In<float, 2>(dh), In<Index, 1>(tokens), gradients_of_wide.table);
    CHECK(bitwise_equal(kept.logits_backward(d_logits, x, gradients),
                        wide.logits_backward(d_logits, x, gradients_of_wide)));
    check_same_gradients(gradients, gradients_of_wide);
  });
  for (const bool gated : {false, true}) {
    const FeedForwardOptions options{.d_model = 20, .d_hidden = 33, .gated = gated};
    with_both<TestType>(FeedForward<float>(options), [&](const auto& kept, const auto& wide) {
      check_same_training(kept, wide, x, dh, {});
    });
    const TransformerBlockOptions block{
        .d_model = 20, .num_heads = 2, .gated = gated, .norm_first = gated};
    const auto sequence = random_tensor<float>(Shape{2, 5, 20}, 9),
               d_sequence = random_tensor<float>(Shape{2, 5, 20}, 10);
    with_both<TestType>(TransformerBlock<float>(block), [&](const auto& kept, const auto& wide) {
      check_same_training(kept, wide, sequence, d_sequence, {});
      check_same_training(kept, wide, convert<TestType>(In<float, 3>(sequence)),
                          convert<TestType>(In<float, 3>(d_sequence)), {});
    });
  }
}

TEMPLATE_TEST_CASE("a decoder of 16-bit weights has the gradients of their numbers", "[stored]",
                   BFloat16, Float16) {
  const auto tokens = some_tokens(2, 12);
  for (const bool norm_first : {false, true}) {
    const auto options = with(norm_first, norm_first ? NormKind::rms_norm : NormKind::layer_norm);
    with_both<TestType>(
        TransformerDecoder<float>(options), [&](const auto& kept, const auto& wide) {
          TransformerDecoderCache<float> cache, cache_of_wide;
          auto gradients = kept.zero_gradients(), gradients_of_wide = wide.zero_gradients();
          const auto logits = kept.forward(tokens, {}, cache);
          (void)wide.forward(tokens, {}, cache_of_wide);
          const auto d_logits = random_tensor<float>(logits.shape(), 11);
          kept.backward(d_logits, cache, gradients);
          wide.backward(d_logits, cache_of_wide, gradients_of_wide);
          check_same_gradients(gradients, gradients_of_wide);
        });
  }
}

TEST_CASE("a trace of a backward by 16-bit weights holds their numbers", "[stored]") {
  with_both<BFloat16>(MultiHeadAttention<float>(24, 3), [&](const auto& kept, const auto& wide) {
    const auto x = random_tensor<float>(Shape{1, 4, 24}, 9),
               dy = random_tensor<float>(x.shape(), 2);
    MultiHeadAttentionCache<float> cache;
    auto gradients = kept.zero_gradients();
    (void)kept.forward(x, {}, cache);
    Trace trace, expected;
    (void)kept.backward(dy, cache, gradients, {.trace = &trace});
    (void)wide.backward(dy, cache, gradients, {.trace = &expected});
    for (const Trace::Entry& entry : expected.entries()) {
      CAPTURE(entry.name);
      CHECK(trace.at(entry.name).values == entry.values);
    }
  });
}

TEST_CASE("steps of an optimiser reach weights of 16 bits by way of floats", "[stored]") {
  // Steps of 1e-4 of weights near 1: less than half of what bf16 tells apart there.
  Linear<float> master(1, 1, false);
  master.parameters().w(0, 0) = 1.0f;
  auto kept = store_weights_as<BFloat16>(master);
  auto gradients = kept.zero_gradients();
  const Tensor2<float> x({1, 1}, {1.0f}), dy({1, 1}, {1.0f});
  ParameterList<float> parameters;
  collect(parameters, "", master.parameters(), gradients);
  Sgd<float> optimizer(std::move(parameters), {.learning_rate = 1e-4});
  for (int step = 0; step < 100; ++step) {
    typename Linear<float, BFloat16>::Cache cache;
    (void)kept.forward(x, cache);
    gradients.w(0, 0) = 0;
    (void)kept.backward(dy, cache, gradients);
    optimizer.step();
    store_weights(master, kept);
  }
  CHECK(std::abs(master.parameters().w(0, 0) - 0.99f) < 1e-5f);
  CHECK(bitwise_equal(kept.parameters().w, store_weights_as<BFloat16>(master).parameters().w));
  CHECK(convert_float<float>(kept.parameters().w(0, 0)) < 1.0f);
}

TEST_CASE("weights are stored in modules of the same options alone", "[stored]") {
  const auto decoder = drawn<float>(with(true, {}));
  TransformerDecoder<float, BFloat16> kept(decoder.options());
  store_weights(decoder, kept);
  const auto expected = store_weights_as<BFloat16>(decoder);
  CHECK(bitwise_equal(kept.parameters().token, expected.parameters().token));
  CHECK(bitwise_equal(kept.parameters().blocks[1].attention.w_o,
                      expected.parameters().blocks[1].attention.w_o));
  CHECK(bitwise_equal(kept.parameters().norm.gamma, expected.parameters().norm.gamma));
  const MultiHeadAttention<float> attention(24, 3);
  MultiHeadAttention<float, Float16> wider(48, 3);
  const auto before = wider.parameters().w_o;
  CHECK_THROWS_WITH(store_weights(attention, wider),
                    "store_weights: W_Q is [24, 24], expected [48, 48] (the module's options)");
  CHECK(bitwise_equal(wider.parameters().w_o, before));
  // Nor is what does fit written where something behind it does not.
  const TransformerBlock<float> block({.d_model = 12, .num_heads = 3, .d_hidden = 20});
  TransformerBlock<float, Float16> other(
      {.d_model = 12, .num_heads = 3, .d_hidden = 24, .seed = 1});
  const auto begun = other.parameters().attention.w_o;
  CHECK_THROWS_AS(store_weights(block, other), ShapeError);
  CHECK(bitwise_equal(other.parameters().attention.w_o, begun));
  STATIC_REQUIRE_FALSE(KeptAs<BFloat16, double>);
}

}  // namespace nn_stored_weights_training
