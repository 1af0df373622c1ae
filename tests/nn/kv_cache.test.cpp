// Decoding from a cache, whose memory holds NaN wherever nothing was written.
#include "headwise/nn/kv_cache.hpp"

#include <vector>

#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/poisoned_memory.hpp"

namespace nn_kv_cache {

using namespace headwise;
using headwise_tests::PoisonedMemory;

namespace {

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// How a sequence of length L is cut into steps.
std::vector<std::vector<Index>> cuts_of(Index L) {
  return {std::vector<Index>(static_cast<std::size_t>(L), 1),
          {L},
          {5, 1, L - 6},
          {1, L - 1},
          {L / 2, 0, L - L / 2}};
}

template <class T>
void check_flash_attention(Index L) {
  const Index B = 2, H = 4, G = 2, d = 24, dv = 17;
  const auto q = normal<T>(Shape{B, H, L, d}, 1), k = normal<T>(Shape{B, G, L, d}, 2),
             v = normal<T>(Shape{B, G, L, dv}, 3);
  const AttentionOptions<T> options{.mask = causal};
  Tensor4<T> whole(Shape{B, H, L, dv});
  flash_attention_forward(q, k, v, options, whole, {});
  PoisonedMemory memory;
  KeyValueCache<T> cache(
      {.batch_size = B, .num_kv_heads = G, .capacity = L + 3, .d_head = d, .d_value = dv}, &memory);
  for (const auto& cut : cuts_of(L)) {
    cache.clear();
    Tensor4<T> o(whole.shape());
    for (const Index n : cut) {
      const Index at = cache.length();
      cache.append(slice(k, 2, at, n), slice(v, 2, at, n));
      REQUIRE(cache.k().shape() == Shape{B, G, at + n, d});
      REQUIRE(cache.v().shape() == Shape{B, G, at + n, dv});
      flash_attention_forward(In<T, 4>(slice(q, 2, at, n)), cache.k(), cache.v(), options,
                              slice(o, 2, at, n), {});
    }
    CAPTURE(sizeof(T), L, cut);
    CHECK(bitwise_equal(o, whole));
  }
}

const std::vector<MultiHeadAttentionOptions> modules = {
    {.d_model = 32, .num_heads = 4},
    {.d_model = 32, .num_heads = 4, .num_kv_heads = 1, .q_bias = true, .layer_norm = true},
    {.d_model = 30,
     .num_heads = 3,
     .d_head = 7,
     .d_value = 5,
     .q_bias = true,
     .k_bias = true,
     .v_bias = true,
     .o_bias = false},
    {.d_model = 32,
     .num_heads = 4,
     .num_kv_heads = 2,
     .qk_norm = true,
     .rotary = RotaryOptions{.width = 6, .pairing = RotaryPairing::interleaved, .offset = 3}},
    {.d_model = 32, .num_heads = 2, .rotary = RotaryOptions{.theta = 100}}};

}  // namespace

TEMPLATE_TEST_CASE(
    "flash attention over a cache has the bits of the whole sequence, for any cut into steps",
    "[nn]", float, double) {
  for (Index L : {7, 64, 150}) check_flash_attention<TestType>(L);
}

TEMPLATE_TEST_CASE("a module decodes from a cache with the bits of the whole sequence", "[nn]",
                   float, double) {
  using T = TestType;
  const Index B = 2, L = 37;
  ThreadPool pool(3);
  for (const auto& options : modules) {
    MultiHeadAttention<T> attention(options);
    attention.parameters().for_each([](const std::string& name, auto view) {
      if constexpr (decltype(view)::rank == 1) {  // biases of their own, a gain that is none
        for (Index n = 0; n < view.extent(0); ++n) view(n) += T(0.01) * T(n + Index(name.size()));
      }
    });
    const auto x = normal<T>(Shape{B, L, options.d_model}, 4);
    const auto whole = attention.forward(x, {.mask = causal});
    PoisonedMemory memory;
    auto cache = key_value_cache(attention, B, L, &memory);
    for (const auto& cut : cuts_of(L)) {
      cache.clear();
      Index at = 0;
      for (const Index n : cut) {
        const Context context = n % 2 == 0 ? Context{.executor = pool} : Context{};
        const auto y = multi_head_attention_step(attention, slice(x, 1, at, n), cache, context);
        CAPTURE(sizeof(T), options.num_heads, at, n);
        CHECK(bitwise_equal(In<T, 3>(y), In<T, 3>(slice(whole, 1, at, n))));
        at += n;
      }
      CHECK(cache.length() == L);
      CHECK(cache.room() == 0);
    }
  }
}

TEST_CASE("after a rollback the tokens that are forgotten change no bit", "[nn]") {
  const MultiHeadAttention<float> attention(modules[1]);
  const auto x = normal<float>(Shape{1, 20, 32}, 5);
  auto other = normal<float>(Shape{1, 8, 32}, 6);
  other(0, 3, 3) = std::numeric_limits<float>::quiet_NaN();
  const auto whole = attention.forward(x, {.mask = causal});
  PoisonedMemory memory;
  auto cache = key_value_cache(attention, 1, 22, &memory);
  (void)multi_head_attention_step(attention, slice(x, 1, 0, 12), cache);
  (void)multi_head_attention_step(attention, other, cache);  // a draft that is rejected
  cache.rollback(8);
  CHECK(cache.length() == 12);
  const auto y = multi_head_attention_step(attention, slice(x, 1, 12, 8), cache);
  CHECK(bitwise_equal(In<float, 3>(y), In<float, 3>(slice(whole, 1, 12, 8))));
}

TEST_CASE("a copy of a cache goes a way of its own, and one that was moved from has no room",
          "[nn]") {
  const MultiHeadAttention<double> attention(modules[0]);
  const auto x = normal<double>(Shape{2, 9, 32}, 7);
  const auto whole = attention.forward(x, {.mask = causal});
  auto cache = key_value_cache(attention, 2, 9);
  (void)multi_head_attention_step(attention, slice(x, 1, 0, 8), cache);
  auto beam = cache;
  (void)multi_head_attention_step(attention, slice(x, 1, 0, 1), beam);
  CHECK(beam.length() == 9);
  auto moved = std::move(cache);
  const auto y = multi_head_attention_step(attention, slice(x, 1, 8, 1), moved);
  CHECK(bitwise_equal(In<double, 3>(y), In<double, 3>(slice(whole, 1, 8, 1))));
  CHECK(cache.length() == 0);  // NOLINT: of what was moved from
  CHECK(cache.room() == 0);
  CHECK(cache.k().size() == 0);
  CHECK_THROWS_AS(cache.rollback(1), ArgumentError);
  cache.rollback(0);
  const Tensor4<double> no_tokens({1, 1, 0, 0});
  cache.append(no_tokens, no_tokens);
  CHECK(cache.length() == 0);
}

TEST_CASE("a step that runs out of memory leaves the cache as it was", "[nn]") {
  const MultiHeadAttention<double> attention(modules[1]);
  const auto x = normal<double>(Shape{1, 6, 32}, 8);
  const auto whole = attention.forward(x, {.mask = causal});
  auto cache = key_value_cache(attention, 1, 6);
  (void)multi_head_attention_step(attention, slice(x, 1, 0, 4), cache);
  PoisonedMemory memory;
  int failures = 0;
  for (int allocations = 0;; ++allocations) {
    memory.left = allocations;
    try {
      const auto y =
          multi_head_attention_step(attention, slice(x, 1, 4, 2), cache, {.memory = &memory});
      CHECK(bitwise_equal(In<double, 3>(y), In<double, 3>(slice(whole, 1, 4, 2))));
      break;
    } catch (const std::bad_alloc&) {
      ++failures;
      CHECK(cache.length() == 4);
    }
  }
  CHECK(failures > 5);
  CHECK(cache.length() == 6);
}

}  // namespace nn_kv_cache
