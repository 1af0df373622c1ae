// Modules of floats whose inputs and outputs have 16 bits: what they give of those numbers as
// floats, rounded to the nearest, to the bit. Their caches view what was given.
#include "headwise/nn/linear.hpp"
#include "headwise/nn/rms_norm.hpp"
#include "headwise/nn/stored_weights.hpp"
#include "headwise/nn/transformer_block_step.hpp"
#include "headwise/ops/bf16_products.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/converted.hpp"
#include "support/failing_memory.hpp"
#include "support/parameter_values.hpp"

namespace nn_narrow_ends {

using namespace headwise_tests;

namespace {

/// Numbers of U, and the same as floats.
template <class U, int R>
struct Both {
  Tensor<U, R> narrow;
  Tensor<float, R> wide;
  Both(const Shape<R>& shape, std::uint32_t seed)
      : narrow(converted<U>(random_tensor<float>(shape, seed))), wide(converted<float>(narrow)) {}
};

template <class U, int R>
void check_rounded(const Tensor<U, R>& x, const Tensor<float, R>& expected) {
  CHECK(x.shape() == expected.shape());
  const auto rounded = converted<U>(expected);
  CHECK(std::equal(x.begin(), x.end(), rounded.begin(), rounded.end()));
}

/// y, dx and gradients of a module, forward and backward over `call...`, of 16 bits and of floats.
template <class Module, class U, int R, class... Call>
void check_module(const Module& module, const Both<U, R>& x, const Both<U, R>& dy,
                  const Context& context, const Call&... call) {
  check_rounded(module.forward(x.narrow, call..., context),
                module.forward(x.wide, call..., context));
  typename Module::Cache cache, expected_cache;
  auto gradients = module.zero_gradients(), expected = module.zero_gradients();
  check_rounded(module.forward(x.narrow, call..., cache, context),
                module.forward(x.wide, call..., expected_cache, context));
  const auto dx = module.backward(dy.wide, expected_cache, expected, context);
  check_rounded(module.backward(dy.narrow, cache, gradients, context), dx);
  CHECK(same_bits(values_of<float>(gradients), values_of<float>(expected)));
  // What the cache views and what backward is given are told apart.
  CHECK(bitwise_equal(module.backward(dy.wide, cache, gradients, context), dx));
  check_rounded(module.backward(dy.narrow, expected_cache, gradients, context), dx);
}

std::vector<MultiHeadAttentionOptions> self_attentions() {
  return {{.d_model = 24, .num_heads = 4},
          {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .d_head = 16, .d_value = 5},
          {.d_model = 24,
           .num_heads = 3,
           .q_bias = true,
           .layer_norm = true,
           .qk_norm = true,
           .rotary = RotaryOptions{}}};
}

template <class Module>
Module drawn(Module module) {
  draw_all(module.parameters(), 3);
  return module;
}

}  // namespace

TEMPLATE_TEST_CASE("layers of inputs of 16 bits are those of their numbers as floats, rounded",
                   "[narrow_ends]", BFloat16, Float16) {
  ThreadPool threads(3);
  const Index N = GENERATE(0, 1, 9, 900);
  const Both<TestType, 2> x({N, 20}, 1), dy({N, 20}, 2), of_y({N, 13}, 3);
  for (const Context& context : {Context(), Context{.executor = threads}}) {
    const auto linear = drawn(Linear<float>(20, 13));
    Linear<float>::Cache cache, expected_cache;
    auto gradients = linear.zero_gradients(), expected = linear.zero_gradients();
    check_rounded(linear.forward(x.narrow, context), linear.forward(x.wide, context));
    check_rounded(linear.forward(x.narrow, cache, context),
                  linear.forward(x.wide, expected_cache, context));
    check_rounded(linear.backward(of_y.narrow, cache, gradients, context),
                  linear.backward(of_y.wide, expected_cache, expected, context));
    CHECK(same_bits(values_of<float>(gradients), values_of<float>(expected)));

    check_module(drawn(Linear<float>(20, 20)), x, dy, context);
    check_module(drawn(LayerNorm<float>(20)), x, dy, context);
    check_module(drawn(RMSNorm<float>(20)), x, dy, context);
    FeedForwardCall call{.hidden_dropout = {.rate = 0.2, .seed = 1},
                         .output_dropout = {.rate = 0.1, .seed = 2}};
    for (const bool gated : {false, true}) {
      const auto feed_forward =
          drawn(FeedForward<float>({.d_model = 20, .d_hidden = 33, .gated = gated}));
      check_module(feed_forward, x, dy, context, call);
      check_rounded(feed_forward.forward(x.narrow), feed_forward.forward(x.wide));
    }
  }
}

TEMPLATE_TEST_CASE("attention of inputs of 16 bits is that of their numbers as floats, rounded",
                   "[narrow_ends]", BFloat16, Float16) {
  ThreadPool threads(3);
  const Both<TestType, 3> x({2, 70, 24}, 1), dy({2, 70, 24}, 2);
  for (const auto& options : self_attentions()) {
    const auto attention = drawn(MultiHeadAttention<float>(options));
    MultiHeadAttentionCall<float> call{.mask = causal};
    call.weight_dropout = {.rate = 0.1, .seed = 4};
    call.output_dropout = {.rate = 0.1, .seed = 5};
    for (const Path path : {Path::flash, Path::materialized}) {
      call.path = path;
      check_module(attention, x, dy, {}, call);
      check_module(attention, x, dy, {.executor = threads}, call);
    }
    call.path = Path::flash;
    check_module(attention, x, dy, {.products = bf16_products()}, call);
    check_module(attention, x, dy, {.saved = saved_in<BFloat16>()}, call);
    check_module(attention, x, dy, {.saved = saved_in<Float16>()}, call);
    check_rounded(attention.forward(x.narrow), attention.forward(x.wide));
    check_rounded(store_weights_as<BFloat16>(attention).forward(x.narrow, call),
                  store_weights_as<BFloat16>(attention).forward(x.wide, call));
  }
}

TEMPLATE_TEST_CASE("packed sequences and inputs with gaps of 16 bits are those of their numbers",
                   "[narrow_ends]", BFloat16, Float16) {
  const auto attention = drawn(MultiHeadAttention<float>({.d_model = 24, .num_heads = 4}));
  const std::vector<Index> starts = {0, 12, 12, 40, 41};
  MultiHeadAttentionCall<float> call{.mask = causal};
  call.query_starts = starts;
  check_module(attention, Both<TestType, 3>({1, 41, 24}, 1), Both<TestType, 3>({1, 41, 24}, 2), {},
               call);

  // Rows at no common distance, rows that run down, and elements apart.
  const Both<TestType, 3> whole({4, 9, 48}, 3), dy({2, 5, 24}, 4);
  const auto parts = [](const auto& x) {
    using V = std::remove_cvref_t<decltype(x)>;
    using View = In<typename V::value_type, 3>;
    const auto s = x.strides();
    return std::vector<View>{{x.data(), {2, 5, 24}, s},
                             {x.data() + 8 * s[1], {2, 5, 24}, {s[0], -s[1], 1}},
                             {x.data(), {2, 5, 24}, {s[0], s[1], 2}},
                             {x.data(), {2, 5, 24}, {0, s[1], 1}}};
  };
  const auto narrow = parts(whole.narrow);
  const auto wide = parts(whole.wide);
  for (std::size_t n = 0; n < narrow.size(); ++n) {
    MultiHeadAttentionCache<float> cache, expected_cache;
    auto gradients = attention.zero_gradients(), expected = attention.zero_gradients();
    check_rounded(attention.forward(narrow[n], {.mask = causal}, cache),
                  attention.forward(wide[n], {.mask = causal}, expected_cache));
    check_rounded(attention.backward(narrow[n], cache, gradients),
                  attention.backward(wide[n], expected_cache, expected));
    CHECK(same_bits(values_of<float>(gradients), values_of<float>(expected)));
  }
}

TEMPLATE_TEST_CASE("cross-attention of inputs of 16 bits is that of their numbers, rounded",
                   "[narrow_ends]", BFloat16, Float16) {
  const auto attention =
      drawn(MultiHeadAttention<float>({.d_model = 24, .num_heads = 4, .kdim = 10, .vdim = 7}));
  const Both<TestType, 3> q({2, 9, 24}, 1), k({2, 13, 10}, 2), v({2, 13, 7}, 3), dy({2, 9, 24}, 4);
  check_rounded(attention.forward(q.narrow, k.narrow, v.narrow),
                attention.forward(q.wide, k.wide, v.wide));
  for (const Context& context : {Context(), Context{.saved = saved_in<BFloat16>()}}) {
    MultiHeadAttentionCache<float> cache, expected_cache;
    auto gradients = attention.zero_gradients(), expected = attention.zero_gradients();
    check_rounded(
        attention.forward(q.narrow, k.narrow, v.narrow, {.mask = causal}, cache, context),
        attention.forward(q.wide, k.wide, v.wide, {.mask = causal}, expected_cache, context));
    const auto d = attention.backward_cross(dy.narrow, cache, gradients);
    const auto d_expected = attention.backward_cross(dy.wide, expected_cache, expected);
    check_rounded(d.query, d_expected.query);
    check_rounded(d.key, d_expected.key);
    check_rounded(d.value, d_expected.value);
    CHECK(same_bits(values_of<float>(gradients), values_of<float>(expected)));
  }
}

TEMPLATE_TEST_CASE("a block of inputs of 16 bits is that of their numbers as floats, rounded",
                   "[narrow_ends]", BFloat16, Float16) {
  const Both<TestType, 3> x({2, 30, 24}, 1), dy({2, 30, 24}, 2);
  for (const bool norm_first : {false, true}) {
    for (const NormKind norm : {NormKind::layer_norm, NormKind::rms_norm}) {
      const auto block = drawn(TransformerBlock<float>(
          {.d_model = 24, .num_heads = 4, .norm_first = norm_first, .norm = norm}));
      TransformerBlockCall<float> call;
      call.mask = {causal};
      call.attention_dropout = {.rate = 0.2, .seed = 1};
      for (const Saved& saved : {Saved(), saved_in<BFloat16>(), saved_in<Float16>()}) {
        check_module(block, x, dy, {.saved = saved}, call);
      }
      check_rounded(block.forward(x.narrow), block.forward(x.wide));
    }
  }
}

TEMPLATE_TEST_CASE("steps of 16 bits over a cache have the bits of the whole sequence",
                   "[narrow_ends]", BFloat16, Float16) {
  const Both<TestType, 3> x({2, 12, 24}, 1);
  const auto attention = drawn(MultiHeadAttention<float>(
      {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .rotary = RotaryOptions{}}));
  const auto block = drawn(TransformerBlock<float>({.d_model = 24, .num_heads = 4}));
  const auto y = attention.forward(x.narrow, {.mask = causal});
  TransformerBlockCall<float> call;
  call.mask = {causal};
  const auto of_block = block.forward(x.narrow, call);
  auto cache = key_value_cache<float>(attention, 2, 12);
  auto block_cache = key_value_cache<float>(block.options().attention(), 2, 12);
  for (Index begin = 0; const Index n : {5, 1, 1, 4, 1}) {
    const auto part = [&](const auto& of) {
      return contiguous(In<TestType, 3>(slice(of, 1, begin, n)));
    };
    const auto some = slice(In<TestType, 3>(x.narrow), 1, begin, n);
    const auto step = multi_head_attention_step(attention, some, cache);
    const auto block_step = transformer_block_step(block, some, block_cache);
    for (const auto& [got, expected] : {std::pair(&step, part(y)), {&block_step, part(of_block)}}) {
      CHECK(std::equal(got->begin(), got->end(), expected.begin(), expected.end()));
    }
    begin += n;
  }
  CHECK(cache.length() == 12);
}

TEMPLATE_TEST_CASE("a cache views inputs of 16 bits and keeps no copy of them", "[narrow_ends]",
                   BFloat16, Float16) {
  const Both<TestType, 3> x({2, 30, 24}, 1);
  const auto kept = [&](const auto& module, const auto& input) {
    MemoryTally memory;
    typename std::remove_cvref_t<decltype(module)>::Cache cache;
    {
      const auto y = module.forward(input, {}, cache, {.memory = &memory});
      CHECK(memory.live() > 0);
    }
    return memory.live();
  };
  const MultiHeadAttention<float> attention({.d_model = 24, .num_heads = 4});
  CHECK(kept(attention, x.narrow) == kept(attention, x.wide));
  for (const bool norm_first : {false, true}) {
    const TransformerBlock<float> block({.d_model = 24, .num_heads = 4, .norm_first = norm_first});
    CHECK(kept(block, x.narrow) == kept(block, x.wide));
  }
  const FeedForward<float> feed_forward({.d_model = 24, .d_hidden = 33});
  CHECK(kept(feed_forward, merge_rows(In<TestType, 3>(x.narrow))) ==
        kept(feed_forward, merge_rows(In<float, 3>(x.wide))));
}

TEMPLATE_TEST_CASE("modules of 16-bit inputs that run out of memory leave all as it was",
                   "[narrow_ends]", BFloat16, Float16) {
  const bool norm_first = GENERATE(false, true);
  const TransformerBlock<float> block({.d_model = 24, .num_heads = 4, .norm_first = norm_first});
  const Both<TestType, 3> x({2, 5, 24}, 8), other({1, 4, 24}, 9);
  TransformerBlockCache<float> cache;
  auto gradients = block.zero_gradients();
  (void)block.forward(x.narrow, {}, cache);
  const auto dx = block.backward(x.narrow, cache, gradients);
  const auto once = values_of<float>(gradients);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)block.backward(x.narrow, cache, gradients, {.memory = memory});
            },
            [&] { return same_bits(values_of<float>(gradients), once); }) >= 16);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)block.forward(other.narrow, {}, cache, {.memory = memory});
              cache = {};  // before its memory goes
            },
            [&] {
              auto unused = block.zero_gradients();
              const auto again = block.backward(x.narrow, cache, unused);
              return std::equal(again.begin(), again.end(), dx.begin(), dx.end());
            }) >= 12);

  const MultiHeadAttention<float> attention(24, 4);
  auto steps = key_value_cache<float>(attention, 2, 8);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)multi_head_attention_step(attention, x.narrow, steps, {.memory = memory});
            },
            [&] { return steps.length() == 0; }) >= 3);
  CHECK(steps.length() == 5);
}

}  // namespace nn_narrow_ends
