// Gradients of what changes scores, as a module returns them.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "headwise/kernels/score_function.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/failing_memory.hpp"

namespace nn_score_gradients {

using namespace headwise_tests;

namespace {

/// A scale and ALiBi by parameters of one's own: w0 s - w1 |i - j|.
constexpr auto scaled_and_sloped = [](auto s, const Position& at, const auto& w) {
  const Index distance = at.key < at.query ? at.query - at.key : at.key - at.query;
  return w[0] * s - w[1] * static_cast<float>(distance);
};

/// A call whose scores are w0 / 2 q k^T - w1 |i - j|, and the gradients of w, which begin with 1.
template <class T>
std::vector<T> gradients_of(MultiHeadAttentionCall<T> call, bool by_function) {
  const T w0 = T(0.75), w1 = T(0.125);
  const MultiHeadAttention<T> module({.d_model = 12, .num_heads = 4, .num_kv_heads = 2, .seed = 1});
  const auto x = random_tensor<T>(Shape{1, 29, 12}, 2), dy = random_tensor<T>(x.shape(), 3);
  const auto function = score_function(std::array<T, 2>{w0, w1}, scaled_and_sloped);
  const Tensor1<T> slopes({4}, {w1, w1, w1, w1});
  Tensor1<T> d_function({2}, {1, 1}), d_scale(1), d_slopes(4);
  auto gradients = module.zero_gradients();
  if (by_function) {
    call.scale = T(0.5), call.score.function = function;
    gradients.score.d_function = d_function;
  } else {
    call.scale = T(0.5) * w0, call.score.alibi_slopes = slopes;
    gradients.score.d_scale = d_scale, gradients.score.d_alibi_slopes = d_slopes;
  }
  MultiHeadAttentionCache<T> cache;
  (void)module.forward(x, call, cache);
  (void)module.backward(dy, cache, gradients);
  if (by_function) return {d_function(0), d_function(1)};
  return {1 + T(0.5) * d_scale(0), 1 + d_slopes(0) + d_slopes(1) + d_slopes(2) + d_slopes(3)};
}

}  // namespace

TEMPLATE_TEST_CASE(
    "parameters of a score function in a module have the gradients of the options that it writes "
    "out",
    "[nn]", float, double) {
  using T = TestType;
  const std::vector<Index> starts = {0, 11, 12, 29};
  const bool packed = GENERATE(false, true);
  const Path path = packed ? Path::flash : GENERATE(Path::flash, Path::materialized);
  MultiHeadAttentionCall<T> call{.mask = causal, .path = path};
  if (packed) call.query_starts = starts;
  const std::vector<T> got = gradients_of<T>(call, true), expected = gradients_of<T>(call, false);
  CAPTURE(packed, path == Path::flash);
  const double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-13;
  for (const std::size_t n : {0u, 1u}) {
    CHECK(std::abs(got[n] - expected[n]) <= tolerance * std::abs(expected[n]));
    CHECK(std::abs(expected[n] - 1) > 0.01);
  }
}

TEST_CASE("each of four biases of a module has the gradient of their sum", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> module(12, 4);
  const auto x = random_tensor<double>(Shape{2, 7, 12}, 1),
             dy = random_tensor<double>(x.shape(), 2);
  const Shape<4> shape{2, 4, 7, 7};
  const auto gradients_of = [&](const std::vector<Tensor4<double>>& biases) {
    std::vector<Tensor4<double>> to(biases.size(), Tensor4<double>(shape));
    MultiHeadAttentionCall<double> call{.path = path};
    auto gradients = module.zero_gradients();
    for (std::size_t n = 0; n < biases.size(); ++n) {
      call.mask.add(Mask::bias(biases[n]));
      gradients.score.d_biases[n] = to[n];
    }
    MultiHeadAttentionCache<double> cache;
    (void)module.forward(x, call, cache);
    (void)module.backward(dy, cache, gradients);
    return to;
  };
  std::vector<Tensor4<double>> biases, sum(1, Tensor4<double>(shape));
  for (std::uint64_t n = 0; n < 4; ++n) {
    biases.push_back(random_tensor<double>(shape, 3 + n));
    std::transform(sum[0].begin(), sum[0].end(), biases[n].begin(), sum[0].begin(), std::plus<>());
  }
  const auto expected = gradients_of(sum);
  CHECK(expected[0](1, 3, 4, 5) != 0);
  for (const Tensor4<double>& d_bias : gradients_of(biases)) {
    CHECK(close_to(d_bias, expected[0], 1e-13));
  }
}

TEST_CASE("zero sets back what gradients of scores view, of modules, blocks and decoders", "[nn]") {
  TransformerDecoder<double> decoder(
      {.vocabulary = 5, .max_length = 4, .num_blocks = 2, .block = {.d_model = 4, .num_heads = 2}});
  auto of_decoder = decoder.zero_gradients();
  auto of_module = MultiHeadAttention<double>(4, 2).zero_gradients();
  auto of_block = of_decoder.blocks[0];
  std::array<Tensor1<double>, 4> to;
  for (auto& d_scale : to) d_scale = Tensor1<double>({1}, {7});
  of_module.score.d_scale = to[0], of_block.attention.score.d_scale = to[1];
  for (std::size_t n : {0u, 1u}) of_decoder.blocks[n].attention.score.d_scale = to[n + 2];
  of_module.zero(), of_block.zero(), of_decoder.zero();
  for (const auto& d_scale : to) CHECK(d_scale(0) == 0);
}

TEST_CASE("a decoder that runs out of memory leaves gradients of scores as they were", "[nn]") {
  const TransformerDecoder<double> decoder(
      {.vocabulary = 5, .max_length = 4, .num_blocks = 3, .block = {.d_model = 4, .num_heads = 2}});
  const Tensor2<std::int64_t> tokens({1, 4}, {1, 3, 0, 2});
  const auto d_logits = random_tensor<double>(Shape{4, 5}, 1);
  TransformerDecoderCache<double> cache;
  (void)decoder.forward(tokens, {}, cache);
  auto gradients = decoder.zero_gradients();
  Tensor1<double> own({3}, {1, 2, 3});  // every other element; the last two blocks share one
  gradients.blocks[0].attention.score.d_scale = {&own(0), Shape{1}};
  for (std::size_t n : {1u, 2u}) gradients.blocks[n].attention.score.d_scale = {&own(2), Shape{1}};
  const auto backward = [&](std::pmr::memory_resource* memory) {
    decoder.backward(d_logits, cache, gradients, {.memory = memory});
  };
  const auto unchanged = [&] { return own(0) == 1 && own(1) == 2 && own(2) == 3; };
  CHECK(fail_in_turn(backward, unchanged) > 10);
  CHECK(own(0) != 1);
  CHECK(own(2) != 3);
  CHECK(own(1) == 2);
}

}  // namespace nn_score_gradients
