// Decoding by batches whose sequences have lengths of their own: each as if it were alone.
#include <limits>

#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"
#include "support/poisoned_memory.hpp"

namespace nn_kv_cache_lengths {

using namespace headwise_tests;

namespace {

template <class T>
MultiHeadAttention<T> drawn_module(bool placed) {
  MultiHeadAttentionOptions options{.d_model = 12,
                                    .num_heads = 4,
                                    .num_kv_heads = 2,
                                    .d_head = 6,
                                    .d_value = 5,
                                    .v_bias = true,
                                    .layer_norm = true,
                                    .qk_norm = placed};
  if (placed) options.rotary = RotaryOptions{.theta = 100, .width = 4, .offset = 2};
  MultiHeadAttention<T> module(options);
  draw_all(module.parameters(), 3);
  return module;
}

/// Sequences of these lengths, and what a module makes of each alone.
template <class T>
struct Sequences {
  std::vector<Tensor3<T>> x, y;

  Sequences(const MultiHeadAttention<T>& module, const std::vector<Index>& lengths) {
    for (const Index length : lengths) {
      x.push_back(random_tensor<T>(Shape{Index{1}, length, Index{12}}, 20 + x.size()));
      y.push_back(module.forward(x.back(), {.mask = causal}));
    }
  }
  Index count() const { return static_cast<Index>(x.size()); }
  Index length(Index b) const { return x[static_cast<std::size_t>(b)].extent(1); }

  /// The next counts[b] tokens of each, NaN behind them.
  Tensor3<T> next(const KeyValueCache<T>& cache, const std::vector<Index>& counts, Index n) const {
    Tensor3<T> step({count(), n, 12});
    fill(Out<T, 3>(step), std::numeric_limits<T>::quiet_NaN());
    for (Index b = 0; b < count(); ++b) {
      const auto m = counts[static_cast<std::size_t>(b)];
      copy(In<T, 3>(slice(x[static_cast<std::size_t>(b)], 1, cache.length(b), m)),
           slice(slice(step, 0, b, 1), 1, 0, m));
    }
    return step;
  }
  /// Rows begin ... of what sequence b should give.
  In<T, 3> expected(Index b, Index begin, Index m) const {
    return slice(y[static_cast<std::size_t>(b)], 1, begin, m);
  }
};

}  // namespace

TEMPLATE_TEST_CASE(
    "sequences of different lengths decode beside each other with the bits of each alone", "[nn]",
    float, double) {
  using T = TestType;
  const bool placed = GENERATE(false, true);
  const Index threads = GENERATE(1, 2, 3);
  const auto module = drawn_module<T>(placed);
  const std::vector<Index> lengths = {37, 5, 150, 0, 88};
  const Sequences<T> all(module, lengths);
  ThreadPool pool(threads);
  Draw draw(static_cast<std::uint64_t>(threads));
  for (int round = 0; round < 3; ++round) {
    PoisonedMemory memory;
    auto cache = key_value_cache(module, 5, 150, &memory);
    while (cache.length(2) < 150) {
      const Index n = round == 0 ? 1 : draw.between(1, round == 1 ? 8 : 80);
      std::vector<Index> counts, before;
      for (Index b = 0; b < 5; ++b) {
        const Index left = all.length(b) - cache.length(b);
        counts.push_back(std::min(left, round == 0 ? 1 : draw.between(0, n)));
        before.push_back(cache.length(b));
      }
      const auto y = multi_head_attention_step(module, all.next(cache, counts, n), counts, cache,
                                               {.executor = pool});
      for (Index b = 0; b < 5; ++b) {
        const auto at = static_cast<std::size_t>(b);
        CAPTURE(b, before[at], counts[at]);
        CHECK(cache.length(b) == before[at] + counts[at]);
        CHECK(cache.room(b) == 150 - cache.length(b));
        CHECK(bitwise_equal(In<T, 3>(slice(slice(y, 0, b, 1), 1, 0, counts[at])),
                            all.expected(b, before[at], counts[at])));
        for (Index i = counts[at]; i < n; ++i) {  // the rest is b_O
          CHECK(
              bitwise_equal(In<T, 1>(select(select(y, b), i)), In<T, 1>(module.parameters().b_o)));
        }
      }
    }
    CHECK(cache.length() == 150);
    CHECK(cache.k(3).shape() == Shape{1, 2, 0, 6});
  }
}

TEST_CASE("a token of each sequence is one launch, whatever their lengths", "[nn]") {
  struct Counting {
    Index launches = 0;
    Index concurrency() const { return 1; }
    void run(Index tasks, TaskRef task) {
      ++launches;
      for (Index t = 0; t < tasks; ++t) task(t, 0);
    }
  };
  const auto module = drawn_module<float>(false);
  const auto launches = [&](const std::vector<Index>& lengths, const std::vector<Index>& counts) {
    const auto B = static_cast<Index>(lengths.size());
    auto cache = key_value_cache(module, B, 40);
    const auto longest = *std::max_element(lengths.begin(), lengths.end());
    const auto x = random_tensor<float>(Shape{B, longest, Index{12}}, 1);
    multi_head_attention_step(module, x, lengths, cache);
    Counting counting;
    multi_head_attention_step(module, slice(x, 1, 0, 1), counts, cache, {.executor = counting});
    return counting.launches;
  };
  const auto alike = launches({9, 9, 9, 9}, {1, 1, 1, 1});
  CHECK(alike > 0);
  CHECK(launches({9, 30, 1, 17}, {1, 1, 1, 1}) == alike);
  CHECK(launches({9, 30, 1, 17}, {1, 0, 1, 1}) == alike);
}

TEST_CASE("a token of each sequence has the scale of its call, whatever their lengths", "[nn]") {
  const auto module = drawn_module<float>(true);
  const std::vector<Index> lengths = {9, 30, 1};
  const auto x = random_tensor<float>(Shape{Index{3}, Index{31}, Index{12}}, 1);
  const MultiHeadAttentionStepCall<float> call{.scale = 0.3f};
  auto cache = key_value_cache(module, 3, 40);
  multi_head_attention_step(module, x, lengths, cache);
  const auto y = multi_head_attention_step(module, slice(x, 1, 0, 1), call, cache);
  for (Index b = 0; b < 3; ++b) {
    auto alone = key_value_cache(module, 1, 40);
    const auto own = slice(x, 0, b, 1);
    multi_head_attention_step(module, slice(own, 1, 0, lengths[static_cast<std::size_t>(b)]),
                              alone);
    const auto expected = multi_head_attention_step(module, slice(own, 1, 0, 1), call, alone);
    CHECK(bitwise_equal(In<float, 3>(slice(y, 0, b, 1)), In<float, 3>(expected)));
  }
}

TEST_CASE("one sequence is rolled back, or makes room for another, and no other notices", "[nn]") {
  const auto module = drawn_module<double>(true);
  const Sequences<double> all(module, {20, 17}), other(module, {9, 9});
  PoisonedMemory memory;
  auto cache = key_value_cache(module, 2, 20, &memory);
  const auto step = [&](const Sequences<double>& of, const std::vector<Index>& counts, Index n) {
    return multi_head_attention_step(module, of.next(cache, counts, n), counts, cache);
  };
  (void)step(all, {12, 8}, 12);
  cache.rollback(0, 5);
  CHECK((cache.length(0) == 7 && cache.length(1) == 8 && cache.room() == 12));
  auto y = step(all, {5, 2}, 5);
  CHECK(bitwise_equal(In<double, 3>(slice(y, 0, 0, 1)), all.expected(0, 7, 5)));
  CHECK(bitwise_equal(In<double, 3>(slice(slice(y, 0, 1, 1), 1, 0, 2)), all.expected(1, 8, 2)));
  cache.rollback(2);
  CHECK((cache.length(0) == 10 && cache.length(1) == 8));
  CHECK_THROWS_AS(cache.rollback(9), ArgumentError);  // more than the second has
  CHECK((cache.length(0) == 10 && cache.length(1) == 8));
  cache.clear(1);
  CHECK((cache.length(0) == 10 && cache.length(1) == 0));
  Tensor3<double> both({2, 4, 12});  // sequence 0 goes on where another begins
  copy(In<double, 3>(slice(all.x[0], 1, 10, 4)), slice(both, 0, 0, 1));
  copy(In<double, 3>(slice(other.x[1], 1, 0, 4)), slice(both, 0, 1, 1));
  y = multi_head_attention_step(module, both, cache);
  CHECK(bitwise_equal(In<double, 3>(slice(y, 0, 0, 1)), all.expected(0, 10, 4)));
  CHECK(bitwise_equal(In<double, 3>(slice(y, 0, 1, 1)), other.expected(1, 0, 4)));
}

TEST_CASE("a view of a batch of lengths and key lengths are the sequences alone, to the bit",
          "[nn]") {
  PoisonedMemory memory;
  const Index B = 3, H = 2, d = 5, most = 140;
  KeyValueCache<float> cache({.batch_size = B, .num_kv_heads = H, .capacity = most, .d_head = d},
                             &memory);
  const std::vector<Index> counts = {9, 0, 133};
  const auto k = random_tensor<float>(Shape{B, H, Index{133}, d}, 1),
             v = random_tensor<float>(k.shape(), 2);
  const auto q = random_tensor<float>(Shape{B, H, Index{1}, d}, 3);
  cache.append(k, v, counts);
  CHECK(cache.k().shape() == Shape{B, H, Index{133}, d});
  Tensor4<float> o(q.shape()), alone(Shape{Index{1}, H, Index{1}, d});
  flash_attention_forward(q, cache.k(), cache.v(), {.mask = Mask::key_lengths(counts)}, o, {});
  for (Index b = 0; b < B; ++b) {
    flash_attention_forward(In<float, 4>(slice(q, 0, b, 1)), cache.k(b), cache.v(b), {}, alone, {});
    CHECK(bitwise_equal(In<float, 4>(slice(o, 0, b, 1)), In<float, 4>(alone)));
  }
}

TEST_CASE("a step of different lengths that runs out of memory leaves the cache as it was",
          "[nn]") {
  const auto module = drawn_module<double>(true);
  const Sequences<double> all(module, {6, 9});
  auto cache = key_value_cache(module, 2, 9);
  (void)multi_head_attention_step(module, all.next(cache, {2, 5}, 5), std::vector<Index>{2, 5},
                                  cache);
  const std::vector<Index> counts = {4, 3};
  const auto next = all.next(cache, counts, 4);
  Tensor3<double> y;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              y = contiguous(In<double, 3>(
                  multi_head_attention_step(module, next, counts, cache, {.memory = memory})));
            },
            [&] { return cache.length(0) == 2 && cache.length(1) == 5; }) > 5);
  CHECK(bitwise_equal(In<double, 3>(slice(y, 0, 0, 1)), all.expected(0, 2, 4)));
  CHECK(bitwise_equal(In<double, 3>(slice(slice(y, 0, 1, 1), 1, 0, 3)), all.expected(1, 5, 3)));
}

TEST_CASE("a block steps with sequences of different lengths as with each alone", "[nn]") {
  auto options = with(GENERATE(false, true), NormKind::rms_norm).block;
  options.rotary = RotaryOptions{};
  TransformerBlock<double> block(options);
  draw_all(block.parameters(), 4);
  const auto x = random_tensor<double>(Shape{2, 9, 6}, 5);
  const auto whole = block.forward(x, {.mask = causal});
  auto cache = key_value_cache<double>(block.options().attention(), 2, 9);
  const std::vector<std::vector<Index>> cuts = {{5, 1}, {0, 4}, {4, 4}};
  for (const auto& counts : cuts) {
    Tensor3<double> step({2, 5, 6});
    fill(Out<double, 3>(step), std::numeric_limits<double>::quiet_NaN());
    for (Index b = 0; b < 2; ++b) {
      const Index m = counts[static_cast<std::size_t>(b)];
      copy(In<double, 3>(slice(slice(x, 0, b, 1), 1, cache.length(b), m)),
           slice(slice(step, 0, b, 1), 1, 0, m));
    }
    const std::vector<Index> before = {cache.length(0), cache.length(1)};
    const auto y = transformer_block_step(block, step, counts, cache);
    for (Index b = 0; b < 2; ++b) {
      const auto at = static_cast<std::size_t>(b);
      CHECK(bitwise_equal(In<double, 3>(slice(slice(y, 0, b, 1), 1, 0, counts[at])),
                          In<double, 3>(slice(slice(whole, 0, b, 1), 1, before[at], counts[at]))));
    }
  }
}

TEMPLATE_TEST_CASE("a decoder writes sequences of different lengths as each alone", "[nn]", float,
                   double) {
  using T = TestType;
  auto options = with(true, NormKind::rms_norm);
  options.position_vectors = GENERATE(false, true);
  options.block.rotary = RotaryOptions{};
  const auto decoder = drawn<T>(options);
  const auto tokens = some_tokens(3, 40);
  const auto whole = decoder.forward(tokens);
  auto state = decoder.state(3), state_of_each = decoder.state(3);
  const std::vector<std::vector<Index>> cuts = {
      {7, 2, 0}, {1, 1, 1}, {0, 30, 3}, {1, 7, 0}, {31, 0, 2}};
  for (const auto& counts : cuts) {
    Tensor2<std::int64_t> step({3, 31});
    for (std::int64_t& token : step) token = -7;  // none that there is
    for (Index b = 0; b < 3; ++b) {
      for (Index i = 0; i < counts[static_cast<std::size_t>(b)]; ++i) {
        step(b, i) = tokens(b, state.length(b) + i);
      }
    }
    const Tensor1<T> none(7);
    const auto each = decoder.step_each(step, counts, state_of_each);  // [3 31, V]
    for (Index b = 0; b < 3; ++b) {
      for (Index i = 0; i < 31; ++i) {
        const bool counted = i < counts[static_cast<std::size_t>(b)];
        const In<T, 1> got = select(each, b * 31 + i);
        CHECK(bitwise_equal(
            got, counted ? In<T, 1>(select(whole, b * 40 + state.length(b) + i)) : In<T, 1>(none)));
      }
    }
    const auto logits = decoder.step(step, counts, state);
    for (Index b = 0; b < 3; ++b) {
      const In<T, 1> got = select(logits, b);
      if (counts[static_cast<std::size_t>(b)] == 0) {
        CHECK(bitwise_equal(got, In<T, 1>(Tensor1<T>(7))));
      } else {
        CHECK(bitwise_equal(got, In<T, 1>(select(whole, b * 40 + state.length(b) - 1))));
      }
    }
  }
  CHECK((state.length(0) == 40 && state.length(1) == 40 && state.length(2) == 6));
  CHECK((state.length() == 40 && state.room() == 0));
  state.clear(1);
  state.rollback(0, 3);
  CHECK((state.length(0) == 37 && state.length(1) == 0));
}

}  // namespace nn_kv_cache_lengths
