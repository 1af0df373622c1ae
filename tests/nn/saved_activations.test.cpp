// Modules whose caches are kept in 16 bits. That attention has the bits of its operations with the
// rounding between them is shown on the tape (tests/autograd/multi_head_attention.test.cpp); here
// is what stands around it: other inputs, packed sequences, a FeedForward.
#include "headwise/ops/saved_in.hpp"

#include "headwise/nn/feed_forward.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/ops/bf16_products.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/parameter_values.hpp"
#include "support/rounded.hpp"

namespace nn_saved_activations {

using namespace headwise;
using namespace headwise_tests;

namespace {

In<float, 2> rows(const Tensor3<float>& x) { return merge_rows(In<float, 3>(x)); }

}  // namespace

TEMPLATE_TEST_CASE(
    "a cache of cross-attention in 16 bits is that of floats with its numbers rounded", "[saved]",
    BFloat16, Float16) {
  MultiHeadAttention<float> module(
      {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .kdim = 10, .vdim = 7, .q_bias = true});
  draw_all(module.parameters(), 3);
  const auto& p = module.parameters();
  const auto x = random_tensor<float>(Shape{2, 9, 24}, 1), dy = random_tensor<float>(x.shape(), 2),
             key = random_tensor<float>(Shape{2, 13, 10}, 3),
             value = random_tensor<float>(Shape{2, 13, 7}, 4);
  MultiHeadAttentionCache<float> cache, mended;
  const auto y =
      module.forward(x, key, value, {.mask = causal}, cache, {.saved = saved_in<TestType>()});
  CHECK(cache.q.absent());
  CHECK(cache.q.template kept<TestType>().shape() == Shape{2, 9, 24});

  Tensor3<float> expected = module.forward(x, key, value, {.mask = causal}, mended);
  for (auto* projection : {&mended.q, &mended.k, &mended.v}) round_all<TestType>(*projection);
  flash_attention_forward(In<float, 4>(split_heads(mended.q, 4)), split_heads(mended.k, 2),
                          split_heads(mended.v, 2), {.mask = causal},
                          split_heads(mended.context, 4), mended.lse);
  linear_forward(rows(mended.context), p.w_o, p.b_o, merge_rows(expected));
  CHECK(bitwise_equal(y, expected));
  auto got = module.zero_gradients(), want = module.zero_gradients();
  const auto d = module.backward_cross(dy, cache, got),
             d_expected = module.backward_cross(dy, mended, want);
  CHECK(bitwise_equal(d.query, d_expected.query));
  CHECK(bitwise_equal(d.key, d_expected.key));
  CHECK(bitwise_equal(d.value, d_expected.value));
  CHECK(same_bits(values_of<float>(got), values_of<float>(want)));
}

TEMPLATE_TEST_CASE("sequences packed in a cache of 16 bits have the bits of each alone", "[saved]",
                   BFloat16, Float16) {
  MultiHeadAttentionOptions options{.d_model = 24, .num_heads = 4, .rotary = RotaryOptions{}};
  MultiHeadAttention<float> module(options);
  draw_all(module.parameters(), 3);
  const std::vector<Index> starts = {0, 12, 12, 40, 41};
  const auto x = random_tensor<float>(Shape{1, 41, 24}, 1), dy = random_tensor<float>(x.shape(), 2);
  const Context context{.saved = saved_in<TestType>()};
  MultiHeadAttentionCall<float> call{.mask = causal};
  call.query_starts = starts;
  MultiHeadAttentionCache<float> cache;
  auto gradients = module.zero_gradients();
  const auto y = module.forward(x, call, cache, context),
             dx = module.backward(dy, cache, gradients);
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    const auto part = [&](const Tensor3<float>& of) {
      return contiguous(In<float, 3>(slice(of, 1, starts[b], starts[b + 1] - starts[b])));
    };
    MultiHeadAttentionCache<float> of_part;
    const auto alone = part(x);
    CHECK(bitwise_equal(module.forward(alone, {.mask = causal}, of_part, context), part(y)));
    CHECK(bitwise_equal(module.backward(part(dy), of_part, gradients), part(dx)));
  }
}

TEMPLATE_TEST_CASE("a FeedForward's cache in 16 bits is that of floats with its numbers rounded",
                   "[saved]", BFloat16, Float16) {
  const bool gated = GENERATE(false, true);
  const Activation activation = gated ? Activation::silu : Activation::gelu;
  FeedForward<float> module(
      {.d_model = 20, .d_hidden = 33, .activation = activation, .gated = gated});
  draw_all(module.parameters(), 3);
  const auto& p = module.parameters();
  const auto x = random_tensor<float>(Shape{9, 20}, 1), dy = random_tensor<float>(x.shape(), 2);
  const FeedForwardCall call{{.rate = 0.3, .seed = 1}, {.rate = 0.3, .seed = 2}};
  FeedForwardCache<float> cache, mended;
  const auto y = module.forward(x, call, cache, {.saved = saved_in<TestType>()});
  CHECK(cache.hidden.absent());

  Tensor2<float> expected = module.forward(x, call, mended);
  round_all<TestType>(mended.hidden);
  if (gated) {
    swiglu_forward(slice(In<float, 2>(mended.hidden), 1, 0, 33),
                   slice(In<float, 2>(mended.hidden), 1, 33, 33), mended.activated);
  } else {
    activation_forward(activation, In<float, 2>(mended.hidden), mended.activated);
  }
  detail::drop_forward<float>(mended.activated, call.hidden_dropout, DropoutStream::hidden,
                              mended.activated, {});
  round_all<TestType>(mended.activated);
  linear_forward(In<float, 2>(mended.activated), p.w_out, p.b_out, expected);
  detail::drop_forward<float>(expected, call.output_dropout, DropoutStream::feed_forward, expected,
                              {});
  CHECK(bitwise_equal(y, expected));
  auto got = module.zero_gradients(), want = module.zero_gradients();
  CHECK(bitwise_equal(module.backward(dy, cache, got), module.backward(dy, mended, want)));
  CHECK(same_bits(values_of<float>(got), values_of<float>(want)));
}

TEST_CASE("keys and values far from 0 leave gradients of a cache in 16 bits near those of floats",
          "[saved]") {
  const float mean = GENERATE(0.0f, 3.0f);
  MultiHeadAttention<float> module({.d_model = 64, .num_heads = 4, .k_bias = true, .v_bias = true});
  fill(Out<float, 1>(module.parameters().b_k), mean);
  fill(Out<float, 1>(module.parameters().b_v), mean);
  const auto x = random_tensor<float>(Shape{1, 128, 64}, 1),
             dy = random_tensor<float>(x.shape(), 2);
  const auto gradient = [&](const Saved& saved) {
    MultiHeadAttentionCache<float> cache;
    auto unused = module.zero_gradients();
    (void)module.forward(x, {.mask = causal}, cache, {.saved = saved});
    return module.backward(dy, cache, unused);
  };
  CHECK(root_mean_square_error(gradient(saved_in<BFloat16>()), gradient({})) < 0.01);
}

TEST_CASE("a cache in 16 bits that was moved from is refused as one of floats is", "[saved]") {
  const Context context{.saved = GENERATE(Saved(), saved_in<BFloat16>(), saved_in<Float16>())};
  const auto x = random_tensor<float>(Shape{2, 9, 24}, 1);
  const MultiHeadAttention<float> attention({.d_model = 24, .num_heads = 4});
  MultiHeadAttentionCache<float> attended;
  (void)attention.forward(x, {}, attended, context);
  const auto attended_moved = std::move(attended);
  auto of_attention = attention.zero_gradients();
  CHECK_THROWS_WITH(attention.backward(x, attended, of_attention),
                    "MultiHeadAttention::backward: cache.context is [0, 0, 0], expected [2, 9, 24] "
                    "(what forward left: a cache that was moved from is empty)");
  const FeedForward<float> feed_forward({.d_model = 24});
  FeedForwardCache<float> fed;
  (void)feed_forward.forward(rows(x), {}, fed, context);
  const auto fed_moved = std::move(fed);
  auto of_feed_forward = feed_forward.zero_gradients();
  CHECK_THROWS_WITH(feed_forward.backward(rows(x), fed, of_feed_forward),
                    "FeedForward::backward: cache.hidden is [0, 0], expected [18, 96] "
                    "(what forward left: a cache that was moved from is empty)");
}

TEST_CASE("floats of caches are exchanged with their numbers of 16 bits", "[saved]") {
  SavedFloats<1> a(Tensor1<float>({2}, {1.0f, 2.0f})), b(Tensor1<float>({1}, {3.0f}));
  const Saved saved = saved_in<BFloat16>();
  detail::round_saved(a, saved, {});
  a.swap(b);
  CHECK(a.size() == 1);
  CHECK(a.kept<BFloat16>().absent());
  CHECK(b.kept<BFloat16>().size() == 2);
}

TEST_CASE("attention by products of bf16 gives the bits that it gives of a cache in bf16",
          "[saved]") {
  MultiHeadAttention<float> module({.d_model = 64, .num_heads = 4});
  const auto x = random_tensor<float>(Shape{2, 40, 64}, 1);
  MultiHeadAttentionCache<float> plain, saved;
  const Products products = bf16_products();
  const auto y = module.forward(x, {.mask = causal}, plain, {.products = products});
  CHECK(bitwise_equal(y, module.forward(x, {.mask = causal}, saved,
                                        {.products = products, .saved = saved_in<BFloat16>()})));
}

}  // namespace nn_saved_activations
