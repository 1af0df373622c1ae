// FeedForward and RMSNorm: their operations in a row, with the gradients of all that they learn.
#include "headwise/nn/feed_forward.hpp"

#include "headwise/nn/linear.hpp"
#include "headwise/nn/rms_norm.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"
#include "support/parameter_values.hpp"

namespace nn_feed_forward {

using namespace headwise_tests;

namespace {

constexpr Activation all[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh,
                              Activation::silu};

template <class T>
FeedForward<T> drawn(const FeedForwardOptions& options) {
  FeedForward<T> module(options);
  draw_all(module.parameters(), 7);
  return module;
}

}  // namespace

TEMPLATE_TEST_CASE("FeedForward is linear, activation, linear", "[nn]", float, double) {
  using T = TestType;
  const Activation activation = GENERATE(from_range(std::begin(all), std::end(all)));
  const bool bias = GENERATE(false, true);
  const auto module =
      drawn<T>({.d_model = 5, .d_hidden = 7, .activation = activation, .bias = bias});
  const FeedForwardParameters<T>& p = module.parameters();
  const auto x = random_tensor<T>(Shape{4, 5}, 1), dy = random_tensor<T>(Shape{4, 5}, 2);
  FeedForwardCache<T> cache;
  auto gradients = module.zero_gradients();
  const auto y = module.forward(x, {}, cache);
  const auto dx = module.backward(dy, cache, gradients);
  CHECK(bitwise_equal(y, module.forward(x)));

  Tensor2<T> h({4, 7}), a({4, 7}), wanted({4, 5}), da({4, 7}), dh({4, 7}), d_x({4, 5});
  linear_forward(x, p.w_in, p.b_in, h);
  activation_forward(activation, h, a);
  linear_forward(a, p.w_out, p.b_out, wanted);
  CHECK(bitwise_equal(y, wanted));
  auto expected = module.zero_gradients();
  linear_backward(dy, a, p.w_out, da, expected.w_out, expected.b_out);
  activation_backward(activation, da, h, dh);
  linear_backward(dh, x, p.w_in, d_x, expected.w_in, expected.b_in);
  CHECK(bitwise_equal(dx, d_x));
  CHECK(same_bits(values_of<T>(gradients), values_of<T>(expected)));
  CHECK(names_of(p, "ff.") ==
        (bias ? "ff.W_up ff.W_down ff.b_up ff.b_down " : "ff.W_up ff.W_down "));
}

TEMPLATE_TEST_CASE("a gated FeedForward is f of the gate times up, then linear", "[nn]", float,
                   double) {
  using T = TestType;
  const auto module =
      drawn<T>({.d_model = 5, .d_hidden = 7, .activation = Activation::silu, .gated = true});
  const FeedForwardParameters<T>& p = module.parameters();
  const auto x = random_tensor<T>(Shape{4, 5}, 3);
  Tensor2<T> gate({4, 7}), up({4, 7}), a({4, 7}), wanted({4, 5});
  linear_forward(x, slice(p.w_in, 1, 0, 7), slice(p.b_in, 0, 0, 7), gate);
  linear_forward(x, slice(p.w_in, 1, 7, 7), slice(p.b_in, 0, 7, 7), up);
  swiglu_forward(gate, up, a);
  linear_forward(a, p.w_out, p.b_out, wanted);
  CHECK(bitwise_equal(module.forward(x), wanted));
  CHECK(names_of(p) == "W_gate W_up W_down b_gate b_up b_down ");
  CHECK(names_of(module.zero_gradients()) == names_of(p));
}

TEST_CASE("the gradients of FeedForward are its differences", "[nn]") {
  const Activation activation = GENERATE(from_range(std::begin(all), std::end(all)));
  const bool gated = GENERATE(false, true);
  const bool drops = GENERATE(false, true);
  auto module =
      drawn<double>({.d_model = 3, .d_hidden = 4, .activation = activation, .gated = gated});
  FeedForwardCall call;
  if (drops) call = {{.rate = 0.3, .seed = 1}, {.rate = 0.3, .seed = 2}};
  auto x = random_tensor<double>(Shape{5, 3}, 4);
  const auto dy = random_tensor<double>(Shape{5, 3}, 5);
  FeedForwardCache<double> cache;
  auto gradients = module.zero_gradients();
  (void)module.forward(x, call, cache);
  const auto dx = module.backward(dy, cache, gradients);
  GradientCheck<double> check({.stencil = Stencil::five_point});
  check.input("x", x, dx);
  check_inputs(check, module.parameters(), gradients);
  const auto report = check.run([&] { return weighted_sum(dy, module.forward(x, call)); });
  CAPTURE(static_cast<int>(activation), gated, drops, report);
  CHECK(report);
}

TEST_CASE(
    "dropouts of one seed drop within FeedForward, at its end and elsewhere by masks of their "
    "own",
    "[nn]") {
  const Dropout half{.rate = 0.5, .seed = 3};
  const Tensor2<double> x({16, 16});
  FeedForward<double> layer({.d_model = 16, .d_hidden = 16, .activation = Activation::relu});
  fill(layer.parameters().w_in, 0.0), fill(layer.parameters().b_in, 1.0);
  fill(layer.parameters().w_out, 0.0), fill(layer.parameters().b_out, 1.0);
  for (Index n = 0; n < 16; ++n) layer.parameters().w_out(n, n) = 1;
  const Tensor2<double> ones = layer.forward(x);  // what is dropped within, and at the end, is 2
  Tensor2<double> elsewhere(x.shape());
  dropout_forward(ones, half, elsewhere);
  const auto within = layer.forward(x, {.hidden_dropout = half});
  const auto at_end = layer.forward(x, {.output_dropout = half});
  const auto kept_by_both = [&](const Tensor2<double>& a, double of_a, const Tensor2<double>& b) {
    Index count = 0;
    for_each_index(a.shape(), [&](const Shape<2>& at) { count += a(at) > of_a && b(at) > 0; });
    return count;
  };
  for (const Index both : {kept_by_both(within, 1, at_end), kept_by_both(within, 1, elsewhere),
                           kept_by_both(at_end, 0, elsewhere)}) {
    CHECK(both > 64 - 32);  // of 256 a quarter; 32 are more than 4 deviations
    CHECK(both < 64 + 32);
  }
}

TEST_CASE("FeedForward adds to gradients, takes any number of rows, and starts by seed", "[nn]") {
  const FeedForward<double> module({.d_model = 6}), again({.d_model = 6}),
      other({.d_model = 6, .seed = 1});
  CHECK(module.options().d_hidden == 24);
  CHECK(same_bits(values_of<double>(module.parameters()), values_of<double>(again.parameters())));
  CHECK_FALSE(
      same_bits(values_of<double>(module.parameters()), values_of<double>(other.parameters())));
  CHECK_FALSE(module.parameters().w_in(0, 0) == module.parameters().w_out(0, 0));
  const auto x = random_tensor<double>(Shape{3, 6}, 6);
  FeedForwardCache<double> cache;
  (void)module.forward(x, {}, cache);
  auto once = module.zero_gradients(), twice = module.zero_gradients();
  (void)module.backward(x, cache, once);
  for (int n = 0; n < 2; ++n) (void)module.backward(x, cache, twice);
  const auto a = values_of<double>(once), b = values_of<double>(twice);
  for (std::size_t n = 0; n < a.size(); ++n) CHECK(b[n] == 2 * a[n]);
  twice.zero();
  CHECK(same_bits(values_of<double>(twice), values_of<double>(module.zero_gradients())));
  const Tensor2<double> empty({0, 6});
  CHECK(module.forward(empty, {}, cache).shape() == empty.shape());
  CHECK(module.backward(empty, cache, once).shape() == empty.shape());
  CHECK(same_bits(values_of<double>(once), a));
}

TEST_CASE("a row of FeedForward without a gradient reaches none, whatever it holds", "[nn]") {
  const bool gated = GENERATE(false, true);
  const auto module = drawn<double>({.d_model = 4, .d_hidden = 6, .gated = gated});
  const auto x = random_tensor<double>(Shape{3, 4}, 7);
  auto dy = random_tensor<double>(Shape{3, 4}, 8), bad = x;
  for (Index n = 0; n < 4; ++n) dy(1, n) = 0;
  bad(1, 2) = std::numeric_limits<double>::quiet_NaN();
  bad(1, 3) = std::numeric_limits<double>::infinity();
  const auto gradients_of = [&](const Tensor2<double>& input, Tensor2<double>& dx) {
    FeedForwardCache<double> cache;
    auto gradients = module.zero_gradients();
    (void)module.forward(input, {}, cache);
    dx = module.backward(dy, cache, gradients);
    return values_of<double>(gradients);
  };
  Tensor2<double> dx, bad_dx;
  CHECK(same_bits(gradients_of(x, dx), gradients_of(bad, bad_dx)));
  CHECK(bitwise_equal(dx, bad_dx));
}

TEST_CASE("a FeedForward that runs out of memory leaves cache and gradients as they were", "[nn]") {
  const bool gated = GENERATE(false, true);
  const auto module = drawn<double>({.d_model = 4, .d_hidden = 6, .gated = gated});
  const auto x = random_tensor<double>(Shape{3, 4}, 9),
             other = random_tensor<double>(Shape{2, 4}, 1);
  const FeedForwardCall call{{.rate = 0.3, .seed = 1}, {.rate = 0.3, .seed = 2}};
  FeedForwardCache<double> cache;
  auto gradients = module.zero_gradients();
  (void)module.forward(x, call, cache);
  (void)module.backward(x, cache, gradients);
  const auto once = values_of<double>(gradients);
  const auto hidden = cache.hidden;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)module.backward(x, cache, gradients, {.memory = memory});
            },
            [&] { return same_bits(values_of<double>(gradients), once); }) >= 4);
  CHECK_FALSE(same_bits(values_of<double>(gradients), once));
  bool replaced = false;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              (void)module.forward(other, call, cache, {.memory = memory});
              replaced = cache.x.data() == other.data();
              cache = {};  // before its memory goes
            },
            [&] { return cache.filled && bitwise_equal(cache.hidden, hidden); }) >= 3);
  CHECK(replaced);
}

TEST_CASE("the gradients of RMSNorm are its differences", "[nn]") {
  const bool affine = GENERATE(true, false);
  RMSNorm<double> layer(5, affine, 1e-3);
  draw_all(layer.parameters(), 3);
  auto x = random_tensor<double>(Shape{4, 5}, 10);
  const auto dy = random_tensor<double>(Shape{4, 5}, 11);
  RMSNorm<double>::Cache cache;
  auto gradients = layer.zero_gradients();
  CHECK(bitwise_equal(layer.forward(x, cache), layer.forward(x)));
  const auto dx = layer.backward(dy, cache, gradients);
  GradientCheck<double> check({.stencil = Stencil::five_point});
  check.input("x", x, dx);
  check_inputs(check, layer.parameters(), gradients);
  CHECK(check.run([&] { return weighted_sum(dy, layer.forward(x)); }));
  CHECK(gradients.gamma.absent() == !affine);
  CHECK(layer.epsilon() == 1e-3);
  CHECK(names_of(layer.parameters(), "norm.") == (affine ? "norm.gamma " : ""));
}

TEMPLATE_TEST_CASE("RMSNorm starts as the normalisation alone, and adds up gradients", "[nn]",
                   float, double) {
  const RMSNorm<TestType> affine(6), bare(6, false);
  const auto x = random_tensor<TestType>(Shape{3, 6}, 4);
  CHECK(bitwise_equal(affine.forward(x), bare.forward(x)));
  typename RMSNorm<TestType>::Cache cache;
  auto once = affine.zero_gradients(), twice = affine.zero_gradients();
  (void)affine.forward(x, cache);
  (void)affine.backward(x, cache, once);
  for (int n = 0; n < 2; ++n) (void)affine.backward(x, cache, twice);
  for (Index n = 0; n < 6; ++n) CHECK(twice.gamma(n) == 2 * once.gamma(n));
  const Tensor2<TestType> empty({0, 6});
  CHECK(affine.forward(empty, cache).shape() == empty.shape());
  CHECK(affine.backward(empty, cache, once).shape() == empty.shape());
}

}  // namespace nn_feed_forward
