// The textbook's list of test cases, part one: shapes, equivalences, edge cases.
#include <cmath>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"

namespace seeds_textbook_shapes {

using namespace headwise_tests;

namespace {

struct Result {
  Tensor3<double> y, dx;
  MultiHeadAttentionCache<double> cache;
};

/// A training step. x is kept by the caller: the cache views it.
Result step(const MultiHeadAttention<double>& module, const Tensor3<double>& x, Path path,
            const AttentionMask<double>& mask = {}) {
  MultiHeadAttentionCall<double> call;
  call.path = path;
  call.mask = mask;
  Result r;
  auto gradients = module.zero_gradients();
  r.y = module.forward(x, call, r.cache);
  r.dx = module.backward(x, r.cache, gradients);
  return r;
}

/// One head of the textbook: softmax(x w_q (x w_k)^T / sqrt(d)) x w_v, summed plainly, no batch.
Tensor2<double> self_attention(const In<double, 2>& x, const In<double, 2>& w_q,
                               const In<double, 2>& w_k, const In<double, 2>& w_v, bool is_causal) {
  const auto times = [](const In<double, 2>& a, const In<double, 2>& b) {
    Tensor2<double> c({a.extent(0), b.extent(1)});
    for_each_index(c.shape(), [&](const Shape<2>& i) {
      for (Index k = 0; k < a.extent(1); ++k) c(i) += a(i[0], k) * b(k, i[1]);
    });
    return c;
  };
  const Tensor2<double> q = times(x, w_q), k = times(x, w_k), v = times(x, w_v);
  Tensor2<double> p = times(q, transpose(k, 0, 1));
  const double root = std::sqrt(static_cast<double>(w_q.extent(1)));
  for (Index i = 0; i < p.extent(0); ++i) {
    double mass = 0;
    for (Index j = 0; j < p.extent(1); ++j) {
      p(i, j) = is_causal && j > i ? 0 : std::exp(p(i, j) / root);
      mass += p(i, j);
    }
    for (Index j = 0; j < p.extent(1); ++j) p(i, j) /= mass;
  }
  return times(p, v);
}

}  // namespace

TEST_CASE("output shape matches input shape: (B, L, d_model) in, (B, L, d_model) out", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module(12, 3);
  const auto x = random_tensor<double>(Shape{2, 7, 12}, 1);
  const Result r = step(module, x, path);
  CHECK(r.y.shape() == x.shape());
  CHECK(r.dx.shape() == x.shape());
}

TEST_CASE("intermediate shapes are correct", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index B = 2, L = 7, D = 12, h = 3, d = 4;
  const MultiHeadAttention<double> module(D, h);
  const auto x = random_tensor<double>(Shape{B, L, D}, 1);
  Trace trace;
  Context context;
  context.trace = &trace;
  MultiHeadAttentionCall<double> call;
  call.path = path;
  MultiHeadAttentionCache<double> cache;
  (void)module.forward(x, call, cache, context);
  SECTION("after projection: (B, L, d_model)") {
    for (const Index part : {0, 1, 2}) {
      CHECK(slice(cache.qkv, 2, part * D, D).shape() == Shape{B, L, D});
    }
  }
  SECTION("after reshape: (B, L, h, d_k), and after transpose: (B, h, L, d_k)") {
    const auto heads = split_heads(slice(cache.qkv, 2, 0, D), h);
    CHECK(transpose(heads, 1, 2).shape() == Shape{B, L, h, d});
    CHECK(heads.shape() == Shape{B, h, L, d});
    for (const char* name : {"Q", "K", "V"})
      CHECK(trace.view<4>(name).shape() == Shape{B, h, L, d});
  }
  SECTION("the transposed heads are a view with strides (L d_model, d_k, d_model, 1)") {
    const Tensor3<double> projected({B, L, D});
    CHECK(split_heads(projected, h).strides() == Shape{L * D, d, D, 1});
    CHECK(split_heads(projected, h).data() == projected.data());
    CHECK(contiguous(split_heads(projected, h)).strides() == Shape{h * L * d, L * d, d, 1});
  }
  SECTION("attention scores: (B, h, L, L)") {
    CHECK(trace.view<4>("A").shape() == Shape{B, h, L, L});
  }
  SECTION("attention weights: (B, h, L, L)") {
    CHECK(trace.view<4>("AS").shape() == Shape{B, h, L, L});
  }
  SECTION("attention output: (B, h, L, d_v)") {
    CHECK(trace.view<4>("AO_heads").shape() == Shape{B, h, L, d});
  }
  SECTION("merged heads: (B, L, d_model)") { CHECK(cache.context.shape() == Shape{B, L, D}); }
}

TEST_CASE("various batch sizes: B = 1, B = 4, B = 32", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index B = GENERATE(1, 4, 32);
  const MultiHeadAttention<double> module(8, 2);
  const auto x = random_tensor<double>(Shape{B, 16, 8}, 1);
  const Result r = step(module, x, path, {causal});
  CHECK(r.y.shape() == x.shape());
  CHECK(r.dx.shape() == x.shape());
  // Each batch element for itself, against the plain sum over its heads.
  const auto& p = module.parameters();
  for (Index b = 0; b < B; ++b) {
    Tensor2<double> context({16, 8}), y({16, 8});
    for (Index h = 0; h < 2; ++h) {
      const auto head = [&](In<double, 2> w) { return slice(w, 1, h * 4, 4); };
      copy<double, 2>(self_attention(select(In<double, 3>(x), b), head(p.W_Q()), head(p.W_K()),
                                     head(p.W_V()), true),
                      slice(context, 1, h * 4, 4));
    }
    linear_forward<double>(context, p.w_o, p.b_o, y);
    CHECK(close_to(select(In<double, 3>(r.y), b), y, 1e-13));
  }
}

TEST_CASE("various sequence lengths: L = 1, L = 2, L = 16, L = 128, L = 512", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index L = GENERATE(1, 2, 16, 128, 512);
  const MultiHeadAttention<double> module(8, 2);
  const auto x = random_tensor<double>(Shape{1, L, 8}, 1);
  const Result r = step(module, x, path, {causal});
  CHECK(r.y.shape() == x.shape());
  CHECK(r.dx.shape() == x.shape());
}

TEST_CASE("single head (h = 1): equivalence to self-attention", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool is_causal = GENERATE(true, false);
  const MultiHeadAttention<double> module(6, 1);
  const auto x = random_tensor<double>(Shape{1, 9, 6}, 1);
  const auto& p = module.parameters();
  const Result r =
      step(module, x, path, is_causal ? AttentionMask<double>{causal} : AttentionMask<double>{});
  const auto context =
      self_attention(select(In<double, 3>(x), 0), p.W_Q(), p.W_K(), p.W_V(), is_causal);
  CHECK(close_to(select(In<double, 3>(r.cache.context), 0), context, 1e-14));
  Tensor2<double> y({9, 6});
  linear_forward<double>(context, p.w_o, {}, y);
  CHECK(close_to(select(In<double, 3>(r.y), 0), y, 1e-14));
}

TEST_CASE("with h = 1 and d_k = d_model the output matches self-attention given identical weights",
          "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  MultiHeadAttention<double> module({.d_model = 5, .num_heads = 1, .o_bias = false});
  auto& w_o = module.parameters().w_o;
  for_each_index(w_o.shape(), [&](const Shape<2>& at) { w_o(at) = at[0] == at[1] ? 1 : 0; });
  const auto x = random_tensor<double>(Shape{3, 4, 5}, 2);
  const Result r = step(module, x, path);
  const auto& p = module.parameters();
  for (Index b = 0; b < 3; ++b) {
    const auto expected =
        self_attention(select(In<double, 3>(x), b), p.W_Q(), p.W_K(), p.W_V(), false);
    CHECK(close_to(select(In<double, 3>(r.y), b), expected, 1e-14));
  }
}

TEST_CASE("known input and output: fixed weights, exact output by hand", "[seeds]") {
  // One head of width 1. Keys are 0, ln 2 and ln 4: a query of 1 weighs the tokens 1 : 2 : 4.
  const Path path = GENERATE(Path::flash, Path::materialized);
  MultiHeadAttention<double> module({.d_model = 3, .num_heads = 1, .d_head = 1, .d_value = 1});
  auto& p = module.parameters();
  copy(In<double, 2>(Tensor2<double>({3, 1}, {0, 1, 0})), p.W_Q());
  copy(In<double, 2>(Tensor2<double>({3, 1}, {1, 0, 0})), p.W_K());
  copy(In<double, 2>(Tensor2<double>({3, 1}, {0, 0, 1})), p.W_V());
  copy(In<double, 2>(Tensor2<double>({1, 3}, {1, 2, -1})), p.w_o);
  copy(In<double, 1>(Tensor1<double>({3}, {10, 0, 0})), Out<double, 1>(p.b_o));
  // Columns: what keys are, what queries are, what values are.
  const Tensor3<double> x({1, 3, 3}, {0, 1, 7, std::log(2.0), 0, 14, std::log(4.0), 1, -7});
  const Result r = step(module, x, path);
  // A query of 1: 1/7 7 + 2/7 14 - 4/7 7 = 1. A query of 0 weighs all alike: 14/3.
  const Tensor3<double> expected({1, 3, 3},
                                 {11, 2, -1, 10 + 14.0 / 3, 28.0 / 3, -14.0 / 3, 11, 2, -1});
  CHECK(close_to(r.y, expected, 1e-15));
}

TEST_CASE("separate per-head projections and fused projection with reshape give identical output",
          "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module(12, 4);
  const auto x = random_tensor<double>(Shape{1, 10, 12}, 3);
  const Result r = step(module, x, path);
  const auto& p = module.parameters();
  for (Index h = 0; h < 4; ++h) {
    // A matrix of its own for each head: W_Q^i and so on.
    const auto own = [&](In<double, 2> w) { return contiguous(slice(w, 1, 3 * h, 3)); };
    const auto expected = self_attention(select(In<double, 3>(x), 0), own(p.W_Q()), own(p.W_K()),
                                         own(p.W_V()), false);
    CHECK(close_to(select(slice(In<double, 3>(r.cache.context), 2, 3 * h, 3), 0), expected, 1e-14));
  }
}

TEST_CASE("single token sequence (L = 1): attention weights are [[1.0]] for every head",
          "[seeds]") {
  const MultiHeadAttention<double> module(12, 4);
  const auto x = random_tensor<double>(Shape{3, 1, 12}, 4);
  const Result r = step(module, x, Path::materialized);
  REQUIRE(r.cache.weights.shape() == Shape{3, 4, 1, 1});
  for (const double weight : r.cache.weights) CHECK(weight == 1.0);
}

TEST_CASE(
    "single token sequence (L = 1): W_Q and W_K have gradients of exactly 0 "
    "where the weights are kept",
    "[seeds]") {
  const MultiHeadAttention<double> module(12, 4);
  const auto x = random_tensor<double>(Shape{3, 1, 12}, 4);
  MultiHeadAttentionCall<double> call;
  call.path = Path::materialized;
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  (void)module.forward(x, call, cache);
  (void)module.backward(x, cache, gradients);
  for_each_index(Shape{12, 12}, [&](const Shape<2>& at) {
    CHECK(gradients.grad_W_Q()(at) == 0);
    CHECK(gradients.grad_W_K()(at) == 0);
  });
}

TEST_CASE("sequence length 2: the attention pattern by hand", "[seeds]") {
  // x holds one number a token, q = k = v = x: scores are products, weights are logistic.
  const Path path = GENERATE(Path::flash, Path::materialized);
  MultiHeadAttention<double> module({.d_model = 1, .num_heads = 1, .o_bias = false});
  for (auto w : {module.parameters().W_Q(), module.parameters().W_K(), module.parameters().W_V()}) {
    w(0, 0) = 1;
  }
  module.parameters().w_o(0, 0) = 1;
  const Tensor3<double> x({1, 2, 1}, {0.5, -2.0});
  const auto logistic = [](double s) { return 1 / (1 + std::exp(-s)); };
  const Result full = step(module, x, path);
  // Row i: weight of token 0 is logistic(x_i x_0 - x_i x_1).
  CHECK(full.y(0, 0, 0) == Approx(-2 + 2.5 * logistic(0.25 + 1)).epsilon(1e-14));
  CHECK(full.y(0, 1, 0) == Approx(-2 + 2.5 * logistic(-1 - 4)).epsilon(1e-14));
  const Result first = step(module, x, path, {causal});
  CHECK(first.y(0, 0, 0) == 0.5);
  CHECK(first.y(0, 1, 0) == Approx(full.y(0, 1, 0)).epsilon(1e-15));
}

TEST_CASE("batch size 1: no shape errors", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module(4, 2);
  const auto x = random_tensor<double>(Shape{1, 3, 4}, 5);
  CHECK_NOTHROW(step(module, x, path));
  CHECK_NOTHROW(step(module, x, path, {causal}));
}

TEST_CASE("d_k = d_v = d_model / n_heads, and a width that heads do not divide is refused",
          "[seeds]") {
  const MultiHeadAttention<double> module(12, 3);
  CHECK(module.options().d_head == 4);
  CHECK(module.options().d_value == 4);
  CHECK(module.parameters().W_Q().shape() == Shape{12, 12});
  CHECK(module.parameters().w_o.shape() == Shape{12, 12});
  CHECK_THROWS_AS(MultiHeadAttention<double>(12, 5), ArgumentError);
}

}  // namespace seeds_textbook_shapes
