// The textbook's list of test cases, part two: weights, gradients, masks, numerical stability.
#include <cmath>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/module_call.hpp"

namespace seeds_textbook_numbers {

using namespace headwise_tests;

namespace {

template <class T, int R>
bool all_finite(const In<T, R>& x) {
  bool finite = true;
  for_each_index(x.shape(), [&](const Shape<R>& at) { finite = finite && std::isfinite(x(at)); });
  return finite;
}

/// Weights of a forward call, [B, H, L, S].
template <class T>
Tensor4<T> weights_of(const MultiHeadAttention<T>& module, const Tensor3<T>& x,
                      const AttentionMask<T>& mask = {}) {
  MultiHeadAttentionCache<T> cache;
  (void)module.forward(x, call_of<T>(Path::materialized, mask), cache);
  return std::move(cache.weights);
}

/// The worst |row sum - 1|.
template <class T>
double worst_row_sum(const Tensor4<T>& weights) {
  double worst = 0;
  for_each_index(Shape{weights.extent(0), weights.extent(1), weights.extent(2)},
                 [&](const Shape<3>& at) {
                   double sum = 0;
                   for (Index j = 0; j < weights.extent(3); ++j) {
                     sum += static_cast<double>(weights(at[0], at[1], at[2], j));
                   }
                   worst = std::max(worst, std::abs(sum - 1));
                 });
  return worst;
}

/// Everything that training computes is finite.
template <class T>
bool trains_finitely(const MultiHeadAttention<T>& module, const Tensor3<T>& x, Path path,
                     const AttentionMask<T>& mask) {
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  const auto y = module.forward(x, call_of<T>(path, mask), cache);
  const auto dx = module.backward(x, cache, gradients);
  bool finite = all_finite<T, 3>(y) && all_finite<T, 3>(dx);
  gradients.for_each([&](const std::string&, auto view) { finite = finite && all_finite(view); });
  return finite;
}

}  // namespace

TEMPLATE_TEST_CASE("attention weights sum to 1 along the key dimension for every head", "[seeds]",
                   float, double) {
  const MultiHeadAttention<TestType> module(12, 4);
  const double tolerance = 8 * double{std::numeric_limits<TestType>::epsilon()};
  for (const Index L : {1, 2, 16, 128}) {
    CAPTURE(L);
    const auto x = random_tensor<TestType>(Shape{2, L, 12}, 1);
    CHECK(worst_row_sum(weights_of(module, x)) < tolerance);
    CHECK(worst_row_sum(weights_of(module, x, {causal})) < tolerance);
  }
}

TEST_CASE(
    "gradient check by central differences: W_Q, W_K, W_V, W_O and X, with and without causal "
    "mask",
    "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool is_causal = GENERATE(true, false);
  const Index H = GENERATE(1, 2, 4);
  MultiHeadAttention<double> module(8, H);
  auto x = random_tensor<double>(Shape{2, 5, 8}, 1);
  const auto dy = random_tensor<double>(x.shape(), 2);
  const auto call =
      call_of<double>(path, is_causal ? AttentionMask<double>{causal} : AttentionMask<double>{});
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  (void)module.forward(x, call, cache);
  const auto dx = module.backward(dy, cache, gradients);
  const auto loss = [&] { return weighted_sum(dy, module.forward(x, call)); };
  const double eps = 1e-5;
  const auto worst = [&](auto parameter, const auto& gradient) {
    double error = 0;
    for_each_index(parameter.shape(), [&](const auto& at) {
      const double kept = parameter(at);
      parameter(at) = kept + eps;
      const double above = loss();
      parameter(at) = kept - eps;
      const double below = loss();
      parameter(at) = kept;
      const double n = (above - below) / (2 * eps), a = gradient(at);
      error = std::max(error, std::abs(a - n) / (std::abs(a) + std::abs(n) + 1e-8));
    });
    return error;
  };
  auto& p = module.parameters();
  CHECK(worst(p.W_Q(), gradients.grad_W_Q()) < 1e-5);
  CHECK(worst(p.W_K(), gradients.grad_W_K()) < 1e-5);
  CHECK(worst(p.W_V(), gradients.grad_W_V()) < 1e-5);
  CHECK(worst(as_view(p.w_o), gradients.grad_W_O()) < 1e-5);
  CHECK(worst(as_view(p.b_o), gradients.grad_b_O()) < 1e-5);
  CHECK(worst(as_view(x), dx) < 1e-5);
}

TEST_CASE("causal mask: position i attends only to positions 0 ... i in every head", "[seeds]") {
  const MultiHeadAttention<double> module(12, 4);
  const auto x = random_tensor<double>(Shape{2, 9, 12}, 3);
  const Tensor4<double> weights = weights_of(module, x, {causal});
  for_each_index(weights.shape(),
                 [&](const Shape<4>& at) { CHECK((weights(at) > 0) == (at[3] <= at[2])); });
}

TEST_CASE("causal mask: what comes after position i changes no bit of its output, on either path",
          "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module(12, 4);
  auto x = random_tensor<double>(Shape{1, 9, 12}, 3);
  const auto call = call_of<double>(path, {causal});
  const Tensor3<double> before = module.forward(x, call);
  for (Index n = 0; n < 12; ++n) x(0, 6, n) += 100;
  const Tensor3<double> after = module.forward(x, call);
  CHECK(bitwise_equal(slice(after, 1, 0, 6), slice(before, 1, 0, 6)));
  for (Index i = 6; i < 9; ++i) {
    CHECK_FALSE(bitwise_equal(slice(after, 1, i, 1), slice(before, 1, i, 1)));
  }
}

TEST_CASE("masked positions get -infinity before softmax, 0 after softmax", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module(12, 4);
  const auto x = random_tensor<double>(Shape{2, 6, 12}, 4);
  Trace trace;
  Context context;
  context.trace = &trace;
  MultiHeadAttentionCache<double> cache;
  (void)module.forward(x, call_of<double>(path, {causal}), cache, context);
  const auto scores = trace.view<4>("A"), weights = trace.view<4>("AS");
  for_each_index(scores.shape(), [&](const Shape<4>& at) {
    const bool hidden = at[3] > at[2];
    CHECK((scores(at) == -std::numeric_limits<double>::infinity()) == hidden);
    CHECK((weights(at) == 0) == hidden);
  });
}

TEST_CASE("mask broadcasts correctly over batch and head dimensions", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index B = 3, H = 4, L = 6;
  const MultiHeadAttention<double> module(12, H);
  const auto x = random_tensor<double>(Shape{B, L, 12}, 5);
  const auto bias = random_tensor<double>(Shape{L, L}, 6);
  Tensor4<double> repeated({B, H, L, L}), one({1, 1, L, L});
  for_each_index(repeated.shape(), [&](const Shape<4>& at) { repeated(at) = bias(at[2], at[3]); });
  copy(In<double, 2>(bias), select(select(one, 0), 0));
  const auto y = module.forward(x, call_of<double>(path, {Mask::bias(bias)}));
  CHECK(bitwise_equal(module.forward(x, call_of<double>(path, {Mask::bias(one)})), y));
  CHECK(bitwise_equal(module.forward(x, call_of<double>(path, {Mask::bias(repeated)})), y));
  CHECK_FALSE(close_to(module.forward(x, call_of<double>(path)), y, 1e-3));
  // An additive mask of -infinity above the diagonal, (L, L) or (1, 1, L, L), is causal.
  const auto mask = causal_mask<double>(L, -std::numeric_limits<double>::infinity());
  CHECK(bitwise_equal(weights_of(module, x, {Mask::bias(mask)}), weights_of(module, x, {causal})));
}

TEMPLATE_TEST_CASE("large attention scores do not overflow", "[seeds]", float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<TestType> module(8, 2);
  for (const double size : {30.0, 1000.0, 1e5}) {
    CAPTURE(size);
    auto x = random_tensor<TestType>(Shape{2, 16, 8}, 7);
    for (TestType& value : x) value *= static_cast<TestType>(size);
    CHECK(trains_finitely(module, x, path, {}));
    CHECK(trains_finitely(module, x, path, {causal}));
    CHECK(worst_row_sum(weights_of(module, x)) < 1e-6);
  }
}

TEMPLATE_TEST_CASE("very long sequences (L = 512): attention weights do not underflow to all zeros",
                   "[seeds]", float, double) {
  const MultiHeadAttention<TestType> module(8, 2);
  auto x = random_tensor<TestType>(Shape{1, 512, 8}, 8);
  for (TestType& value : x) value *= TestType(20);
  const Tensor4<TestType> weights = weights_of(module, x);
  CHECK(worst_row_sum(weights) < 1e-5);
  for (Index h = 0; h < 2; ++h) {
    for (Index i = 0; i < 512; ++i) {
      TestType greatest = 0;
      for (Index j = 0; j < 512; ++j) greatest = std::max(greatest, weights(0, h, i, j));
      CHECK(greatest >= TestType(1) / TestType(512));
    }
  }
}

TEMPLATE_TEST_CASE("gradient stability: gradients remain finite for long sequences", "[seeds]",
                   float, double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<TestType> module(8, 2);
  const auto x = random_tensor<TestType>(Shape{1, 512, 8}, 9);
  CHECK(trains_finitely(module, x, path, {}));
  CHECK(trains_finitely(module, x, path, {causal}));
}

TEMPLATE_TEST_CASE("large d_model with many heads: no NaN in forward or backward", "[seeds]", float,
                   double) {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<TestType> module(512, 64);
  const auto x = random_tensor<TestType>(Shape{1, 3, 512}, 10);
  CHECK(trains_finitely(module, x, path, {causal}));
}

TEST_CASE(
    "an additive mask of -1e9 in all of a row leaves the softmax of the row, one of -infinity "
    "leaves nothing",
    "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module({.d_model = 4, .num_heads = 1, .o_bias = false});
  const auto x = random_tensor<double>(Shape{1, 3, 4}, 11);
  Tensor2<double> mask({3, 3});
  fill(Out<double, 2>(mask), -1e9);
  const auto free = module.forward(x, call_of<double>(path));
  // 1e9 leaves the scores seven digits.
  CHECK(close_to(module.forward(x, call_of<double>(path, {Mask::bias(mask)})), free, 1e-6));
  fill(Out<double, 2>(mask), -std::numeric_limits<double>::infinity());
  for (const double y : module.forward(x, call_of<double>(path, {Mask::bias(mask)}))) CHECK(y == 0);
}

}  // namespace seeds_textbook_numbers
