// Modules that are given inputs of 16 bits refuse what they refuse of floats, in the same words,
// before any number is read.
#include <cmath>

#include "support/refusal.hpp"

namespace bad_calls_narrow_ends {

using namespace headwise_tests;

namespace {

constexpr Index far = Index{1} << 40;

/// Numbers that nobody may read.
template <int R>
In<BFloat16, R> unread(const Shape<R>& shape) {
  static const BFloat16 one;
  return {&one, shape};
}
template <int R>
In<BFloat16, R> null(const Shape<R>& shape) {
  return {nullptr, shape};
}

template <class F>
std::string refusal(const F& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

/// What forward and backward of a module say, where x is as wide as it should not be, dy as long.
template <class Module, int R, class... Call>
void check_refused(const Module& module, const std::string& name, const Shape<R>& shape,
                   const std::string& width, const Call&... call) {
  Shape<R> wide = shape, long_one = shape;
  wide[R - 1] = far;
  long_one[0] = far;
  const auto message = [&](const char* function, const char* argument, const Shape<R>& got,
                           const std::string& expected) {
    return name + "::" + function + ": " + argument + " is " + got.format() + ", expected " +
           expected;
  };
  typename Module::Cache cache;
  CHECK(refusal([&] { module.forward(unread(wide), call...); }) ==
        message("forward", "x", wide, shape.format() + " (" + width + ")"));
  CHECK(refusal([&] { module.forward(unread(wide), call..., cache); }) ==
        message("forward", "x", wide, shape.format() + " (" + width + ")"));
  CHECK(refusal([&] { module.forward(null(shape), call..., cache); }) ==
        name + "::forward: x is " + shape.format() + " at a null address, expected its elements");
  CHECK_FALSE(cache.filled);

  auto gradients = module.zero_gradients();
  CHECK(refusal([&] { module.backward(unread(shape), cache, gradients); }) ==
        name + "::backward: the cache is empty: pass it to forward first");
  const Tensor<BFloat16, R> x(shape);
  (void)module.forward(x, call..., cache);
  CHECK(refusal([&] { module.backward(unread(long_one), cache, gradients); }) ==
        message("backward", "dy", long_one, shape.format() + " (the output)"));
  CHECK(refusal([&] { module.backward(null(shape), cache, gradients); }) ==
        name + "::backward: dy is " + shape.format() + " at a null address, expected its elements");
}

/// backward says the same of dy in 16 bits, which nobody may read, as of floats: where the cache is
/// of `other`, of twice the width, and where the gradients are.
template <class Module, int R, class... Call>
void check_refused_of_other(const Module& module, const Module& other, const Shape<R>& shape,
                            const Call&... call) {
  Shape<R> wide = shape;
  wide[R - 1] = 2 * shape[R - 1];
  const Tensor<BFloat16, R> x(shape), x_of_other(wide);
  const Tensor<float, R> dy(shape);
  typename Module::Cache cache, of_other;
  (void)module.forward(x, call..., cache);
  (void)other.forward(x_of_other, call..., of_other);
  auto gradients = module.zero_gradients(), gradients_of_other = other.zero_gradients();
  const auto check = [&](const typename Module::Cache& given, auto& to) {
    const std::string said = refusal([&] { module.backward(unread(shape), given, to); });
    CHECK(said != "none");
    CHECK(said == refusal([&] { module.backward(dy, given, to); }));
  };
  check(of_other, gradients);
  check(cache, gradients_of_other);
}

}  // namespace

TEST_CASE("modules refuse inputs of 16 bits in the words that they have for floats",
          "[bad_calls]") {
  const Shape<2> rows{2, 6};
  const Shape<3> sequences{2, 3, 6};
  check_refused(Linear<float>(6, 6), "Linear", rows, "the rows of W");
  check_refused(LayerNorm<float>(6), "LayerNorm", rows, "the width of the module");
  check_refused(RMSNorm<float>(6), "RMSNorm", rows, "the width of the module");
  check_refused(FeedForward<float>({.d_model = 6, .d_hidden = 5}), "FeedForward", rows, "d_model 6",
                FeedForwardCall());
  check_refused(MultiHeadAttention<float>(6, 2), "MultiHeadAttention", sequences, "d_model 6",
                MultiHeadAttentionCall<float>());
  check_refused(TransformerBlock<float>({.d_model = 6, .num_heads = 2}), "TransformerBlock",
                sequences, "d_model 6", TransformerBlockCall<float>());
}

TEST_CASE(
    "backward of 16 bits refuses caches and gradients of another module as that of floats does",
    "[bad_calls]") {
  const Shape<2> rows{2, 6};
  const Shape<3> sequences{2, 3, 6};
  check_refused_of_other(Linear<float>(6, 6), Linear<float>(12, 12), rows);
  check_refused_of_other(LayerNorm<float>(6), LayerNorm<float>(12), rows);
  check_refused_of_other(RMSNorm<float>(6), RMSNorm<float>(12), rows);
  check_refused_of_other(FeedForward<float>({.d_model = 6, .d_hidden = 5}),
                         FeedForward<float>({.d_model = 12, .d_hidden = 5}), rows,
                         FeedForwardCall());
  check_refused_of_other(MultiHeadAttention<float>(6, 2), MultiHeadAttention<float>(12, 2),
                         sequences, MultiHeadAttentionCall<float>());
  check_refused_of_other(TransformerBlock<float>({.d_model = 6, .num_heads = 2}),
                         TransformerBlock<float>({.d_model = 12, .num_heads = 2}), sequences,
                         TransformerBlockCall<float>());
}

TEST_CASE("what a cache views is given as the type that it has alone", "[bad_calls]") {
  const Linear<float> linear(6, 4);
  Linear<float>::Cache cache;
  const Tensor<BFloat16, 2> x({2, 6});
  (void)linear.forward(x, cache);
  CHECK(cache.x.as<BFloat16>().data() == x.data());
  CHECK(refusal([&] { (void)cache.x.as<Float16>(); }) ==
        "ViewedFloats::as: the input is of BFloat16, expected Float16");
  CHECK(refusal([&] { (void)In<float, 2>(cache.x); }) ==
        "ViewedFloats::as: the input is of BFloat16, expected floats");
  const Tensor<float, 2> wide({2, 6});
  (void)linear.forward(wide, cache);
  CHECK(In<float, 2>(cache.x).data() == wide.data());
  CHECK(refusal([&] { (void)cache.x.as<BFloat16>(); }) ==
        "ViewedFloats::as: the input is of floats, expected BFloat16");
}

TEST_CASE("cross-attention and steps refuse inputs of 16 bits in the words that they have",
          "[bad_calls]") {
  const MultiHeadAttention<float> attention({.d_model = 6, .num_heads = 2, .kdim = 5, .vdim = 4});
  const Tensor<BFloat16, 3> q({2, 3, 6}), k({2, 7, 5}), v({2, 7, 4});
  MultiHeadAttentionCache<float> cache;
  CHECK(refusal([&] {
          attention.forward(In<BFloat16, 3>(q), k, unread(Shape{2, 7, far}));
        }) == "MultiHeadAttention::forward: value is [2, 7, " + std::to_string(far) +
                  "], expected [2, 7, 4] (batch and length of key, vdim 4)");
  (void)attention.forward(q, k, v, {}, cache);
  auto gradients = attention.zero_gradients();
  CHECK(refusal([&] { attention.backward(q, cache, gradients); }) ==
        "MultiHeadAttention::backward: the cache is of a call with separate keys and values: use "
        "backward_cross");
  CHECK(refusal([&] {
          attention.backward_cross(unread(Shape{2, far, 6}), cache, gradients);
        }) == "MultiHeadAttention::backward_cross: dy is [2, " + std::to_string(far) +
                  ", 6], expected [2, 3, 6] (the output)");

  const TransformerBlock<float> block({.d_model = 6, .num_heads = 2});
  const MultiHeadAttention<float> self(6, 2);
  auto steps = key_value_cache<float>(self, 2, 4);
  const auto wrong = unread(Shape{3, far, 6});
  const std::string expected = ": x is [3, " + std::to_string(far) + ", 6], expected [2, " +
                               std::to_string(far) + ", 6] (batch of the cache, d_model)";
  CHECK(refusal([&] { multi_head_attention_step(self, wrong, steps); }) ==
        "multi_head_attention_step" + expected);
  CHECK(refusal([&] { transformer_block_step(block, wrong, steps); }) ==
        "transformer_block_step" + expected);
  CHECK(
      refusal([&] {
        multi_head_attention_step(self, unread(Shape{2, far, 6}), std::span<const Index>(), steps);
      }) == "multi_head_attention_step: " + std::to_string(far) +
                " tokens behind 0 of sequence 0 are more than the capacity 4 of the cache: roll it "
                "back, clear it or make a larger one");
  CHECK(refusal([&] {
          multi_head_attention_step(attention, unread(Shape{2, 1, 6}), steps);
        }) ==
        "multi_head_attention_step: kdim or vdim differ from d_model, expected a module of "
        "self-attention");
  CHECK(refusal([&] {
          multi_head_attention_step(self, unread(Shape{2, 1, 6}),
                                    MultiHeadAttentionStepCall<float>{.scale = HUGE_VAL}, steps);
        }) ==
        "multi_head_attention_step: scale is inf, expected a finite number, or none for 1 / "
        "sqrt(d)");
  CHECK(steps.length() == 0);
}

TEST_CASE("cross-attention of 16 bits over kept keys is refused before anything is read",
          "[bad_calls]") {
  const MultiHeadAttention<float> module({.d_model = 6, .num_heads = 2, .kdim = 5, .vdim = 7});
  auto cache = key_value_cache(module, 2, 4);
  const auto key = unread(Shape{2, 9, 5}), value = unread(Shape{2, 9, 7});
  CHECK(refusal([&] { cross_attention_append(module, key, value, cache); }) ==
        "cross_attention_append: 9 tokens behind 0 of sequence 0 are more than the capacity 4 of "
        "the cache: roll it back, clear it or make a larger one");
  CHECK(refusal([&] { cross_attention_step(module, key, cache); }) ==
        "cross_attention_step: query is [2, 9, 5], expected [2, 9, 6] (batch of the cache, "
        "d_model)");
  CHECK(cache.length() == 0);
}

TEST_CASE("attention that was moved from refuses inputs of 16 bits before it reads them",
          "[bad_calls]") {
  MultiHeadAttention<float> attention(6, 2);
  const MultiHeadAttention<float> taken = std::move(attention);
  MultiHeadAttentionCache<float> cache;
  const std::string expected =
      "MultiHeadAttention::forward: W_O is [0, 0], expected [6, 6] (the options: a module that was "
      "moved from has none)";
  const auto x = unread(Shape{2, 3, 6});
  CHECK(refusal([&] { attention.forward(x); }) == expected);
  CHECK(refusal([&] { attention.forward(x, {}, cache); }) == expected);
}

}  // namespace bad_calls_narrow_ends
