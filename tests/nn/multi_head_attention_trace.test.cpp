// Every tensor of the textbook's table under its name, with its shape, and consistent with the
// others, on both paths.
#include <cmath>
#include <map>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/ops/softmax.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"

namespace nn_multi_head_attention_trace {

using namespace headwise_tests;

namespace {

/// A traced step of self-attention: causal, with everything that the table names.
struct TracedStep {
  MultiHeadAttention<double> module;
  Tensor3<double> x, dy, y, dx;
  MultiHeadAttentionCall<double> call;
  MultiHeadAttentionGradients<double> gradients;
  Trace trace;

  explicit TracedStep(Path path, bool traced = true)
      : module({.d_model = 12, .num_heads = 3, .layer_norm = true}),
        x(random_tensor<double>(Shape{2, 5, 12}, 1)),
        dy(random_tensor<double>(Shape{2, 5, 12}, 2)) {
    copy(In<double, 1>(random_tensor<double>(Shape{12}, 3)),
         Out<double, 1>(module.parameters().b_o));
    call.mask = {causal};
    call.path = path;
    call.output_dropout = {.rate = 0.3, .seed = 4};
    Context context;
    if (traced) context.trace = &trace;
    MultiHeadAttentionCache<double> cache;
    gradients = module.zero_gradients();
    y = module.forward(x, call, cache, context);
    dx = module.backward(dy, cache, gradients, context);
  }
  template <int R>
  In<double, R> at(const char* name) const {
    return trace.view<R>(name);
  }
};

/// a [N, K] b [K, M], summed plainly.
Tensor2<double> product(const In<double, 2>& a, const In<double, 2>& b) {
  Tensor2<double> c({a.extent(0), b.extent(1)});
  for_each_index(c.shape(), [&](const Shape<2>& i) {
    for (Index k = 0; k < a.extent(1); ++k) c(i) += a(i[0], k) * b(k, i[1]);
  });
  return c;
}

}  // namespace

TEST_CASE("the trace holds every tensor of the table with exactly its shape", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const TracedStep step(path);
  using Extents = std::vector<Index>;
  const Extents rows = {2, 5, 12}, heads = {2, 3, 5, 4}, pairs = {2, 3, 5, 5}, square = {12, 12};
  const std::map<std::string, Extents> table = {
      {"X", rows},         {"X_norm", rows},       {"Q", heads},         {"K", heads},
      {"V", heads},        {"W_Q", square},        {"W_K", square},      {"W_V", square},
      {"W_O", square},     {"b_O", {12}},          {"A", pairs},         {"AS", pairs},
      {"AO_heads", heads}, {"AO_cat", rows},       {"AO_lin", rows},     {"AO_bias", rows},
      {"A_out", rows},     {"dA_out", rows},       {"dQ", heads},        {"dK", heads},
      {"dV", heads},       {"dK^T", {2, 3, 4, 5}}, {"dAO_heads", heads}, {"dX_norm,Q", rows},
      {"dX_norm,K", rows}, {"dX_norm,V", rows},    {"dX_norm", rows},    {"dX", rows},
      {"dW_Q", square},    {"dW_K", square},       {"dW_V", square},     {"dW_O", square},
      {"db_O", {12}}};
  for (const auto& [name, shape] : table) {
    CAPTURE(name);
    REQUIRE(step.trace.contains(name));
    CHECK(step.trace.at(name).shape == shape);
  }
}

TEST_CASE("the tensors of the trace follow from one another in forward", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const TracedStep step(path);
  const auto rows = [&](const char* name) { return merge_rows(step.at<3>(name)); };
  CHECK(bitwise_equal(step.at<3>("X"), step.x));
  for (Index n = 0; n < 10; ++n) {
    double mean = 0, squares = 0;
    for (Index m = 0; m < 12; ++m) mean += rows("X_norm")(n, m) / 12;
    for (Index m = 0; m < 12; ++m) squares += std::pow(rows("X_norm")(n, m) - mean, 2) / 12;
    CHECK(std::abs(mean) < 1e-15);
    CHECK(squares == Approx(1).epsilon(1e-3));
  }
  for (const auto& [projection, w] : {std::pair{"Q", "W_Q"}, {"K", "W_K"}, {"V", "W_V"}}) {
    const Tensor2<double> expected = product(rows("X_norm"), step.at<2>(w));
    Tensor3<double> merged({2, 5, 12});
    copy(step.at<4>(projection), split_heads(merged, 3));
    CHECK(close_to(merge_rows(In<double, 3>(merged)), expected, 1e-14));
  }
  const auto q = step.at<4>("Q"), k = step.at<4>("K"), v = step.at<4>("V"), a = step.at<4>("A");
  const auto weights = step.at<4>("AS");
  for_each_index(a.shape(), [&](const Shape<4>& at) {
    const auto [b, h, i, j] = at.extents;
    if (j > i) {
      CHECK(a(at) == -std::numeric_limits<double>::infinity());
      CHECK(weights(at) == 0);
      return;
    }
    double dot = 0, mass = 0;
    for (Index c = 0; c < 4; ++c) dot += q(b, h, i, c) * k(b, h, j, c);
    CHECK(a(at) == Approx(dot / 2).epsilon(1e-13).margin(1e-14));
    for (Index n = 0; n <= i; ++n) mass += std::exp(a(b, h, i, n));
    CHECK(weights(at) == Approx(std::exp(a(at)) / mass).epsilon(1e-13));
  });
  const auto context = step.at<4>("AO_heads");
  for_each_index(context.shape(), [&](const Shape<4>& at) {
    double sum = 0;
    for (Index j = 0; j < 5; ++j)
      sum += weights(at[0], at[1], at[2], j) * v(at[0], at[1], j, at[3]);
    CHECK(context(at) == Approx(sum).epsilon(1e-13).margin(1e-14));
  });
  CHECK(bitwise_equal(context, split_heads(step.at<3>("AO_cat"), 3)));
  CHECK(close_to(rows("AO_lin"), product(rows("AO_cat"), step.at<2>("W_O")), 1e-14));
  for_each_index(Shape{10, 12}, [&](const Shape<2>& at) {
    const double before = rows("AO_bias")(at), after = rows("A_out")(at);
    CHECK(before == Approx(rows("AO_lin")(at) + step.at<1>("b_O")(at[1])).margin(1e-15));
    CHECK((after == 0 || after == Approx(before / 0.7)));
  });
  CHECK(bitwise_equal(step.at<3>("A_out"), step.y));
}

TEST_CASE("the tensors of the trace follow from one another in backward", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const TracedStep step(path);
  const auto rows = [&](const char* name) { return merge_rows(step.at<3>(name)); };
  CHECK(bitwise_equal(step.at<3>("dA_out"), step.dy));
  CHECK(bitwise_equal(step.at<4>("dK^T"), transpose(step.at<4>("dK"), 2, 3)));
  Tensor3<double> sum({2, 5, 12});
  for (const auto& [branch, gradient, w] : {std::tuple{"dX_norm,Q", "dQ", "W_Q"},
                                            {"dX_norm,K", "dK", "W_K"},
                                            {"dX_norm,V", "dV", "W_V"}}) {
    Tensor3<double> merged({2, 5, 12});
    copy(step.at<4>(gradient), split_heads(merged, 3));
    const In<double, 2> d = merge_rows(In<double, 3>(merged));
    CHECK(close_to(rows(branch), product(d, transpose(step.at<2>(w), 0, 1)), 1e-14));
    const std::string dw = "d" + std::string(w);
    CHECK(close_to(step.at<2>(dw.c_str()), product(transpose(rows("X_norm"), 0, 1), d), 1e-14));
    const In<double, 3> part = step.at<3>(branch);
    for_each_index(sum.shape(), [&](const Shape<3>& at) { sum(at) += part(at); });
  }
  CHECK(close_to(step.at<3>("dX_norm"), sum, 1e-14));
  CHECK(bitwise_equal(step.at<3>("dX"), step.dx));
  CHECK(bitwise_equal(step.at<2>("dW_Q"), step.gradients.grad_W_Q()));
  CHECK(bitwise_equal(step.at<2>("dW_O"), step.gradients.grad_W_O()));
  CHECK(bitwise_equal(step.at<1>("db_O"), step.gradients.grad_b_O()));
  // db_O sums what dropout lets through; dAO_heads is that times W_O^T, in heads.
  Tensor2<double> dropped({10, 12});
  for_each_index(dropped.shape(), [&](const Shape<2>& at) {
    dropped(at) = rows("A_out")(at) == 0 ? 0 : rows("dA_out")(at) / 0.7;
  });
  for (Index m = 0; m < 12; ++m) {
    double column = 0;
    for (Index n = 0; n < 10; ++n) column += dropped(n, m);
    CHECK(step.at<1>("db_O")(m) == Approx(column).epsilon(1e-13).margin(1e-14));
  }
  Tensor3<double> d_context({2, 5, 12});
  copy(step.at<4>("dAO_heads"), split_heads(d_context, 3));
  CHECK(close_to(merge_rows(In<double, 3>(d_context)),
                 product(dropped, transpose(step.at<2>("W_O"), 0, 1)), 1e-14));
}

TEST_CASE("a trace changes no bit of the result", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const TracedStep with(path), without(path, false);
  CHECK(without.trace.entries().empty());
  CHECK(bitwise_equal(with.y, without.y));
  CHECK(bitwise_equal(with.dx, without.dx));
  CHECK(bitwise_equal(with.gradients.w_qkv, without.gradients.w_qkv));
  CHECK(bitwise_equal(with.gradients.w_o, without.gradients.w_o));
  CHECK(bitwise_equal(with.gradients.b_o, without.gradients.b_o));
  CHECK(bitwise_equal(with.gradients.gamma, without.gradients.gamma));
  CHECK(bitwise_equal(with.gradients.beta, without.gradients.beta));
}

TEST_CASE("the trace of grouped cross-attention has the shapes of keys and values", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module({.d_model = 8,
                                           .num_heads = 4,
                                           .num_kv_heads = 2,
                                           .d_value = 3,
                                           .kdim = 5,
                                           .vdim = 6,
                                           .o_bias = false});
  const auto q = random_tensor<double>(Shape{1, 3, 8}, 1),
             k = random_tensor<double>(Shape{1, 4, 5}, 2);
  const auto v = random_tensor<double>(Shape{1, 4, 6}, 3);
  Trace trace;
  Context context;
  context.trace = &trace;
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  MultiHeadAttentionCall<double> call;
  call.path = path;
  (void)module.forward(q, k, v, call, cache, context);
  (void)module.backward_cross(q, cache, gradients, context);
  CHECK(trace.view<4>("K").shape() == Shape{1, 2, 4, 2});
  CHECK(trace.view<4>("V").shape() == Shape{1, 2, 4, 3});
  CHECK(trace.view<4>("A").shape() == Shape{1, 4, 3, 4});
  CHECK(trace.view<4>("dK^T").shape() == Shape{1, 2, 2, 4});
  CHECK(trace.view<3>("dX_norm,K").shape() == k.shape());
  CHECK(trace.view<3>("dX_norm,V").shape() == v.shape());
  CHECK_FALSE(trace.contains("b_O"));
}

}  // namespace nn_multi_head_attention_trace
