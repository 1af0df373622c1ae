// Caches of 16 bits: half the memory, and the bits that their numbers give as floats.
#include <cmath>
#include <limits>

#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"
#include "support/poisoned_memory.hpp"

namespace nn_kv_cache_stored {

using namespace headwise_tests;

namespace {

template <class U>
constexpr StoredAs stored = std::same_as<U, BFloat16> ? StoredAs::bf16 : StoredAs::fp16;
/// Half of what the last bit is worth beside 1.
template <class U>
constexpr float half_bit = std::same_as<U, BFloat16> ? 0x1p-8f : 0x1p-11f;

/// The numbers as they are kept, as floats again.
template <class U>
Tensor4<float> rounded(const Tensor4<float>& x) {
  Tensor4<float> y(x.shape());
  for (Index n = 0; n < x.size(); ++n) {
    y.data()[n] = convert_float<float>(convert_float<U>(x.data()[n]));
  }
  return y;
}

MultiHeadAttention<float> drawn_module() {
  MultiHeadAttention<float> module({.d_model = 32,
                                    .num_heads = 4,
                                    .num_kv_heads = 2,
                                    .d_head = 16,
                                    .d_value = 12,
                                    .qk_norm = true,
                                    .rotary = RotaryOptions{}});
  draw_all(module.parameters(), 3);
  return module;
}

/// All of x, step by step, of at most so many tokens.
Tensor3<float> decode(const MultiHeadAttention<float>& module, const Tensor3<float>& x,
                      KeyValueCache<float>& cache, std::vector<Index> steps) {
  Tensor3<float> y(x.shape());
  for (std::size_t n = 0; cache.length() < x.extent(1); ++n) {
    const Index i = cache.length(), m = std::min<Index>(steps[n % steps.size()], x.extent(1) - i);
    copy(In<float, 3>(multi_head_attention_step(module, slice(x, 1, i, m), cache)),
         slice(y, 1, i, m));
  }
  return y;
}

}  // namespace

TEMPLATE_TEST_CASE("a cache of 16 bits holds what was appended, rounded once", "[stored]", BFloat16,
                   Float16) {
  const Index B = 2, G = 2, S = 70, d = 13, dv = 16;
  const auto k = random_tensor<float>(Shape{B, G, S, d}, 1);
  const auto v = random_tensor<float>(Shape{B, S, G, dv}, 2);  // heads in the rows of tokens
  const In<float, 4> by_token(v.data(), Shape{B, G, S, dv}, Shape<4>{S * G * dv, dv, G * dv, 1});
  PoisonedMemory memory;
  KeyValueCache<float> cache({.batch_size = B,
                              .num_kv_heads = G,
                              .capacity = S + 5,
                              .d_head = d,
                              .d_value = dv,
                              .stored_as = stored<TestType>},
                             &memory);
  cache.append(slice(k, 2, 0, 9), slice(by_token, 2, 0, 9));
  cache.append(slice(k, 2, 9, S - 9), slice(by_token, 2, 9, S - 9));
  Index wrong = 0;
  for (Index b = 0; b < B; ++b) {
    for (Index g = 0; g < G; ++g) {
      for (Index s = 0; s < S; ++s) {
        for (Index c = 0; c < d; ++c) {
          if (cache.k<TestType>()(b, g, s, c) != convert_float<TestType>(k(b, g, s, c))) ++wrong;
        }
        for (Index c = 0; c < dv; ++c) {
          if (cache.v<TestType>(b)(0, g, s, c) != convert_float<TestType>(by_token(b, g, s, c))) {
            ++wrong;
          }
        }
      }
    }
  }
  CHECK(wrong == 0);

  const auto q = random_tensor<float>(Shape{B, Index{4}, Index{3}, d}, 3);
  Tensor4<float> o({B, 4, 3, dv}), expected(o.shape());
  Tensor4<float> dense_v(Shape{B, G, S, dv});
  copy(by_token, Out<float, 4>(dense_v));
  flash_attention_forward(q, cache.k<TestType>(), cache.v<TestType>(), {.mask = causal}, o, {});
  flash_attention_forward(q, rounded<TestType>(k), rounded<TestType>(dense_v), {.mask = causal},
                          expected, {});
  CHECK(bitwise_equal(o, expected));
}

TEMPLATE_TEST_CASE("a module decodes from a cache of 16 bits with the same bits for any steps",
                   "[stored]", BFloat16, Float16) {
  const auto module = drawn_module();
  const Index L = 300;
  const auto x = random_tensor<float>(Shape{Index{2}, L, Index{32}}, 5);
  const auto wide = module.forward(x, {.mask = causal});
  for (const Index window : {0, 100}) {
    const KeyValueCacheOptions options{.batch_size = 2,
                                       .capacity = window == 0 ? L : 0,
                                       .window = window,
                                       .first_keys = window == 0 ? 0 : 4,
                                       .stored_as = stored<TestType>};
    PoisonedMemory memory;
    auto cache = key_value_cache(module, options, &memory);
    const auto one_by_one = decode(module, x, cache, {1});
    cache.clear();
    CHECK(bitwise_equal(decode(module, x, cache, {64}), one_by_one));
    cache.clear();
    CHECK(bitwise_equal(decode(module, x, cache, {3, 1, 17}), one_by_one));
    if (window != 0) continue;
    // What is rounded is not lost: outputs are some of its last bits apart.
    CHECK_FALSE(bitwise_equal(one_by_one, wide).ok);
    CHECK(close_to(one_by_one, wide, 8.0 * double{half_bit<TestType>}));
  }
}

TEMPLATE_TEST_CASE("a windowed cache of 16 bits has the bits of the whole under a mask", "[stored]",
                   BFloat16, Float16) {
  const Index L = 900, window = 150, first = 3, d = 16;
  const auto q = random_tensor<float>(Shape{Index{1}, Index{1}, L, d}, 7),
             k = random_tensor<float>(q.shape(), 8), v = random_tensor<float>(q.shape(), 9);
  Tensor4<float> whole(q.shape()), o(q.shape());
  const AttentionOptions<float> options{
      .mask = {causal, Mask::window(window).keeping_first(first)}};
  flash_attention_forward(q, rounded<TestType>(k), rounded<TestType>(v), options, whole, {});
  KeyValueCache<float> cache(
      {.d_head = d, .window = window, .first_keys = first, .stored_as = stored<TestType>});
  for (Index i = 0; i < L; ++i) {
    cache.append(slice(k, 2, i, 1), slice(v, 2, i, 1));
    flash_attention_forward(In<float, 4>(slice(q, 2, i, 1)), cache.k<TestType>(),
                            cache.v<TestType>(), options, slice(o, 2, i, 1), {});
  }
  CHECK(cache.options().capacity < L);
  CHECK(bitwise_equal(o, whole));
}

TEST_CASE("a decoder writes from caches of 16 bits, a window and lengths of their own",
          "[stored]") {
  const TransformerDecoder<float> decoder(
      {.vocabulary = 11,
       .max_length = 8,
       .position_vectors = false,
       .num_blocks = 2,
       .block = {.d_model = 16, .num_heads = 2, .rotary = RotaryOptions{}}});
  const auto logits_of = [&](StoredAs as, std::vector<Index> steps) {
    auto state = decoder.state({.batch_size = 2, .window = 40, .stored_as = as});
    Tensor<float, 2> logits;
    Index at = 0;
    for (std::size_t n = 0; at < 200; ++n) {
      const Index m = std::min<Index>(steps[n % steps.size()], 200 - at);
      Tensor<Index, 2> tokens({2, m});
      for (Index b = 0; b < 2; ++b) {
        for (Index i = 0; i < m; ++i) tokens(b, i) = ((at + i) * (at + i + 3) + b) % 11;
      }
      logits = decoder.step(tokens, state);
      at += m;
    }
    CHECK(state.length() == 200);
    return logits;
  };
  const auto wide = logits_of(StoredAs::same, {1});
  const auto narrow = logits_of(StoredAs::bf16, {1});
  CHECK(close_to(narrow, wide, 0.05));
  CHECK_FALSE(bitwise_equal(narrow, wide).ok);
  CHECK(bitwise_equal(logits_of(StoredAs::bf16, {5, 2}), narrow));
}

}  // namespace nn_kv_cache_stored
