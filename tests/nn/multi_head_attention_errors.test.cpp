// The mistakes that MultiHeadAttention refuses, each with its whole sentence.
#include "support/catch.hpp"
#include "support/random_configuration.hpp"

using namespace headwise_tests;

namespace {

using Module = MultiHeadAttention<double>;
using Cache = MultiHeadAttentionCache<double>;
using Call = MultiHeadAttentionCall<double>;
using Gradients = MultiHeadAttentionGradients<double>;

bool all_zero(const Gradients& gradients) {
  bool zero = true;
  gradients.for_each([&](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) { zero = zero && view(at) == 0; });
  });
  return zero;
}

}  // namespace

TEST_CASE("backward refuses a cache that is empty or of another kind of call", "[nn]") {
  const Module module(8, 2);
  const auto x = random_tensor<double>(Shape{2, 3, 8}, 1);
  Cache cache;
  Gradients gradients = module.zero_gradients();
  CHECK_THROWS_WITH(module.backward(x, cache, gradients),
                    "MultiHeadAttention::backward: the cache is empty: pass it to forward first");
  CHECK_THROWS_WITH(
      module.backward_cross(x, cache, gradients),
      "MultiHeadAttention::backward_cross: the cache is empty: pass it to forward first");
  (void)module.forward(x, {}, cache);
  CHECK_THROWS_WITH(module.backward_cross(x, cache, gradients),
                    "MultiHeadAttention::backward_cross: the cache is of self-attention: use "
                    "backward");
  (void)module.forward(x, x, x, {}, cache);
  CHECK_THROWS_WITH(module.backward(x, cache, gradients),
                    "MultiHeadAttention::backward: the cache is of a call with separate keys and "
                    "values: use backward_cross");
  CHECK(all_zero(gradients));
}

TEST_CASE("backward refuses the cache of a module of another shape", "[nn]") {
  const MultiHeadAttentionOptions options = {.d_model = 8, .num_heads = 4};
  const Module module(options);
  const auto x = random_tensor<double>(Shape{2, 3, 8}, 1);
  const auto wide = random_tensor<double>(Shape{2, 3, 12}, 1);
  Gradients gradients = module.zero_gradients();
  const auto message = "MultiHeadAttention::backward: the cache is of a module of another shape";
  Cache cache;
  (void)Module(12, 4).forward(wide, {}, cache);
  CHECK_THROWS_WITH(module.backward(x, cache, gradients), message);
  auto other = options;
  other.num_kv_heads = 2;
  (void)Module(other).forward(x, {}, cache);
  CHECK_THROWS_WITH(module.backward(x, cache, gradients), message);
  other = options;
  other.d_value = 3;
  (void)Module(other).forward(x, {}, cache);
  CHECK_THROWS_WITH(module.backward(x, cache, gradients), message);
  other = options;
  other.layer_norm = true;
  (void)Module(other).forward(x, {}, cache);
  CHECK_THROWS_WITH(module.backward(x, cache, gradients), message);
  // Heads of another width fill the same rows.
  (void)Module(8, 2).forward(x, {}, cache);
  CHECK_THROWS_WITH(module.backward(x, cache, gradients), message);
  CHECK(all_zero(gradients));
}

TEST_CASE("inputs of a wrong shape are refused with both shapes", "[nn]") {
  const Module module(8, 2);
  Cache cache;
  Gradients gradients = module.zero_gradients();
  const auto x = random_tensor<double>(Shape{2, 3, 8}, 1);
  const Tensor3<double> narrow({2, 3, 7}), shorter({2, 2, 8}), other_batch({3, 4, 8});
  CHECK_THROWS_WITH(module.forward(narrow, {}, cache),
                    "MultiHeadAttention::forward: x is [2, 3, 7], expected [2, 3, 8] (d_model 8)");
  CHECK_FALSE(cache.filled);
  CHECK_THROWS_WITH(module.forward(narrow, x, x),
                    "MultiHeadAttention::forward: query is [2, 3, 7], expected [2, 3, 8] (d_model "
                    "8)");
  CHECK_THROWS_WITH(module.forward(x, other_batch, other_batch),
                    "MultiHeadAttention::forward: key is [3, 4, 8], expected [2, 4, 8] (batch of "
                    "query, kdim 8)");
  CHECK_THROWS_WITH(module.forward(x, x, shorter),
                    "MultiHeadAttention::forward: value is [2, 2, 8], expected [2, 3, 8] (batch "
                    "and length of key, vdim 8)");
  (void)module.forward(x, {}, cache);
  CHECK_THROWS_WITH(
      module.backward(shorter, cache, gradients),
      "MultiHeadAttention::backward: dy is [2, 2, 8], expected [2, 3, 8] (the output)");
  Call call;
  call.output_dropout.rate = 1.5;
  CHECK_THROWS_WITH(module.forward(x, call),
                    "MultiHeadAttention::forward: dropout rate is 1.500000, expected 0 to 1");
  const Module separate(MultiHeadAttentionOptions{.d_model = 8, .num_heads = 2, .kdim = 4});
  CHECK_THROWS_WITH(separate.forward(x),
                    "MultiHeadAttention::forward: kdim or vdim differ from d_model, expected "
                    "separate keys and values");
}

TEST_CASE("options that make no module are refused", "[nn]") {
  CHECK_THROWS_WITH(Module(8, 3),
                    "MultiHeadAttention: num_heads is 3, expected a divisor of d_model 8 (or give "
                    "d_head)");
  CHECK_THROWS_WITH(Module(0, 1), "MultiHeadAttention: d_model is 0, expected >= 1");
  CHECK_THROWS_WITH(Module(4, 0), "MultiHeadAttention: num_heads is 0, expected >= 1");
  CHECK_THROWS_WITH(
      Module(MultiHeadAttentionOptions{.d_model = 8, .num_heads = 4, .num_kv_heads = 3}),
      "MultiHeadAttention: num_kv_heads is 3, expected a divisor of num_heads 4");
  CHECK_THROWS_WITH(Module(MultiHeadAttentionOptions{.d_model = 8, .num_heads = 4, .d_head = -1}),
                    "MultiHeadAttention: a width of -1 is negative");
  CHECK_THROWS_WITH(Module(MultiHeadAttentionOptions{.d_model = 8, .layer_norm_epsilon = 0}),
                    "MultiHeadAttention: layer_norm_epsilon is not above 0");
}
