// Decoding with what changes scores: the bits of the whole sequence under the same call.
#include <array>
#include <limits>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/parameter_values.hpp"
#include "support/poisoned_memory.hpp"

namespace nn_kv_cache_scores {

using namespace headwise_tests;

namespace {

constexpr Index batch = 3, heads = 4;

/// Told apart by batch element, head and both positions.
constexpr auto placed = [](auto s, const Position& at, const auto& w) {
  const auto remainder = (at.batch * 11 + at.head * 7 + at.query * 5 + at.key * 3) % 13;
  return s + w[0] * static_cast<float>(remainder);
};

/// Leaves each query its own key; told apart as `placed`.
constexpr auto scattered = [](const Position& at) {
  return at.key == at.query ||
         (at.batch * 5 + at.head * 3 + at.query * 7 + at.key * 11) % 17 % 3 != 0;
};
/// Told of each query.
constexpr auto near = [](const Position& query) {
  return KeyRange{query.query - 61 - 10 * query.batch, query.query + 1};
};

template <class T>
struct Scores {
  Tensor<T, 1> slopes = random_tensor<T>(Shape{heads}, 31);
  Tensor<T, 2> table = random_tensor<T>(Shape{heads, Index{2 * 20 + 1}}, 32);
  Tensor<T, 1> sinks = random_tensor<T>(Shape{heads}, 33);
  ScoreFunction<T, 1, std::decay_t<decltype(placed)>> function =
      score_function<T>(std::array{T(0.15)}, placed);

  std::vector<ScoreOptions<T>> all() const {
    return {{.softcap = T(1.5)},
            {.alibi_slopes = slopes},
            {.relative_bias = table},
            {.function = function},
            {.sinks = sinks},
            {.softcap = T(2),
             .alibi_slopes = slopes,
             .relative_bias = table,
             .function = function,
             .sinks = sinks}};
  }
};

template <class T>
MultiHeadAttention<T> drawn_module() {
  MultiHeadAttention<T> module({.d_model = 12,
                                .num_heads = heads,
                                .num_kv_heads = 2,
                                .d_head = 6,
                                .d_value = 5,
                                .rotary = RotaryOptions{.theta = 100}});
  draw_all(module.parameters(), 3);
  return module;
}

/// Sequences of a batch that fall behind each other, in steps as they come.
template <class T>
void check_steps(const MultiHeadAttention<T>& module, const ScoreOptions<T>& score, Index L,
                 const KeyValueCacheOptions& options, const Context& context,
                 const MaskFunctionRef& mask = {}) {
  const auto x = random_tensor<T>(Shape{batch, L, Index{12}}, 7);
  MultiHeadAttentionCall<T> call{.mask = {causal}, .scale = T(0.6), .score = score};
  if (options.window != 0) {
    call.mask = {causal, Mask::window(options.window).keeping_first(options.first_keys)};
  }
  call.mask.add(mask);
  const auto whole = module.forward(x, call);
  PoisonedMemory memory;
  auto cache = key_value_cache(module, options, &memory);
  Draw draw(static_cast<std::uint64_t>(L));
  const auto behind = [&] {
    Index b = 0;
    for (Index other = 1; other < batch; ++other) {
      if (cache.length(other) < cache.length(b)) b = other;
    }
    return b;
  };
  while (cache.length(behind()) < L) {
    const Index n = std::min(draw.between(1, 40), cache.room(behind()));
    REQUIRE(n >= 1);
    std::vector<Index> counts, before;
    Tensor3<T> step({batch, n, 12});
    fill(Out<T, 3>(step), std::numeric_limits<T>::quiet_NaN());
    for (Index b = 0; b < batch; ++b) {
      before.push_back(cache.length(b));
      counts.push_back(
          std::min({b == behind() ? n : draw.between(0, n), L - before.back(), cache.room(b)}));
      copy(In<T, 3>(slice(slice(x, 0, b, 1), 1, before.back(), counts.back())),
           slice(slice(step, 0, b, 1), 1, 0, counts.back()));
    }
    const auto y = multi_head_attention_step(
        module, step, {.counts = counts, .scale = T(0.6), .score = score, .mask = mask}, cache,
        context);
    for (Index b = 0; b < batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      CAPTURE(sizeof(T), options.window, b, before[at], counts[at]);
      REQUIRE(bitwise_equal(In<T, 3>(slice(slice(y, 0, b, 1), 1, 0, counts[at])),
                            In<T, 3>(slice(slice(whole, 0, b, 1), 1, before[at], counts[at]))));
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("steps with what changes scores have the bits of the whole sequence", "[nn]",
                   float, double) {
  using T = TestType;
  const auto module = drawn_module<T>();
  const Scores<T> scores;
  ThreadPool pool(GENERATE(1, 3));
  for (const ScoreOptions<T>& score : scores.all()) {
    check_steps(module, score, 130, {.batch_size = batch, .capacity = 130}, {.executor = pool});
  }
}

TEMPLATE_TEST_CASE("a cache that drops keys behind its window knows where the others stand", "[nn]",
                   float, double) {
  using T = TestType;
  const auto module = drawn_module<T>();
  const Scores<T> scores;
  const Index L = 4 * kernels::kernels_here<T>().forward_keys + 50;
  for (const ScoreOptions<T>& score : scores.all()) {
    check_steps(module, score, L, {.batch_size = batch, .window = 37}, {});
  }
}

TEMPLATE_TEST_CASE("biases by distance and functions know where the first keys of a cache stand",
                   "[nn]", float, double) {
  using T = TestType;
  const auto module = drawn_module<T>();
  const Scores<T> scores;
  const Index block = kernels::kernels_here<T>().forward_keys;
  for (const ScoreOptions<T>& score : scores.all()) {
    for (const Index first : {Index{3}, block + 1}) {
      const KeyValueCacheOptions options{.batch_size = batch, .window = 37, .first_keys = first};
      check_steps(module, score, 5 * block + 50, options, {});
    }
  }
}

TEMPLATE_TEST_CASE("a mask function hides from steps what it hides from the whole sequence", "[nn]",
                   float, double) {
  using T = TestType;
  const auto module = drawn_module<T>();
  const Scores<T> scores;
  const auto everywhere = mask_function(scattered);
  const auto bounded = mask_function(scattered, near);
  ThreadPool pool(3);
  const Index block = kernels::kernels_here<T>().forward_keys, longer = 5 * block + 50;
  for (const MaskFunctionRef& mask : {Mask::function(everywhere), Mask::function(bounded)}) {
    for (const ScoreOptions<T>& score : {ScoreOptions<T>(), scores.all().back()}) {
      const auto check = [&](Index L, const KeyValueCacheOptions& options) {
        check_steps(module, score, L, options, {.executor = pool}, mask);
      };
      check(130, {.batch_size = batch, .capacity = 130});
      check(longer, {.batch_size = batch, .window = 37, .first_keys = block + 1});
    }
  }
}

TEST_CASE("one token of each sequence at a time has the bits of the whole, with scores", "[nn]") {
  const auto module = drawn_module<float>();
  const Scores<float> scores;
  const auto x = random_tensor<float>(Shape{batch, Index{70}, Index{12}}, 8);
  for (const ScoreOptions<float>& score : scores.all()) {
    const auto whole = module.forward(x, {.mask = {causal}, .score = score});
    auto cache = key_value_cache(module, batch, 70);
    for (Index i = 0; i < 70; ++i) {
      const auto y = multi_head_attention_step(module, slice(x, 1, i, 1), {.score = score}, cache);
      REQUIRE(bitwise_equal(In<float, 3>(y), In<float, 3>(slice(whole, 1, i, 1))));
    }
  }
}

TEMPLATE_TEST_CASE(
    "one token of each of sequences of different lengths has the bits of the whole, with scores",
    "[nn]", float, double) {
  using T = TestType;
  const auto module = drawn_module<T>();
  const Scores<T> scores;
  const auto x = random_tensor<T>(Shape{batch, Index{150}, Index{12}}, 8);
  const std::vector<Index> prompt = {140, 3, 57};
  const auto check = [&](const ScoreOptions<T>& score, const MaskFunctionRef& mask) {
    const auto whole = module.forward(x, {.mask = {causal, mask}, .score = score});
    MultiHeadAttentionStepCall<T> call{.counts = prompt, .score = score, .mask = mask};
    auto cache = key_value_cache(module, batch, 150);
    (void)multi_head_attention_step(module, slice(x, 1, 0, 140), call, cache);
    call.counts = {};
    Tensor3<T> next({batch, 1, 12});
    for (int n = 0; n < 5; ++n) {
      for (Index b = 0; b < batch; ++b) {
        copy(In<T, 2>(slice(select(x, b), 0, cache.length(b), 1)), Out<T, 2>(select(next, b)));
      }
      const auto y = multi_head_attention_step(module, next, call, cache);
      for (Index b = 0; b < batch; ++b) {
        REQUIRE(bitwise_equal(In<T, 1>(select(select(y, b), 0)),
                              In<T, 1>(select(select(whole, b), cache.length(b) - 1))));
      }
    }
  };
  for (const ScoreOptions<T>& score : scores.all()) check(score, {});
  const auto hiding = mask_function(scattered);
  check({}, hiding);
}

}  // namespace nn_kv_cache_scores
