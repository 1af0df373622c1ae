// Linear and LayerNorm as modules: they are their operations.
#include "headwise/headwise.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"

namespace nn_modules {

using namespace headwise_tests;

TEMPLATE_TEST_CASE("Linear is linear_forward and linear_backward", "[nn]", float, double) {
  const bool bias = GENERATE(true, false);
  Linear<TestType> layer(4, 3, bias, Init::he_normal, 5);
  for (TestType& b : layer.parameters().b) b = TestType(0.5);
  const auto x = random_tensor<TestType>(Shape{5, 4}, 1),
             dy = random_tensor<TestType>(Shape{5, 3}, 2);
  typename Linear<TestType>::Cache cache;
  LinearParameters<TestType> gradients = layer.zero_gradients(), expected = layer.zero_gradients();
  const auto y = layer.forward(x, cache);
  CHECK(bitwise_equal(y, layer.forward(x)));
  const auto dx = layer.backward(dy, cache, gradients);
  const LinearParameters<TestType>& p = layer.parameters();
  Tensor2<TestType> op_y({5, 3}), op_dx({5, 4});
  linear_forward(x, p.w, p.b, op_y);
  linear_backward(dy, x, p.w, op_dx, expected.w, expected.b);
  CHECK(bitwise_equal(y, op_y));
  CHECK(bitwise_equal(dx, op_dx));
  CHECK(bitwise_equal(gradients.w, expected.w));
  CHECK(bitwise_equal(gradients.b, expected.b));
  CHECK(p.b.absent() == !bias);
  std::string names;
  p.for_each([&](const std::string& name, auto) { names += name + " "; }, "out.");
  CHECK(names == (bias ? "out.W out.b " : "out.W "));
}

TEST_CASE("Linear starts by seed, with a bias of 0", "[nn]") {
  const Linear<double> a(30, 40, true, Init::xavier_normal, 1),
      b(30, 40, true, Init::xavier_normal, 1);
  const Linear<double> c(30, 40, true, Init::xavier_normal, 2), d(30, 40, true, Init::he_normal, 1);
  CHECK(bitwise_equal(a.parameters().w, b.parameters().w));
  CHECK_FALSE(bitwise_equal(a.parameters().w, c.parameters().w));
  const double ratio = d.parameters().w(3, 4) / a.parameters().w(3, 4);
  CHECK(ratio == Approx(std::sqrt(70.0 / 30)));
  for (const double bias : a.parameters().b) CHECK(bias == 0);
}

TEST_CASE("the gradients of LayerNorm are its differences", "[nn]") {
  const bool affine = GENERATE(true, false);
  LayerNorm<double> layer(5, affine, 1e-3);
  Draw draw(3);
  for (auto* p : {&layer.parameters().gamma, &layer.parameters().beta}) {
    for (double& value : *p) value = draw.normal();
  }
  auto x = draw.tensor<double>(Shape{4, 5});
  const auto dy = draw.tensor<double>(x.shape());
  LayerNorm<double>::Cache cache;
  LayerNormParameters<double> gradients = layer.zero_gradients();
  CHECK(bitwise_equal(layer.forward(x, cache), layer.forward(x)));
  const auto dx = layer.backward(dy, cache, gradients);
  GradientCheck<double> check({.stencil = Stencil::five_point});
  check.input("x", x, dx);
  if (affine) {
    check.input("gamma", layer.parameters().gamma, gradients.gamma);
    check.input("beta", layer.parameters().beta, gradients.beta);
  }
  CHECK(check.run([&] { return weighted_sum(dy, layer.forward(x)); }));
  CHECK(gradients.gamma.absent() == !affine);
  CHECK(layer.epsilon() == 1e-3);
}

TEMPLATE_TEST_CASE("LayerNorm starts as the normalisation alone, and adds up gradients", "[nn]",
                   float, double) {
  const LayerNorm<TestType> affine(6), bare(6, false);
  const auto x = random_tensor<TestType>(Shape{3, 6}, 4);
  CHECK(bitwise_equal(affine.forward(x), bare.forward(x)));
  typename LayerNorm<TestType>::Cache cache;
  LayerNormParameters<TestType> once = affine.zero_gradients(), twice = affine.zero_gradients();
  (void)affine.forward(x, cache);
  (void)affine.backward(x, cache, once);
  for (int n = 0; n < 2; ++n) (void)affine.backward(x, cache, twice);
  for (Index n = 0; n < 6; ++n) {
    CHECK(twice.gamma(n) == 2 * once.gamma(n));
    CHECK(twice.beta(n) == 2 * once.beta(n));
  }
  const Tensor2<TestType> empty({0, 6});
  CHECK(affine.forward(empty, cache).shape() == empty.shape());
  CHECK(affine.backward(empty, cache, once).shape() == empty.shape());
}

TEST_CASE("zero_gradients are 0, and as many bytes as the parameters, of the memory that is named",
          "[nn]") {
  const auto holds = [](const auto& module) {
    std::int64_t bytes = 0;
    module.parameters().for_each(
        [&](const std::string&, auto p) { bytes += p.size() * std::int64_t(sizeof(*p.data())); });
    MemoryTally memory;
    const auto gradients = module.zero_gradients(&memory);
    gradients.for_each([&](const std::string& name, auto g) {
      CAPTURE(name);
      bool zero = true;
      for_each_index(g.shape(), [&](const auto& at) { zero = zero && g(at) == 0; });
      CHECK(zero);
    });
    CHECK(memory.live() == bytes);
  };
  holds(Linear<float>(4, 3));
  holds(Linear<double>(4, 3, false));
  holds(LayerNorm<float>(5));
  holds(RMSNorm<float>(5));
  holds(Embedding<float>(7, 3));
  holds(FeedForward<float>({.d_model = 4}));
  holds(MultiHeadAttention<float>({.d_model = 4, .num_heads = 2}));
  holds(TransformerBlock<float>({.d_model = 4, .num_heads = 2}));
}

}  // namespace nn_modules
