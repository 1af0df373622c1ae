// Queries and keys of a module that are some of many, and are told where they stand: they turn as
// in the whole.
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/parameter_values.hpp"

namespace nn_multi_head_attention_origin {

using namespace headwise_tests;

namespace {

MultiHeadAttention<double> drawn(const RotaryOptions& rotary, bool qk_norm = false,
                                 Index kdim = 10) {
  MultiHeadAttention<double> module({.d_model = 10,
                                     .num_heads = 4,
                                     .num_kv_heads = 2,
                                     .d_head = 6,
                                     .d_value = 3,
                                     .kdim = kdim,
                                     .q_bias = true,
                                     .qk_norm = qk_norm,
                                     .rotary = rotary});
  draw_all(module.parameters(), 5);
  return module;
}

}  // namespace

TEST_CASE("queries that are told where they stand turn as in the whole, to the bit", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index kdim = GENERATE(10, 4);
  const auto module = drawn({.offset = 3}, true, kdim);
  const auto x = random_tensor<double>(Shape{2, 9, 10}, 14),
             dy = random_tensor<double>(x.shape(), 15);
  const auto key = random_tensor<double>(Shape{2, 7, kdim}, 16);
  const auto memory = slice(key, 1, 2, 5);  // keys that are told likewise
  const auto value = random_tensor<double>(Shape{2, 5, 10}, 17);
  MultiHeadAttentionCall<double> call{.path = path, .origin = {.key = 2}};
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  const auto y = module.forward(x, memory, value, call, cache);
  const auto whole = module.backward_cross(dy, cache, gradients);
  for (const auto& [first, n] : {std::pair<Index, Index>{0, 1}, {1, 5}, {6, 3}}) {
    CAPTURE(path, kdim, first, n);
    call.origin.query = first;
    const auto part = module.forward(slice(x, 1, first, n), memory, value, call, cache);
    CHECK(bitwise_equal(part, slice(y, 1, first, n)));
    const auto d = module.backward_cross(slice(dy, 1, first, n), cache, gradients);
    CHECK(bitwise_equal(d.query, slice(whole.query, 1, first, n)));
  }
}

TEST_CASE("keys that are told where they stand turn as in the whole", "[nn]") {
  const auto module = drawn({});
  const auto x = random_tensor<double>(Shape{1, 12, 10}, 4);
  const auto all = module.forward(x, {.mask = {causal, Mask::window(3)}});
  // Queries 5 to 11 see keys 3 to 11 and no other.
  const auto part = slice(x, 1, 3, 9);
  const auto y =
      module.forward(slice(x, 1, 5, 7), part, part,
                     {.mask = {causal, Mask::window(3)}, .origin = {.query = 5, .key = 3}});
  CHECK(close_to(y, slice(all, 1, 5, 7), 1e-13));
  const auto moved = module.forward(slice(x, 1, 5, 7), part, part,
                                    {.mask = {causal, Mask::window(3)}, .origin = {.query = 5}});
  CHECK_FALSE(close_to(moved, slice(all, 1, 5, 7), 1e-3));
}

}  // namespace nn_multi_head_attention_origin
