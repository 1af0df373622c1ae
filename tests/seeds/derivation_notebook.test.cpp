// The derivation notebook: softmax and its Jacobian by number, the attention core and multi-head
// attention by differences, the causal mask, and why scores are scaled.
#include <cmath>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/ops/softmax.hpp"
#include "headwise/testing/check_op.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"

namespace seeds_derivation_notebook {

using namespace headwise_tests;

namespace {

Tensor2<double> softmax(const Tensor2<double>& x) {
  Tensor2<double> p(x.shape());
  softmax_forward(x, p);
  return p;
}

/// |a - n| / (|a| + |n| + 1e-8), the notebook's rule, at its worst.
template <class Loss>
double worst_relative_error(Out<double, 2> x, const In<double, 2>& dx, Loss&& loss) {
  const double eps = 1e-5;
  double worst = 0;
  for_each_index(x.shape(), [&](const Shape<2>& at) {
    const double kept = x(at);
    x(at) = kept + eps;
    const double above = loss();
    x(at) = kept - eps;
    const double below = loss();
    x(at) = kept;
    const double numeric = (above - below) / (2 * eps), analytic = dx(at);
    const double scale = std::abs(analytic) + std::abs(numeric) + 1e-8;
    worst = std::max(worst, std::abs(analytic - numeric) / scale);
  });
  return worst;
}

}  // namespace

TEST_CASE("softmax of [2, 1, 0.1], its Jacobian and its backward are the notebook's", "[seeds]") {
  const Tensor2<double> x({1, 3}, {2.0, 1.0, 0.1}), dp({1, 3}, {0.5, -0.3, 0.2});
  const Tensor2<double> p = softmax(x);
  CHECK(close_to(p, Tensor2<double>({1, 3}, {0.65900114, 0.24243297, 0.09856589}), 1e-8));
  Tensor2<double> jacobian({3, 3}), dx({1, 3}), by_jacobian({1, 3});
  softmax_jacobian<double>(select(p, 0), jacobian);
  CHECK(close_to(jacobian,
                 Tensor2<double>({3, 3}, {.22471864, -.1597636, -.06495503, -.1597636, .18365923,
                                          -.02389562, -.06495503, -.02389562, .08885066}),
                 3e-8));
  for (Index i = 0; i < 3; ++i) {
    CHECK(std::abs(jacobian(i, 0) + jacobian(i, 1) + jacobian(i, 2)) < 1e-16);
    CHECK(jacobian(i, i) == Approx(p(0, i) * (1 - p(0, i))));
    for (Index j = 0; j < 3; ++j) by_jacobian(0, j) += jacobian(i, j) * dp(0, i);
  }
  softmax_backward(dp, p, dx);
  CHECK(close_to(dx, Tensor2<double>({1, 3}, {0.14729739, -0.13975869, -0.0075387}), 4e-8));
  CHECK(close_to(dx, by_jacobian, 1e-15));
}

TEST_CASE("softmax is positive, sums to 1 and ignores a constant that is added", "[seeds]") {
  auto x = random_tensor<double>(Shape{7, 11}, 1);
  const Tensor2<double> p = softmax(x);
  for (double& value : x) value += 1000;
  CHECK(close_to(softmax(x), p, 1e-12));  // 1000 leaves 13 digits of x
  for (Index n = 0; n < 7; ++n) {
    double sum = 0;
    for (Index m = 0; m < 11; ++m) {
      CHECK(p(n, m) > 0);
      sum += p(n, m);
    }
    CHECK(std::abs(sum - 1) < 1e-15);
  }
}

TEST_CASE("softmax of [10, 0, 0] saturates", "[seeds]") {
  const Tensor2<double> p = softmax(Tensor2<double>({1, 3}, {10, 0, 0}));
  CHECK(close_to(p, Tensor2<double>({1, 3}, {0.99990921, 4.53958078e-5, 4.53958078e-5}), 1e-8));
}

TEST_CASE("the attention core of T, d = 4, 3 has the gradients of its differences", "[seeds]") {
  Draw draw(42);
  std::array<Tensor4<double>, 3> x;  // q, k, v
  for (auto& input : x) input = draw.tensor<double>(Shape{1, 1, 4, 3});
  const auto d_o = draw.tensor<double>(Shape{1, 1, 4, 3});
  Tensor4<double> weights({1, 1, 4, 4}), o({1, 1, 4, 3});
  const auto loss = [&] {
    attention_forward(x[0], x[1], x[2], {}, weights, o);
    return weighted_sum(d_o, o);
  };
  (void)loss();
  for (Index i = 0; i < 4; ++i) {
    double sum = 0;
    for (Index j = 0; j < 4; ++j) sum += weights(0, 0, i, j);
    CHECK(sum == Approx(1));
  }
  std::array<Tensor4<double>, 3> dx, flash;
  for (auto* gradients : {&dx, &flash}) {
    for (auto& gradient : *gradients) gradient = Tensor4<double>({1, 1, 4, 3});
  }
  attention_backward(d_o, {x[0], x[1], x[2]}, weights, {}, {dx[0], dx[1], dx[2]});
  Tensor4<double> lse({1, 1, 4, 2});
  flash_attention_forward(x[0], x[1], x[2], {}, o, lse);
  flash_attention_backward(d_o, {x[0], x[1], x[2]}, o, lse, {}, {flash[0], flash[1], flash[2]});
  for (std::size_t n = 0; n < 3; ++n) {
    CHECK(worst_relative_error(select(select(x[n], 0), 0), select(select(dx[n], 0), 0), loss) <
          1e-5);
    CHECK(close_to(flash[n], dx[n], 1e-14));
  }
}

TEST_CASE(
    "gradient check of multi-head attention of B, T, D = 2, 5, 12 and 3 heads, with and "
    "without causal mask",
    "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool masked = GENERATE(true, false);
  MultiHeadAttention<double> module(
      {.d_model = 12, .num_heads = 3, .o_bias = false, .init = Init::he_normal, .seed = 42});
  auto x = random_tensor<double>(Shape{2, 5, 12}, 1);
  const auto dy = random_tensor<double>(x.shape(), 2);
  MultiHeadAttentionCall<double> call;
  call.path = path;
  const Tensor2<double> mask = causal_mask<double>(5);
  if (masked) call.mask = {Mask::bias(mask)};
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  (void)module.forward(x, call, cache);
  const Tensor3<double> dx = module.backward(dy, cache, gradients);
  const auto loss = [&] { return weighted_sum(dy, module.forward(x, call)); };
  CHECK(worst_relative_error(merge_rows(x), merge_rows(In<double, 3>(dx)), loss) < 1e-5);
  auto& p = module.parameters();
  CHECK(worst_relative_error(p.W_Q(), gradients.grad_W_Q(), loss) < 1e-5);
  CHECK(worst_relative_error(p.W_K(), gradients.grad_W_K(), loss) < 1e-5);
  CHECK(worst_relative_error(p.W_V(), gradients.grad_W_V(), loss) < 1e-5);
  CHECK(worst_relative_error(p.w_o, gradients.grad_W_O(), loss) < 1e-5);
  CHECK(worst_relative_error(p.w_o, gradients.grad_W_Q(), loss) > 1e-3);  // it can fail
}

TEST_CASE("causal_mask adds 0 up to the diagonal and the fill above it, and gives zeros there",
          "[seeds]") {
  const Tensor2<double> mask = causal_mask<double>(6);
  auto scores = random_tensor<double>(Shape{6, 6}, 3);
  for_each_index(mask.shape(), [&](const Shape<2>& at) {
    CHECK(mask(at) == (at[1] > at[0] ? -1e9 : 0));
    scores(at) += mask(at);
  });
  const Tensor2<double> p = softmax(scores);
  for_each_index(p.shape(), [&](const Shape<2>& at) { CHECK((p(at) == 0) == (at[1] > at[0])); });
  CHECK(causal_mask<float>(3, -5)(0, 2) == -5);
}

TEST_CASE("a causal mask that is added equals causal", "[seeds]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module(12, 3);
  const auto x = random_tensor<double>(Shape{2, 5, 12}, 1);
  const Tensor2<double> mask = causal_mask<double>(5);
  MultiHeadAttentionCall<double> added, structural;
  added.path = structural.path = path;
  added.mask = {Mask::bias(In<double, 4>(mask.data(), Shape{1, 1, 5, 5}))};
  structural.mask = {causal};
  CHECK(close_to(module.forward(x, added), module.forward(x, structural), 1e-14));
}

TEST_CASE("the weights of each head can be taken out, B, T, D = 1, 8, 16 and 4 heads", "[seeds]") {
  const MultiHeadAttention<float> module(
      {.d_model = 16, .num_heads = 4, .init = Init::he_normal, .seed = 42});
  const auto x = random_tensor<float>(Shape{1, 8, 16}, 123);
  MultiHeadAttentionCall<float> call;
  call.path = Path::materialized;
  call.mask = {causal};
  MultiHeadAttentionCache<float> cache;
  (void)module.forward(x, call, cache);
  REQUIRE(cache.weights.shape() == Shape{1, 4, 8, 8});
  for (Index h = 1; h < 4; ++h) {
    CHECK_FALSE(close_to(slice(cache.weights, 1, h, 1), slice(cache.weights, 1, 0, 1), 1e-2));
  }
}

TEST_CASE("the standard deviation of q k grows as the root of d, and scaling makes it 1",
          "[seeds]") {
  const int samples = 10000;
  // Independent numbers of mean 0 and variance 1, evenly distributed: by Marsaglia's xorshift, for
  // there are 50 million of them.
  std::uint64_t state = 42;
  const auto number = [&] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (static_cast<double>(state >> 11) * 0x1.0p-52 - 1) * std::sqrt(3.0);
  };
  for (const Index d : {8, 64, 512, 2048}) {
    const double root = std::sqrt(static_cast<double>(d));
    double squares = 0, scaled_squares = 0;
    for (int n = 0; n < samples; ++n) {
      double dot = 0;
      for (Index c = 0; c < d; ++c) {
        const double q = number(), k = number();
        dot += q * k;
      }
      squares += dot * dot / samples;
      scaled_squares += (dot / root) * (dot / root) / samples;
    }
    CAPTURE(d);
    // Five standard deviations of the deviation of 10,000 numbers: 5 / sqrt(20,000).
    CHECK(std::sqrt(squares) == Approx(root).epsilon(0.036));
    CHECK(std::sqrt(scaled_squares) == Approx(1).epsilon(0.036));
  }
}

}  // namespace seeds_derivation_notebook
