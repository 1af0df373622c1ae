// Steps from a cache, counted: once one has run, the next of as many tokens allocate nothing.
#include "headwise/nn/cross_attention_step.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "outside_faults/allocations.hpp"
#include "support/parameter_values.hpp"

namespace outside_faults_decoding {

using namespace headwise_tests;

TEST_CASE("a step from a cache allocates nothing once one like it has run", "[outside]") {
  if (!headwise::detail::recycles()) return;
  ThreadPool pool(GENERATE(1, 3));
  const Context context{.executor = pool};
  const Tensor1<double> numbers({2}, {1.0, 0.5});
  MultiHeadAttention<float> module(
      {.d_model = 8,
       .num_heads = 2,
       .num_kv_heads = 1,
       .q_bias = true,
       .layer_norm = true,
       .qk_norm = true,
       .rotary = RotaryOptions{.frequencies = In<double, 1>(numbers)}});
  const auto x = random_tensor<float>(Shape{2, 900, 8}, 1);
  const std::vector<Index> counts = {1, 1};
  for (const Index window : {0, 20}) {
    for (const Index first : {Index{0}, window / 5}) {
      for (const bool lag : {false, true}) {
        auto cache = key_value_cache(
            module, {.batch_size = 2, .capacity = 900, .window = window, .first_keys = first});
        if (lag) {
          (void)multi_head_attention_step(module, slice(x, 1, 0, 3), std::vector<Index>{3, 1},
                                          cache, context);
        }
        for (Index i = 3; i < 890; ++i) {
          if (i == 60) reset_allocations();  // the window has passed the first keys
          (void)multi_head_attention_step(module, slice(x, 1, i, 1), counts, cache, context);
        }
        const long count = allocations().count;
        CAPTURE(window, first, lag);
        CHECK(count == 0);
      }
    }
  }
}

TEST_CASE("a step of cross-attention allocates nothing once one like it has run", "[outside]") {
  if (!headwise::detail::recycles()) return;
  ThreadPool pool(GENERATE(1, 3));
  const Context context{.executor = pool};
  const MultiHeadAttention<float> module(
      {.d_model = 8, .num_heads = 2, .layer_norm = true, .qk_norm = true, .rotary = {{}}});
  const auto x = random_tensor<float>(Shape{2, 200, 8}, 1);
  auto cache = key_value_cache(module, 2, 400);
  for (const std::vector<Index>& counts : {std::vector<Index>{}, std::vector<Index>{9, 150}}) {
    cross_attention_append(module, x, x, counts, cache);  // of one length, then of two
    for (Index i = 0; i < 40; ++i) {
      if (i == 1) reset_allocations();
      (void)cross_attention_step(module, slice(x, 1, i, 1), {.origin = {.query = i}}, cache,
                                 context);
    }
    const long count = allocations().count;
    CAPTURE(counts.size());
    CHECK(count == 0);
  }
}

TEST_CASE("a step of a decoder allocates nothing once one like it has run", "[outside]") {
  if (!headwise::detail::recycles()) return;
  const TransformerDecoder<float> decoder({.vocabulary = 7,
                                           .max_length = 300,
                                           .num_blocks = 2,
                                           .block = {.d_model = 8,
                                                     .num_heads = 2,
                                                     .norm = NormKind::rms_norm,
                                                     .qk_norm = true,
                                                     .rotary = RotaryOptions{}}});
  auto state = decoder.state(2);
  const Tensor2<std::int64_t> tokens({2, 1}, {3, 5});
  (void)decoder.step(tokens, state);
  reset_allocations();
  while (state.room() > 0) (void)decoder.step(tokens, state);
  const long count = allocations().count;
  CHECK(count == 0);
}

}  // namespace outside_faults_decoding
