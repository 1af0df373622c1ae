// TransformerDecoder: its state, and what is left of it and of gradients when a call fails.
#include <stdexcept>

#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"

namespace nn_transformer_decoder_state {

using namespace headwise_tests;

TEST_CASE("a state of a TransformerDecoder is copied, rolled back and cleared", "[nn]") {
  const auto decoder = drawn<double>(with(true, NormKind::layer_norm));
  const auto tokens = some_tokens(1, 8), other = some_tokens(1, 8, 2);
  const auto part = [](const Tensor2<std::int64_t>& of, Index begin, Index count) {
    return In<std::int64_t, 2>(slice(of, 1, begin, count));
  };
  auto state = decoder.state();
  CHECK(state.room() == 40);
  (void)decoder.step(part(tokens, 0, 5), state);
  auto beam = state;
  (void)decoder.step(part(other, 0, 3), beam);
  CHECK((beam.length() == 8 && state.length() == 5));
  (void)decoder.step(part(other, 3, 4), state);  // a draft that is rejected
  state.rollback(4);
  const auto logits = decoder.step(part(tokens, 5, 3), state);
  auto fresh = decoder.state(1, 8);
  CHECK(bitwise_equal(logits, decoder.step(part(tokens, 0, 8), fresh)));
  fresh.clear();
  CHECK(fresh.room() == 8);
  CHECK(bitwise_equal(logits, decoder.step(part(tokens, 0, 8), fresh)));
}

TEST_CASE(
    "a TransformerDecoder that runs out of memory leaves cache, gradients and state as they "
    "were",
    "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const auto decoder = drawn<double>(with(norm_first, NormKind::layer_norm));
  const auto tokens = some_tokens(2, 5), other = some_tokens(1, 4, 2);
  const auto d_logits = random_tensor<double>(Shape{10, 7}, 8);
  TransformerDecoderCache<double> cache;
  auto gradients = decoder.zero_gradients();
  (void)decoder.forward(tokens, dropping(), cache);
  decoder.backward(d_logits, cache, gradients);
  const auto once = values_of<double>(gradients);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              decoder.backward(d_logits, cache, gradients, {.memory = memory});
            },
            [&] { return same_bits(values_of<double>(gradients), once); }) >= 30);
  CHECK_FALSE(same_bits(values_of<double>(gradients), once));
  bool replaced = false;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)decoder.forward(other, {}, cache, {.memory = memory});
              replaced = cache.tokens.extent(1) == 4;
              cache = {};  // before its memory goes
            },
            [&] {
              auto again = decoder.zero_gradients();
              decoder.backward(d_logits, cache, again);
              return same_bits(values_of<double>(again), once);
            }) >= 20);
  CHECK(replaced);
  auto state = decoder.state(2, 6);
  (void)decoder.step(tokens, state);
  const Tensor2<std::int64_t> next = some_tokens(2, 1, 3);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)decoder.step(next, state, {.memory = memory});
            },
            [&] { return state.length() == 5 && state.room() == 1; }) >= 20);
  CHECK(state.length() == 6);
}

namespace {

/// One thread, which throws at some call.
struct BreaksDown {
  int left;
  template <class Task>
  void run(Index count, Task&& task) {
    if (left-- == 0) throw std::runtime_error("broken down");
    for (Index t = 0; t < count; ++t) task(t, Index{0});
  }
  Index concurrency() const { return 1; }
};

}  // namespace

TEST_CASE("an executor that throws leaves the gradients of the blocks as they were", "[nn]") {
  const auto decoder = drawn<double>(with(true, NormKind::layer_norm));
  const auto d_logits = random_tensor<double>(Shape{10, 7}, 8);
  TransformerDecoderCache<double> cache;
  auto gradients = decoder.zero_gradients();
  (void)decoder.forward(some_tokens(2, 5), {}, cache);
  decoder.backward(d_logits, cache, gradients);
  const auto of_blocks = [&] {
    auto values = values_of<double>(gradients.blocks[0]);
    const auto more = values_of<double>(gradients.blocks[1]);
    values.insert(values.end(), more.begin(), more.end());
    return values;
  };
  const auto once = of_blocks();
  int threw = 0;
  for (bool done = false; !done; ++threw) {
    BreaksDown executor{threw};
    try {
      decoder.backward(d_logits, cache, gradients, {.executor = executor});
      done = true;
    } catch (const std::runtime_error&) {
      CHECK(same_bits(of_blocks(), once));
    }
  }
  CHECK(threw > 45);
  CHECK_FALSE(same_bits(of_blocks(), once));
}

}  // namespace nn_transformer_decoder_state
