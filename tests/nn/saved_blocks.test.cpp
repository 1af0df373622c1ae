// Blocks and decoders whose caches are kept in 16 bits: their modules in a row, whose own caches
// saved_activations.test.cpp looks at.
#include "headwise/nn/rms_norm.hpp"
#include "headwise/ops/saved_in.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"
#include "support/rounded.hpp"

namespace nn_saved_blocks {

using namespace headwise_tests;

namespace {

std::vector<float> all_of(const Tensor3<float>& y, const Tensor3<float>& dx,
                          const auto& gradients) {
  std::vector<float> all = values_of<float>(gradients);
  all.insert(all.end(), y.begin(), y.end());
  all.insert(all.end(), dx.begin(), dx.end());
  return all;
}

/// y, dx and all gradients of a block or of self-attention.
template <class Module>
std::vector<float> run(const Module& module, const typename Module::Call& call,
                       const Tensor3<float>& x, const Tensor3<float>& dy,
                       const Context& context = {}) {
  typename Module::Cache cache;
  auto gradients = module.zero_gradients();
  const auto y = module.forward(x, call, cache, context);
  return all_of(y, module.backward(dy, cache, gradients), gradients);
}

Tensor3<float> plus(const Tensor3<float>& a, const Tensor3<float>& b) {
  Tensor3<float> y = a;
  for (Index n = 0; n < y.size(); ++n) y.data()[n] += b.data()[n];
  return y;
}
In<float, 2> rows(const Tensor3<float>& x) { return merge_rows(In<float, 3>(x)); }
Tensor3<float> as(const Shape<3>& shape, const Tensor2<float>& of_rows) {
  Tensor3<float> y(shape);
  copy(In<float, 2>(of_rows), Out<float, 2>(merge_rows(y)));
  return y;
}

/// A block by its modules, whose caches are kept in U, and norms, which are rounded where a branch
/// reads them.
template <class U, class Norm>
std::vector<float> by_modules(const TransformerBlock<float>& block,
                              const TransformerBlockCall<float>& call, const Tensor3<float>& x,
                              const Tensor3<float>& dy) {
  const Context context{.saved = saved_in<U>()};
  const TransformerBlockOptions& o = block.options();
  const auto& p = block.parameters();
  MultiHeadAttention<float> attention(o.attention());
  attention.parameters() = p.attention;
  FeedForward<float> feed_forward(o.feed_forward());
  feed_forward.parameters() = p.feed_forward;
  Norm first(o.d_model, true, o.norm_epsilon), second = first;
  auto gradients = block.zero_gradients();
  auto of_first = first.zero_gradients(), of_second = first.zero_gradients();
  const auto give = [](const auto& from, auto& to) {
    to.gamma = from.gamma;
    if constexpr (requires { from.beta, to.beta; }) to.beta = from.beta;
  };
  give(p.norm1, first.parameters());
  give(p.norm2, second.parameters());

  MultiHeadAttentionCache<float> attended;
  FeedForwardCache<float> fed;
  typename Norm::Cache normed_first, normed_second;
  Tensor3<float> y, dx;
  const auto shaped = [&](const Tensor2<float>& of_rows) { return as(x.shape(), of_rows); };
  if (o.norm_first) {
    Tensor3<float> n1 = shaped(first.forward(rows(x), normed_first));
    round_all<U>(n1);
    const auto h = plus(x, attention.forward(n1, call.attention(), attended, context));
    Tensor3<float> n2 = shaped(second.forward(rows(h), normed_second));
    round_all<U>(n2);
    y = plus(h, shaped(feed_forward.forward(rows(n2), call.feed_forward(), fed, context)));
    const auto dn2 = shaped(feed_forward.backward(rows(dy), fed, gradients.feed_forward));
    const auto dh = plus(dy, shaped(second.backward(rows(dn2), normed_second, of_second)));
    const auto dn1 = attention.backward(dh, attended, gradients.attention);
    dx = plus(dh, shaped(first.backward(rows(dn1), normed_first, of_first)));
  } else {
    const auto s1 = plus(x, attention.forward(x, call.attention(), attended, context));
    const auto h = shaped(first.forward(rows(s1), normed_first));
    const auto s2 =
        plus(h, shaped(feed_forward.forward(rows(h), call.feed_forward(), fed, context)));
    y = shaped(second.forward(rows(s2), normed_second));
    const auto ds2 = shaped(second.backward(rows(dy), normed_second, of_second));
    const auto dh =
        plus(ds2, shaped(feed_forward.backward(rows(ds2), fed, gradients.feed_forward)));
    const auto ds1 = shaped(first.backward(rows(dh), normed_first, of_first));
    dx = plus(ds1, attention.backward(ds1, attended, gradients.attention));
  }
  give(of_first, gradients.norm1);
  give(of_second, gradients.norm2);
  return all_of(y, dx, gradients);
}

}  // namespace

TEMPLATE_TEST_CASE("a block's cache in 16 bits is those of its modules, and norms that are rounded",
                   "[saved]", BFloat16, Float16) {
  const bool norm_first = GENERATE(false, true);
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  TransformerBlock<float> block(with(norm_first, norm, 24).block);
  draw_all(block.parameters(), 3);
  const auto x = random_tensor<float>(Shape{2, 9, 24}, 1), dy = random_tensor<float>(x.shape(), 2);
  TransformerBlockCall<float> call;
  call.mask = {causal};
  call.attention_dropout = {.rate = 0.2, .seed = 1};
  const auto got = run(block, call, x, dy, {.saved = saved_in<TestType>()});
  CHECK(same_bits(got, norm == NormKind::rms_norm
                           ? by_modules<TestType, RMSNorm<float>>(block, call, x, dy)
                           : by_modules<TestType, LayerNorm<float>>(block, call, x, dy)));
  CHECK_FALSE(same_bits(got, run(block, call, x, dy)));
  call.path = Path::materialized;  // keeps all as it is
  CHECK(
      same_bits(run(block, call, x, dy, {.saved = saved_in<TestType>()}), run(block, call, x, dy)));
}

TEST_CASE("caches in 16 bits have the same bits for any number of threads", "[saved]") {
  const TransformerBlock<float> block({.d_model = 64, .num_heads = 4, .gated = true});
  const auto x = random_tensor<float>(Shape{2, 300, 64}, 1),
             dy = random_tensor<float>(x.shape(), 2);
  for (const Saved& saved : {saved_in<BFloat16>(), saved_in<Float16>()}) {
    const auto alone = run(block, {}, x, dy, {.saved = saved});
    for (const Index count : {2, 3, 5}) {
      ThreadPool threads(count);
      TransformerBlockCache<float> cache;
      const Context context{.executor = threads, .saved = saved};
      auto gradients = block.zero_gradients();
      const auto y = block.forward(x, {}, cache, context);
      CHECK(same_bits(all_of(y, block.backward(dy, cache, gradients, context), gradients), alone));
    }
  }
}

TEST_CASE("inference, and what is computed in double, round nothing for a cache in 16 bits",
          "[saved]") {
  const Context context{.saved = saved_in<BFloat16>()};
  const TransformerBlock<float> block({.d_model = 24, .num_heads = 4});
  const auto x = random_tensor<float>(Shape{2, 9, 24}, 1);
  CHECK(bitwise_equal(block.forward(x, {}, context), block.forward(x)));
  const TransformerBlock<double> wide({.d_model = 24, .num_heads = 4});
  const auto wide_x = random_tensor<double>(Shape{2, 9, 24}, 1);
  TransformerBlockCache<double> cache;
  CHECK(bitwise_equal(wide.forward(wide_x, {}, cache, context), wide.forward(wide_x)));
  CHECK_FALSE(cache.feed_forward.hidden.absent());
}

TEST_CASE("a decoder whose caches are in 16 bits has nearly the gradients of floats", "[saved]") {
  const bool norm_first = GENERATE(false, true);
  TransformerDecoderOptions options = with(norm_first, NormKind::layer_norm, 24);
  options.block.d_hidden = 96;
  TransformerDecoder<float> decoder(options);
  const auto tokens = some_tokens(2, 30);
  const auto d_logits = random_tensor<float>(Shape{60, 7}, 5);
  MemoryTally memory;
  std::int64_t kept = 0;
  const auto gradients_of = [&](const Saved& saved) {
    TransformerDecoderCache<float> cache;
    const std::int64_t before = memory.live();
    const auto logits = decoder.forward(tokens, {}, cache, {.memory = &memory, .saved = saved});
    kept = memory.live() - before;
    auto gradients = decoder.zero_gradients();
    decoder.backward(d_logits, cache, gradients);
    return values_of<float>(gradients);
  };
  const auto exact = gradients_of({});
  const std::int64_t of_floats = kept;
  const auto error = [&](const Saved& saved) {
    return root_mean_square_error(gradients_of(saved), exact);
  };
  const double of_bf16 = error(saved_in<BFloat16>());
  CHECK(of_bf16 > 1e-4);
  CHECK(of_bf16 < 0.01);
  CHECK(kept < of_floats * 3 / 4);
  CHECK(error(saved_in<Float16>()) < of_bf16 / 4);
}

TEST_CASE("a block that runs out of memory leaves a cache in 16 bits and gradients as they were",
          "[saved]") {
  const bool norm_first = GENERATE(false, true);
  const TransformerBlock<float> block(with(norm_first, NormKind::layer_norm, 24).block);
  const auto x = random_tensor<float>(Shape{2, 5, 24}, 8),
             other = random_tensor<float>(Shape{1, 4, 24}, 9);
  const Context saved{.saved = saved_in<BFloat16>()};
  TransformerBlockCache<float> cache;
  auto gradients = block.zero_gradients();
  (void)block.forward(x, {}, cache, saved);
  const auto dx = block.backward(x, cache, gradients);
  const auto once = values_of<float>(gradients);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)block.backward(x, cache, gradients, {.memory = memory});
            },
            [&] { return same_bits(values_of<float>(gradients), once); }) >= 20);
  bool replaced = false;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)block.forward(other, {}, cache, {.memory = memory, .saved = saved.saved});
              replaced = In<float, 3>(cache.x).data() == other.data();
              cache = {};  // before its memory goes
            },
            [&] {
              auto unused = block.zero_gradients();
              return bitwise_equal(block.backward(x, cache, unused), dx);
            }) >= 12);
  CHECK(replaced);
}

}  // namespace nn_saved_blocks
