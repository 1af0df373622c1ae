// The edges of MultiHeadAttention: dropout, empty shapes, queries that see nothing, NaN behind a
// mask, and how weights start.
#include <cmath>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/module_call.hpp"

namespace nn_multi_head_attention_edges {

using namespace headwise_tests;

namespace {

using Options = MultiHeadAttentionOptions;

template <class T, int R>
bool all_equal(const In<T, R>& x, T value) {
  bool equal = true;
  for_each_index(x.shape(), [&](const Shape<R>& at) { equal = equal && x(at) == value; });
  return equal;
}
template <class T, int R>
bool all_finite(const In<T, R>& x) {
  bool finite = true;
  for_each_index(x.shape(), [&](const Shape<R>& at) { finite = finite && std::isfinite(x(at)); });
  return finite;
}

MultiHeadAttention<double> module_with_biases(Options options = {.d_model = 6, .num_heads = 2}) {
  options.q_bias = options.k_bias = options.v_bias = true;
  MultiHeadAttention<double> module(options);
  Draw draw(1);
  for (auto* bias : {&module.parameters().b_q, &module.parameters().b_k, &module.parameters().b_v,
                     &module.parameters().b_o}) {
    for (double& value : *bias) value = draw.normal();
  }
  return module;
}

}  // namespace

TEST_CASE("dropout is drawn anew for each step and each seed, and is none by default", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool of_weights = GENERATE(true, false);
  const auto module = module_with_biases();
  const auto x = random_tensor<double>(Shape{2, 9, 6}, 2);
  const auto forward = [&](const Dropout& dropout) {
    auto call = call_of<double>(path);
    (of_weights ? call.weight_dropout : call.output_dropout) = dropout;
    return module.forward(x, call);
  };
  const Tensor3<double> inference = module.forward(x, call_of<double>(path));
  CHECK(bitwise_equal(forward({.rate = 0, .seed = 5, .step = 6}), inference));
  const Tensor3<double> first = forward({.rate = 0.5, .seed = 1, .step = 1});
  CHECK_FALSE(bitwise_equal(first, inference));
  CHECK(bitwise_equal(first, forward({.rate = 0.5, .seed = 1, .step = 1})));
  CHECK_FALSE(bitwise_equal(first, forward({.rate = 0.5, .seed = 1, .step = 2})));
  CHECK_FALSE(bitwise_equal(first, forward({.rate = 0.5, .seed = 2, .step = 1})));
}

TEST_CASE("both paths drop the same weights", "[nn]") {
  const auto module = module_with_biases();
  const auto x = random_tensor<double>(Shape{2, 70, 6}, 2);
  auto flash = call_of<double>(Path::flash), kept = call_of<double>(Path::materialized);
  flash.weight_dropout = kept.weight_dropout = {.rate = 0.4, .seed = 7, .step = 8};
  CHECK(close_to(module.forward(x, flash), module.forward(x, kept), 1e-13));
}

TEST_CASE("output dropout zeros its share of the outputs and scales the others", "[nn]") {
  const auto module = module_with_biases({.d_model = 32, .num_heads = 2});
  const auto x = random_tensor<double>(Shape{4, 50, 32}, 3);
  auto call = call_of<double>(Path::flash);
  const Tensor3<double> y = module.forward(x, call);
  for (const double rate : {0.1, 0.5, 1.0}) {
    CAPTURE(rate);
    call.output_dropout = {.rate = rate, .seed = 9};
    const Tensor3<double> dropped = module.forward(x, call);
    double zeros = 0;
    for (Index n = 0; n < y.size(); ++n) {
      if (dropped.data()[n] == 0) {
        ++zeros;
      } else {
        CHECK(dropped.data()[n] == Approx(y.data()[n] / (1 - rate)).epsilon(1e-14));
      }
    }
    const double share = zeros / static_cast<double>(y.size());
    // Five standard deviations of a share of 6400 coins.
    CHECK(std::abs(share - rate) <= 5 * std::sqrt(rate * (1 - rate) / 6400));
  }
}

TEST_CASE("no batch and no sequence give an empty output and gradients of 0", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool layer_norm = GENERATE(false, true);
  const auto module = module_with_biases({.d_model = 6, .num_heads = 2, .layer_norm = layer_norm});
  for (const auto& shape : {Shape{0, 4, 6}, Shape{3, 0, 6}, Shape{0, 0, 6}}) {
    const Tensor3<double> x(shape);
    MultiHeadAttentionCache<double> cache;
    auto gradients = module.zero_gradients();
    auto call = call_of<double>(path, {causal});
    call.weight_dropout = call.output_dropout = {.rate = 0.5};
    CHECK(module.forward(x, call, cache).shape() == shape);
    CHECK(module.backward(x, cache, gradients).shape() == shape);
    gradients.for_each([](const std::string& name, auto view) {
      CAPTURE(name);
      CHECK(all_equal(view, 0.0));
    });
  }
}

TEST_CASE("cross-attention to no keys gives rows of b_O", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto module = module_with_biases();
  const auto query = random_tensor<double>(Shape{2, 3, 6}, 4);
  const Tensor3<double> none({2, 0, 6});
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  const Tensor3<double> y = module.forward(query, none, none, call_of<double>(path), cache);
  for_each_index(y.shape(),
                 [&](const Shape<3>& at) { CHECK(y(at) == module.parameters().b_o(at[2])); });
  const auto d = module.backward_cross(query, cache, gradients);
  CHECK(all_equal<double, 3>(d.query, 0));
  CHECK(d.key.shape() == none.shape());
  CHECK(all_equal<double, 2>(gradients.w_qkv, 0));
  CHECK(all_equal<double, 2>(gradients.w_o, 0));
  CHECK_FALSE(all_equal<double, 1>(gradients.b_o, 0));
}

TEST_CASE("queries that see no key give rows of b_O exactly, and no gradient flows there", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto module = module_with_biases();
  const auto query = random_tensor<double>(Shape{1, 5, 6}, 5),
             key = random_tensor<double>(Shape{1, 3, 6}, 6);
  // Bottom-right aligned: queries 0 and 1 stand before the first of 3 keys.
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  const auto y = module.forward(query, key, key, call_of<double>(path, {causal}), cache);
  const auto d = module.backward_cross(query, cache, gradients);
  for (Index i = 0; i < 5; ++i) {
    const auto row = slice(y, 1, i, 1);
    CHECK(bool{bitwise_equal(select(select(row, 0), 0), In<double, 1>(module.parameters().b_o))} ==
          (i < 2));
    // Query 2 sees one key: its weight is 1 whatever the score.
    CHECK(all_equal<double, 3>(slice(d.query, 1, i, 1), 0) == (i <= 2));
  }
  const std::array<Index, 1> nothing = {0};
  const auto hidden = call_of<double>(path, {Mask::key_lengths(nothing)});
  gradients.zero();
  const auto x_y = module.forward(query, hidden, cache);
  const auto dx = module.backward(query, cache, gradients);
  for_each_index(x_y.shape(),
                 [&](const Shape<3>& at) { CHECK(x_y(at) == module.parameters().b_o(at[2])); });
  CHECK(all_equal<double, 3>(dx, 0));
  gradients.for_each([](const std::string& name, auto view) {
    CAPTURE(name);
    CHECK(all_equal(view, 0.0) == (name != "b_O"));
  });
}

TEST_CASE(
    "NaN and infinity in keys and values behind a key length reach no output and no gradient "
    "of a query",
    "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const double poison =
      GENERATE(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity());
  const auto module = module_with_biases();
  const auto query = random_tensor<double>(Shape{2, 4, 6}, 7),
             dy = random_tensor<double>(Shape{2, 4, 6}, 8);
  auto key = random_tensor<double>(Shape{2, 5, 6}, 9),
       value = random_tensor<double>(Shape{2, 5, 6}, 10);
  const std::array<Index, 2> lengths = {3, 5};
  const auto call = call_of<double>(path, {Mask::key_lengths(lengths)});
  const auto step = [&] {
    MultiHeadAttentionCache<double> cache;
    auto gradients = module.zero_gradients();
    auto y = module.forward(query, key, value, call, cache);
    auto d = module.backward_cross(dy, cache, gradients);
    return std::tuple{std::move(y), std::move(d), std::move(gradients)};
  };
  const auto [y, d, gradients] = step();
  for (Index n = 0; n < 6; ++n) key(0, 3, n) = value(0, 4, n) = poison;
  const auto [y_poisoned, d_poisoned, gradients_poisoned] = step();
  CHECK(bitwise_equal(y_poisoned, y));
  CHECK(bitwise_equal(d_poisoned.query, d.query));
  CHECK(bitwise_equal(d_poisoned.key, d.key));
  CHECK(bitwise_equal(d_poisoned.value, d.value));
  CHECK(bitwise_equal(gradients_poisoned.grad_W_Q(), gradients.grad_W_Q()));
  CHECK(bitwise_equal(gradients_poisoned.grad_W_O(), gradients.grad_W_O()));
  CHECK(bitwise_equal(gradients_poisoned.b_k, gradients.b_k));
  CHECK(bitwise_equal(gradients_poisoned.b_v, gradients.b_v));
  CHECK(all_finite(gradients_poisoned.grad_W_K()));
  CHECK(all_finite(gradients_poisoned.grad_W_V()));
}

TEST_CASE("NaN in what a query sees shows in its output", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto module = module_with_biases();
  auto x = random_tensor<double>(Shape{1, 4, 6}, 11);
  x(0, 2, 1) = std::numeric_limits<double>::quiet_NaN();
  const auto y = module.forward(x, call_of<double>(path, {causal}));
  CHECK(all_finite<double, 3>(slice(y, 1, 0, 2)));
  for (Index i = 2; i < 4; ++i) {
    for (Index n = 0; n < 6; ++n) CHECK(std::isnan(y(0, i, n)));
  }
}

TEST_CASE("weights start with the standard deviation of their scheme, by seed, biases at 0",
          "[nn]") {
  const Init init = GENERATE(Init::xavier_normal, Init::he_normal);
  const Options options = {.d_model = 64,
                           .num_heads = 4,
                           .num_kv_heads = 2,
                           .kdim = 48,
                           .q_bias = true,
                           .k_bias = true,
                           .v_bias = true,
                           .layer_norm = true,
                           .init = init,
                           .seed = 42};
  const MultiHeadAttention<double> module(options), again(options);
  Options reseeded = options;
  reseeded.seed = 43;
  const MultiHeadAttention<double> other(reseeded);
  const auto moments = [&](In<double, 2> w, double expected) {
    double mean = 0, squares = 0;
    const auto n = static_cast<double>(w.size());
    for_each_index(w.shape(), [&](const Shape<2>& at) {
      mean += w(at) / n;
      squares += w(at) * w(at) / n;
    });
    // Five standard deviations of a mean and of a variance of n normal numbers.
    CHECK(std::abs(mean) < 5 * expected / std::sqrt(n));
    CHECK(std::abs(squares / (expected * expected) - 1) < 5 * std::sqrt(2 / n));
  };
  const auto scale = [&](double in, double out) {
    return std::sqrt(2 / (init == Init::he_normal ? in : in + out));
  };
  const MultiHeadAttentionParameters<double>& p = module.parameters();
  moments(p.W_Q(), scale(64, 64));
  moments(p.W_K(), scale(48, 32));
  moments(p.W_V(), scale(64, 32));
  moments(p.w_o, scale(64, 64));
  for (const auto* bias : {&p.b_q, &p.b_k, &p.b_v, &p.b_o, &p.beta})
    CHECK(all_equal<double, 1>(*bias, 0));
  CHECK(all_equal<double, 1>(p.gamma, 1));
  CHECK(bitwise_equal(p.W_Q(), again.parameters().W_Q()));
  CHECK(bitwise_equal(p.w_o, again.parameters().w_o));
  CHECK_FALSE(bitwise_equal(p.W_Q(), other.parameters().W_Q()));
  CHECK_FALSE(bitwise_equal(p.w_o, other.parameters().w_o));
  CHECK_FALSE(bitwise_equal(p.W_Q(), In<double, 2>(p.w_o)));
}

TEST_CASE("a fused module starts with the scale of its own projections", "[nn]") {
  const MultiHeadAttention<float> module(128, 4);
  double squares = 0;
  for (const float w : module.parameters().w_qkv) squares += double{w} * double{w};
  CHECK(squares / (3 * 128 * 128) == Approx(2.0 / 256).epsilon(0.03));
}

}  // namespace nn_multi_head_attention_edges
