// Laws of MultiHeadAttention: what it equals, what it ignores, what it adds up.
#include <cmath>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/nn/head_parallel.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/module_call.hpp"

namespace nn_multi_head_attention_laws {

using namespace headwise_tests;

namespace {

using Options = MultiHeadAttentionOptions;
const Options grouped = {.d_model = 12,
                         .num_heads = 4,
                         .num_kv_heads = 2,
                         .d_head = 5,
                         .d_value = 3,
                         .q_bias = true,
                         .k_bias = true,
                         .v_bias = true};

/// Biases too: at the start they are 0.
template <class T>
MultiHeadAttention<T> random_module(Options options, std::uint64_t seed = 1) {
  options.seed = seed;
  MultiHeadAttention<T> module(options);
  Draw draw(seed);
  module.parameters().for_each([&](const std::string& name, auto view) {
    if (name[0] == 'W') return;
    for_each_index(view.shape(), [&](const auto& at) { view(at) = static_cast<T>(draw.normal()); });
  });
  return module;
}

/// Forward and backward of self-attention.
template <class T>
struct Step {
  Tensor3<T> y, dx;
  MultiHeadAttentionGradients<T> gradients;

  Step(const MultiHeadAttention<T>& module, In<T, 3> x, In<T, 3> dy,
       const MultiHeadAttentionCall<T>& call, const Context& context = {})
      : gradients(module.zero_gradients()) {
    MultiHeadAttentionCache<T> cache;
    y = module.forward(x, call, cache, context);
    dx = module.backward(dy, cache, gradients, context);
  }
};

template <class T>
bool same_gradients(const MultiHeadAttentionGradients<T>& a,
                    const MultiHeadAttentionGradients<T>& b) {
  bool same = true;
  a.for_each([&](const std::string& name, auto view) {
    constexpr int rank = decltype(view)::rank;
    b.for_each([&](const std::string& other, auto view_b) {
      if constexpr (rank == decltype(view_b)::rank) {
        if (name == other) same = same && bitwise_equal(view, view_b);
      }
    });
  });
  return same;
}

}  // namespace

TEST_CASE("one fused W_QKV equals separate projections of each head", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto module = random_module<double>(grouped);
  const MultiHeadAttentionParameters<double>& p = module.parameters();
  const auto x = random_tensor<double>(Shape{1, 7, 12}, 2);
  const Tensor3<double> y = module.forward(x, call_of<double>(path, {causal}));

  Tensor2<double> sum({7, 12});
  for (Index i = 0; i < 7; ++i) copy(In<double, 1>(p.b_o), select(sum, i));
  for (Index h = 0; h < 4; ++h) {
    const auto project = [&](In<double, 2> w, In<double, 1> b, Index head, Index width) {
      Tensor4<double> projected({1, 1, 7, width});
      linear_forward(merge_rows(x), slice(w, 1, head * width, width),
                     slice(b, 0, head * width, width), select(select(projected, 0), 0));
      return projected;
    };
    const auto q = project(p.W_Q(), p.b_q, h, 5), k = project(p.W_K(), p.b_k, h / 2, 5);
    const auto v = project(p.W_V(), p.b_v, h / 2, 3);
    Tensor4<double> weights({1, 1, 7, 7}), o({1, 1, 7, 3});
    AttentionOptions<double> options;
    options.mask = {causal};
    attention_forward<double>(q, k, v, options, weights, o);
    Tensor2<double> part({7, 12});
    linear_forward<double>(select(select(o, 0), 0), slice(p.w_o, 0, h * 3, 3), {}, part);
    for (Index n = 0; n < sum.size(); ++n) sum.data()[n] += part.data()[n];
  }
  CHECK(close_to(merge_rows(In<double, 3>(y)), sum, 1e-14));
}

TEST_CASE(
    "cross-attention of an input to itself is self-attention, and its three gradients sum "
    "to that of self-attention",
    "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto module = random_module<double>(grouped);
  const auto x = random_tensor<double>(Shape{2, 9, 12}, 3),
             dy = random_tensor<double>(x.shape(), 4);
  const auto call = call_of<double>(path, {causal});
  const Step<double> self(module, x, dy, call);
  MultiHeadAttentionCache<double> cache;
  const Tensor3<double> y = module.forward(x, x, x, call, cache);
  auto gradients = module.zero_gradients();
  const auto d = module.backward_cross(dy, cache, gradients);
  CHECK(bitwise_equal(y, self.y));
  Tensor3<double> sum(x.shape());
  for (Index n = 0; n < sum.size(); ++n) {
    sum.data()[n] = d.query.data()[n] + d.key.data()[n] + d.value.data()[n];
  }
  CHECK(close_to(self.dx, sum, 1e-14));
  CHECK(close_to(gradients.w_qkv, self.gradients.w_qkv, 1e-14));
  CHECK(close_to(gradients.w_o, self.gradients.w_o, 1e-14));
}

TEST_CASE("kdim and vdim are the widths of cross-attention's keys and values", "[nn]") {
  Options options = grouped;
  options.kdim = 5;
  options.vdim = 8;
  const auto module = random_module<float>(options);
  CHECK(module.parameters().W_K().shape() == Shape{5, 10});
  CHECK(module.parameters().W_V().shape() == Shape{8, 6});
  CHECK(module.parameters().w_qkv.absent());
  const auto q = random_tensor<float>(Shape{2, 3, 12}, 1),
             k = random_tensor<float>(Shape{2, 4, 5}, 2);
  const auto v = random_tensor<float>(Shape{2, 4, 8}, 3);
  MultiHeadAttentionCache<float> cache;
  auto gradients = module.zero_gradients();
  CHECK(module.forward(q, k, v, {}, cache).shape() == q.shape());
  const auto d = module.backward_cross(q, cache, gradients);
  CHECK(d.query.shape() == q.shape());
  CHECK(d.key.shape() == k.shape());
  CHECK(d.value.shape() == v.shape());
}

TEMPLATE_TEST_CASE("inference equals the training forward to the bit", "[nn]", float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  Options options = grouped;
  options.layer_norm = true;
  const auto module = random_module<TestType>(options);
  const auto x = random_tensor<TestType>(Shape{2, 67, 12}, 5);
  auto call = call_of<TestType>(path, {Mask::window(9)});
  call.weight_dropout = {.rate = 0.3, .seed = 1};
  call.output_dropout = {.rate = 0.2, .seed = 2};
  MultiHeadAttentionCache<TestType> cache;
  CHECK(bitwise_equal(module.forward(x, call, cache), module.forward(x, call)));
  CHECK(bitwise_equal(module.forward(x, x, x, call, cache), module.forward(x, x, x, call)));
}

TEMPLATE_TEST_CASE("1, 2, 3 and 4 threads give the same bits", "[nn]", float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  Options options = grouped;
  options.layer_norm = true;
  const auto module = random_module<TestType>(options);
  const auto x = random_tensor<TestType>(Shape{3, 101, 12}, 6);
  const auto dy = random_tensor<TestType>(x.shape(), 7);
  auto call = call_of<TestType>(path, {causal});
  call.weight_dropout = {.rate = 0.3, .seed = 1};
  const Step<TestType> serial(module, x, dy, call);
  for (Index threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    Context context;
    context.executor = pool;
    const Step<TestType> step(module, x, dy, call, context);
    CAPTURE(threads);
    CHECK(bitwise_equal(step.y, serial.y));
    CHECK(bitwise_equal(step.dx, serial.dx));
    CHECK(same_gradients(step.gradients, serial.gradients));
  }
}

TEMPLATE_TEST_CASE("a batch element alone has the bits that it has in a batch", "[nn]", float,
                   double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto module = random_module<TestType>(grouped);
  const auto x = random_tensor<TestType>(Shape{3, 53, 12}, 8);
  const auto dy = random_tensor<TestType>(x.shape(), 9);
  const auto call = call_of<TestType>(path, {causal});
  const Step<TestType> all(module, x, dy, call);
  for (Index b = 0; b < 3; ++b) {
    const Step<TestType> one(module, slice(x, 0, b, 1), slice(dy, 0, b, 1), call);
    CHECK(bitwise_equal(one.y, slice(all.y, 0, b, 1)));
    CHECK(bitwise_equal(one.dx, slice(all.dx, 0, b, 1)));
  }
}

TEMPLATE_TEST_CASE(
    "the beginning of a causal sequence has the bits of the whole, and queries that "
    "come in chunks too",
    "[nn]", float, double) {
  // The tiled path: the readable one promises no bits across lengths.
  const auto module = random_module<TestType>(grouped);
  const auto x = random_tensor<TestType>(Shape{2, 131, 12}, 10);
  const auto call = call_of<TestType>(Path::flash, {causal});
  const Tensor3<TestType> whole = module.forward(x, call);
  for (const Index length : {1, 2, 47, 48, 49, 64, 65, 130}) {
    CAPTURE(length);
    const auto begin = slice(x, 1, 0, length);
    CHECK(bitwise_equal(module.forward(begin, call), slice(whole, 1, 0, length)));
    // The last query against all keys so far: j <= i + (S - L).
    const auto last = slice(x, 1, length - 1, 1);
    CHECK(bitwise_equal(module.forward(last, begin, begin, call), slice(whole, 1, length - 1, 1)));
  }
}

TEST_CASE("shards of heads sum to the whole, and their gradients are its slices", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index G = GENERATE(8, 4);
  const Options options = {.d_model = 16,
                           .num_heads = 8,
                           .num_kv_heads = G,
                           .d_value = 3,
                           .q_bias = true,
                           .k_bias = true,
                           .v_bias = true};
  const auto whole = random_module<double>(options);
  const auto x = random_tensor<double>(Shape{2, 5, 16}, 11),
             dy = random_tensor<double>(x.shape(), 12);
  const auto call = call_of<double>(path, {causal});
  const Step<double> expected(whole, x, dy, call);
  const MultiHeadAttentionGradients<double>& all = expected.gradients;
  for (const Index shards : {1, 2, 4}) {
    const Index heads = 8 / shards, kv_heads = G / shards;
    CAPTURE(shards, G);
    Tensor3<double> y(x.shape()), dx(x.shape());
    for (Index s = 0; s < shards; ++s) {
      const auto shard = head_shard(whole, s * heads, heads);
      CHECK(shard.options().num_kv_heads == kv_heads);
      const Step<double> step(shard, x, dy, call);
      for (Index n = 0; n < y.size(); ++n) {
        y.data()[n] += step.y.data()[n];
        dx.data()[n] += step.dx.data()[n];
      }
      const MultiHeadAttentionGradients<double>& part = step.gradients;
      const auto columns = [&](In<double, 2> w, Index width) {
        return slice(w, 1, s * width, width);
      };
      CHECK(close_to(part.grad_W_Q(), columns(all.grad_W_Q(), heads * 2), 1e-14));
      CHECK(close_to(part.grad_W_K(), columns(all.grad_W_K(), kv_heads * 2), 1e-14));
      CHECK(close_to(part.grad_W_V(), columns(all.grad_W_V(), kv_heads * 3), 1e-14));
      CHECK(close_to(part.grad_W_O(), slice(all.grad_W_O(), 0, s * heads * 3, heads * 3), 1e-14));
      CHECK(close_to(part.grad_b_Q(), slice(all.grad_b_Q(), 0, s * heads * 2, heads * 2), 1e-14));
      CHECK(part.b_o.absent() == (s != 0));
      if (s == 0) CHECK(bitwise_equal(part.grad_b_O(), all.grad_b_O()));
    }
    CHECK(close_to(y, expected.y, 1e-14));
    CHECK(close_to(dx, expected.dx, 1e-14));
  }
}

TEST_CASE("shards that are told their first head draw the dropout of the whole and its functions",
          "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto whole = random_module<double>(grouped);
  const auto x = random_tensor<double>(Shape{2, 7, 12}, 21),
             dy = random_tensor<double>(x.shape(), 22);
  const auto by_head = score_function<double>(
      [](auto s, const Position& at) { return s * (1.0 + static_cast<double>(at.head)); });
  const auto striped =
      mask_function([](const Position& at) { return (at.key + at.head) % 3 != 0; });
  MultiHeadAttentionCall<double> call = call_of<double>(path, {Mask::function(striped)});
  call.weight_dropout = {0.4, 9, 1};
  call.score.function = by_head;
  const Step<double> expected(whole, x, dy, call);
  Tensor3<double> y(x.shape()), dx(x.shape());
  for (const Index first : {0, 2}) {
    call.origin.head = first;
    const Step<double> step(head_shard(whole, first, 2), x, dy, call);
    for (Index n = 0; n < y.size(); ++n) {
      y.data()[n] += step.y.data()[n];
      dx.data()[n] += step.dx.data()[n];
    }
  }
  CHECK(close_to(y, expected.y, 1e-13));
  CHECK(close_to(dx, expected.dx, 1e-13));
}

}  // namespace nn_multi_head_attention_laws
