// Decoding with masks of pairs and biases, their rows those of the new tokens.
#include <algorithm>
#include <limits>

#include "headwise/nn/transformer_block_step.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/parameter_values.hpp"
#include "support/poisoned_memory.hpp"

namespace nn_kv_cache_masks {

using namespace headwise_tests;

namespace {

constexpr Index B = 3, H = 4, L = 150, D = 12;

template <class T>
MultiHeadAttention<T> drawn_module() {
  MultiHeadAttention<T> module({.d_model = D,
                                .num_heads = H,
                                .num_kv_heads = 2,
                                .d_head = 6,
                                .d_value = 5,
                                .layer_norm = true,
                                .rotary = RotaryOptions{}});
  draw_all(module.parameters(), 3);
  return module;
}

/// Masks of the whole sequence; axes of extent 1 stand for all.
template <class T>
struct Masks {
  Tensor<bool, 4> keep, drop;  // [B, 1, L, L], [1, H, 1, L]
  Tensor<bool, 2> keys;        // [B, L]
  Tensor<T, 4> bias;           // [B, H, L, L]
  Tensor<T, 4> of_queries;     // [1, 1, L, 1]

  Masks()
      : keep({B, 1, L, L}),
        drop({1, H, 1, L}),
        keys({B, L}),
        bias(random_tensor<T>(Shape{B, H, L, L}, 4)),
        of_queries(random_tensor<T>(Shape{Index{1}, Index{1}, L, Index{1}}, 5)) {
    for_each_index(keep.shape(), [&](const Shape<4>& at) {
      keep(at) = at[3] == at[2] || (at[0] * 5 + at[2] * 7 + at[3] * 11) % 17 % 3 != 0;
    });
    for_each_index(drop.shape(),
                   [&](const Shape<4>& at) { drop(at) = (at[1] * 3 + at[3]) % 19 == 0; });
    for_each_index(keys.shape(), [&](const Shape<2>& at) { keys(at) = at[1] >= at[0] * 4; });
  }
  AttentionMask<T> whole() const {
    return {causal,           Mask::keep(keep),      Mask::drop(drop), Mask::keep_keys(keys),
            Mask::bias(bias), Mask::bias(of_queries)};
  }
};

/// Those of n new tokens of each sequence, of which sequence b has lengths[b] and counts[b] more;
/// what lies behind hides nothing, and is not to be read: a bias holds NaN there.
template <class T>
struct StepMasks {
  Tensor<bool, 4> keep, drop;
  Tensor<bool, 2> keys;
  Tensor<T, 4> bias, of_queries;

  StepMasks(const Masks<T>& all, const KeyValueCache<T>& cache, const std::vector<Index>& counts,
            Index n)
      : keep({B, 1, n, cache.length() + n}),
        drop({1, H, 1, cache.length() + n}),
        keys({B, cache.length() + n}),
        bias({B, H, n, cache.length() + n}),
        of_queries({B, 1, n, 1}) {
    fill(Out<T, 4>(bias), std::numeric_limits<T>::quiet_NaN());
    fill(Out<T, 4>(of_queries), std::numeric_limits<T>::quiet_NaN());
    for (Index b = 0; b < B; ++b) {
      const Index held = cache.length(b) + counts[static_cast<std::size_t>(b)];
      for (Index i = cache.length(b); i < held; ++i) {
        const Index row = i - cache.length(b);
        of_queries(b, 0, row, 0) = all.of_queries(0, 0, i, 0);
        for (Index j = 0; j < held; ++j) {
          keep(b, 0, row, j) = all.keep(b, 0, i, j);
          for (Index h = 0; h < H; ++h) bias(b, h, row, j) = all.bias(b, h, i, j);
        }
      }
      for (Index j = 0; j < held; ++j) keys(b, j) = all.keys(b, j);
    }
    for_each_index(drop.shape(), [&](const Shape<4>& at) {
      drop(at) = all.drop(0, at[1], 0, std::min<Index>(at[3], L - 1));
    });
  }
  AttentionMask<T> mask() const {
    return {Mask::keep(keep), Mask::drop(drop), Mask::keep_keys(keys), Mask::bias(bias),
            Mask::bias(of_queries)};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("steps with masks of pairs have the bits of the whole sequence, for any lengths",
                   "[nn]", float, double) {
  using T = TestType;
  const auto module = drawn_module<T>();
  const Masks<T> masks;
  const auto x = random_tensor<T>(Shape{B, L, D}, 1);
  const auto whole = module.forward(x, {.mask = masks.whole()});
  ThreadPool pool(GENERATE(1, 3));
  PoisonedMemory memory;
  Draw draw(7);
  for (const bool alike : {true, false}) {
    for (const Index most : {Index{1}, Index{40}}) {
      auto cache = key_value_cache(module, B, L, &memory);
      while (cache.length() < L) {
        const Index n = std::min<Index>(most, L - cache.length());
        std::vector<Index> counts;
        for (Index b = 0; b < B; ++b) counts.push_back(alike ? n : draw.between(b == 0, n));
        Tensor3<T> step({B, n, D});
        fill(Out<T, 3>(step), std::numeric_limits<T>::quiet_NaN());
        for (Index b = 0; b < B; ++b) {
          const Index m = counts[static_cast<std::size_t>(b)];
          copy(In<T, 2>(slice(select(x, b), 0, cache.length(b), m)),
               slice(select(step, b), 0, 0, m));
        }
        const StepMasks<T> of_step(masks, cache, counts, n);
        const MultiHeadAttentionStepCall<T> call{.counts = counts, .mask = of_step.mask()};
        const auto y = multi_head_attention_step(module, step, call, cache, {.executor = pool});
        for (Index b = 0; b < B; ++b) {
          const Index m = counts[static_cast<std::size_t>(b)];
          CAPTURE(b, m, cache.length(b));
          REQUIRE(bitwise_equal(In<T, 2>(slice(select(y, b), 0, 0, m)),
                                In<T, 2>(slice(select(whole, b), 0, cache.length(b) - m, m))));
        }
      }
    }
  }
}

TEST_CASE("drafts that do not see each other decode beside each other", "[nn]") {
  const auto module = drawn_module<float>();
  const auto x = random_tensor<float>(Shape{Index{1}, Index{12}, D}, 1);
  auto cache = key_value_cache(module, 1, 20);
  (void)multi_head_attention_step(module, slice(x, 1, 0, 9), cache);
  // Tokens 9, 10 and 11; none of the last two sees the other, both see the first.
  Tensor2<bool> tree({3, 12});
  fill(Out<bool, 2>(tree), true);
  tree(2, 10) = false;
  const auto y =
      multi_head_attention_step(module, slice(x, 1, 9, 3), {.mask = Mask::keep(tree)}, cache);
  const auto first = module.forward(slice(x, 1, 0, 11), {.mask = causal});
  CHECK(bitwise_equal(In<float, 3>(slice(y, 1, 0, 2)), In<float, 3>(slice(first, 1, 9, 2))));
  // The last without the one before it, where both stand.
  Tensor2<bool> hidden({12, 12});
  fill(Out<bool, 2>(hidden), true);
  hidden(11, 10) = false;
  const auto last = module.forward(x, {.mask = {causal, Mask::keep(hidden)}});
  CHECK(bitwise_equal(In<float, 3>(slice(y, 1, 2, 1)), In<float, 3>(slice(last, 1, 11, 1))));
}

TEST_CASE("a block's steps take masks of pairs", "[nn]") {
  TransformerBlock<float> block({.d_model = D, .num_heads = H});
  draw_all(block.parameters(), 2);
  const Masks<float> masks;
  const auto x = random_tensor<float>(Shape{B, L, D}, 1);
  const auto whole = block.forward(x, {.mask = masks.whole()});
  auto cache = key_value_cache<float>(block.options().attention(), B, L);
  while (cache.length() < L) {
    const Index n = std::min<Index>(cache.length() == 0 ? 70 : 1, L - cache.length());
    const StepMasks<float> of_step(masks, cache, std::vector<Index>(std::size_t{B}, n), n);
    const Index i = cache.length();
    const auto y =
        transformer_block_step(block, slice(x, 1, i, n), {.mask = of_step.mask()}, cache);
    REQUIRE(bitwise_equal(In<float, 3>(y), In<float, 3>(slice(whole, 1, i, n))));
  }
}

}  // namespace nn_kv_cache_masks
