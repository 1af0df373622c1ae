// Decoding over a window with first keys that stay, in memory that does not grow: the bits of the
// whole sequence under a mask of the same pairs.
#include <limits>

#include "headwise/nn/transformer_block_step.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"
#include "support/parameter_values.hpp"
#include "support/poisoned_memory.hpp"

namespace nn_kv_cache_window {

using namespace headwise_tests;

namespace {

/// The pairs that a window and first keys leave of a causal mask.
Tensor2<bool> kept_pairs(Index L, Index window, Index first) {
  Tensor2<bool> keep({L, L});
  for_each_index(keep.shape(),
                 [&](const Shape<2>& at) { keep(at) = at[1] < first || at[1] > at[0] - window; });
  return keep;
}

template <class T>
MultiHeadAttention<T> drawn_module() {
  MultiHeadAttention<T> module({.d_model = 8,
                                .num_heads = 2,
                                .num_kv_heads = 1,
                                .d_head = 4,
                                .qk_norm = true,
                                .rotary = RotaryOptions{.theta = 50}});
  draw_all(module.parameters(), 3);
  return module;
}

/// A batch of 2, whose second sequence lags behind, in chunks as they come.
template <class T>
void check_window(const MultiHeadAttention<T>& module, Index window, Index first, Index most,
                  const Context& context) {
  const Index L = 4 * kernels::kernels_here<T>().forward_keys + 50;
  const auto x = random_tensor<T>(Shape{2, L, 8}, 7);
  const auto keep = kept_pairs(L, window, first);
  const auto whole = module.forward(x, {.mask = {causal, Mask::keep(keep)}});
  PoisonedMemory memory;
  auto cache =
      key_value_cache(module, {.batch_size = 2, .window = window, .first_keys = first}, &memory);
  const Index capacity = cache.options().capacity;
  Draw draw(static_cast<std::uint64_t>(window * 1000 + first + most));
  while (cache.length(1) < L) {
    const Index n = std::min(draw.between(1, most), cache.room());
    REQUIRE(n >= 1);
    std::vector<Index> counts = {std::min(n, L - cache.length(0)),
                                 std::min(draw.between(0, n), L - cache.length(1))};
    Tensor3<T> step({2, n, 8});
    fill(Out<T, 3>(step), std::numeric_limits<T>::quiet_NaN());
    const std::vector<Index> before = {cache.length(0), cache.length(1)};
    for (Index b = 0; b < 2; ++b) {
      const auto at = static_cast<std::size_t>(b);
      copy(In<T, 3>(slice(slice(x, 0, b, 1), 1, before[at], counts[at])),
           slice(slice(step, 0, b, 1), 1, 0, counts[at]));
    }
    const auto y = multi_head_attention_step(module, step, counts, cache, context);
    for (Index b = 0; b < 2; ++b) {
      const auto at = static_cast<std::size_t>(b);
      CAPTURE(sizeof(T), window, first, most, b, before[at], counts[at]);
      REQUIRE(bitwise_equal(In<T, 3>(slice(slice(y, 0, b, 1), 1, 0, counts[at])),
                            In<T, 3>(slice(slice(whole, 0, b, 1), 1, before[at], counts[at]))));
    }
    REQUIRE(cache.k().length <= capacity);
  }
  CHECK(cache.options().capacity == capacity);
  const Index block = kernels::kernels_here<T>().forward_keys;
  CHECK(capacity <= first + window + 4 * block);
}

}  // namespace

TEMPLATE_TEST_CASE(
    "a window with first keys decodes with the bits of the whole under a mask, for any chunks",
    "[nn]", float, double) {
  const auto module = drawn_module<TestType>();
  for (const Index window : {1, 5, 64, 128, 131}) {
    for (const Index first : {0, 1, 4, 130}) {
      check_window<TestType>(module, window, first, 64, {});
    }
  }
  check_window<TestType>(module, 20, 4, 1, {});
  check_window<TestType>(module, 100000, 3, 200, {});  // wider than the sequence
}

TEST_CASE("a window has its bits on any number of threads", "[nn]") {
  const auto module = drawn_module<float>();
  for (const Index threads : {2, 3}) {
    ThreadPool pool(threads);
    check_window<float>(module, 33, 2, 100, {.executor = pool});
    check_window<float>(module, 33, 0, 1, {.executor = pool});
  }
}

TEST_CASE("what a windowed cache holds are the first keys and the last, at their positions",
          "[nn]") {
  const Index block = kernels::kernels_here<double>().forward_keys;
  Draw draw(5);
  for (const Index first : {Index{0}, Index{3}, block, block + 1}) {
    for (const Index window : {Index{1}, Index{7}, block - 1, 2 * block + 3}) {
      KeyValueCache<double> cache(
          {.num_kv_heads = 2, .d_head = 2, .d_value = 1, .window = window, .first_keys = first});
      Index length = 0;
      for (int turn = 0; turn < 60; ++turn) {
        const Index n = draw.between(0, std::min(cache.room(), 2 * block));
        REQUIRE(cache.room() >= block);
        Tensor4<double> k({1, 2, n, 2}), v({1, 2, n, 1});
        for_each_index(k.shape(),
                       [&](const Shape<4>& at) { k(at) = static_cast<double>(length + at[2]); });
        copy(In<double, 4>(slice(k, 3, 1, 1)), v);
        cache.append(k, v);
        length += n;
        if (turn % 3 == 2) {  // a draft is rejected
          const Index back = std::min(draw.between(0, 5), n);
          const bool reaches = back == 0 || n > back;
          if (reaches) cache.rollback(back), length -= back;
        }
        REQUIRE(cache.length() == length);
        const TransposedKeys<double> keys = cache.k(0);
        const In<double, 4> values = cache.v(0);
        Index expected = 0;  // of the keys that the next query sees, those that were found
        for (Index slot = 0; slot < keys.length; ++slot) {
          const Index j = cache.position(0, slot);
          REQUIRE(keys(0, 1, slot, 0) == static_cast<double>(j));
          REQUIRE(values(0, 1, slot, 0) == static_cast<double>(j));
          REQUIRE(slot % block == j % block);
          if (j < first || j > length - window) ++expected;
        }
        const Index window_begin = std::max<Index>(length - window + 1, 0);
        const Index kept_first = std::min(first, length);
        REQUIRE(expected ==
                kept_first + std::max<Index>(length - std::max(window_begin, first), 0));
      }
    }
  }
}

TEST_CASE("a block of keys makes room once no query to come sees it, and no sooner", "[nn]") {
  constexpr Index block = 4;
  for (const Index first : {0, 3, 4, 9}) {
    for (const Index window : {1, 2, 3, 4, 5, 11}) {
      const auto slots = headwise::detail::KeyValueSlots::of_window(0, window, first, block);
      bool right = true;
      for (Index length = 0; length < 60; ++length) {
        const Index seen_from = std::max<Index>(length - window + 1, 0);  // by the next query
        for (Index dropped = 0; dropped == 0 || slots.first + dropped <= seen_from;
             dropped += block) {
          const headwise::detail::KeyValueSequence at{length, dropped};
          const Index gone = at.droppable(slots), held_from = slots.first + dropped + gone;
          right = right && gone % block == 0 && (gone == 0 || held_from <= seen_from) &&
                  held_from + block > seen_from;
        }
      }
      CAPTURE(first, window);
      CHECK(right);
    }
  }
}

TEST_CASE("a windowed cache goes back as far as it holds what is seen, and no further", "[nn]") {
  const auto module = drawn_module<double>();
  const Index block = kernels::kernels_here<double>().forward_keys;
  const Index window = 10, first = 2, L = 6 * block;
  const auto x = random_tensor<double>(Shape{1, L, 8}, 8);
  const auto keep = kept_pairs(L, window, first);
  const auto whole = module.forward(x, {.mask = {causal, Mask::keep(keep)}});
  auto cache = key_value_cache(module, {.window = window, .first_keys = first});
  while (cache.length() < L) {
    const Index n = std::min<Index>(L - cache.length(), 50);
    (void)multi_head_attention_step(module, slice(x, 1, cache.length(), n), cache);
  }
  std::vector<bool> held(static_cast<std::size_t>(L));
  for (Index slot = 0; slot < cache.k(0).length; ++slot) {
    held[static_cast<std::size_t>(cache.position(0, slot))] = true;
  }
  Index farthest = 0;
  for (Index n = 1; n <= L; ++n) {  // each tried on a copy
    bool sees_held = true;
    for (Index j = 0; j < L - n; ++j) {
      const bool seen = j < first || j > L - n - window;
      sees_held = sees_held && (!seen || held[static_cast<std::size_t>(j)]);
    }
    auto copy_of = cache;
    try {
      copy_of.rollback(n);
    } catch (const ArgumentError&) {
      CHECK_FALSE(sees_held);
      CHECK(copy_of.length() == L);
      continue;
    }
    CHECK(sees_held);
    if (n < L - block) farthest = n;
    const Index m = std::min<Index>(n, 5);
    const auto y = multi_head_attention_step(module, slice(x, 1, L - n, m), copy_of);
    REQUIRE(bitwise_equal(In<double, 3>(y), In<double, 3>(slice(whole, 1, L - n, m))));
  }
  CHECK(farthest >= 1);
  CHECK(farthest < 3 * block);
  cache.rollback(L);  // to nothing
  const auto y = multi_head_attention_step(module, slice(x, 1, 0, 9), cache);
  CHECK(bitwise_equal(In<double, 3>(y), In<double, 3>(slice(whole, 1, 0, 9))));
}

TEST_CASE("a step over a window that runs out of memory leaves the cache as it was", "[nn]") {
  const auto module = drawn_module<double>();
  const Index window = 10, first = 2;
  auto cache = key_value_cache(module, {.window = window, .first_keys = first});
  const Index full = cache.options().capacity, L = full + 3;
  const auto x = random_tensor<double>(Shape{1, L, 8}, 9);
  const auto keep = kept_pairs(L, window, first);
  const auto whole = module.forward(x, {.mask = {causal, Mask::keep(keep)}});
  (void)multi_head_attention_step(module, slice(x, 1, 0, full), cache);
  Tensor3<double> y;
  CHECK(fail_in_turn(  // the first try drops keys
            [&](std::pmr::memory_resource* memory) {
              y = contiguous(In<double, 3>(multi_head_attention_step(module, slice(x, 1, full, 3),
                                                                     cache, {.memory = memory})));
            },
            [&] { return cache.length() == full; }) > 5);
  CHECK(bitwise_equal(In<double, 3>(y), In<double, 3>(slice(whole, 1, full, 3))));
}

}  // namespace nn_kv_cache_window
