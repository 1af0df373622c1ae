// Decoding by a TransformerBlock from a cache, with the bits of the whole sequence.
#include "headwise/nn/transformer_block_step.hpp"

#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/failing_memory.hpp"
#include "support/parameter_values.hpp"

namespace nn_transformer_block_step {

using namespace headwise_tests;

TEMPLATE_TEST_CASE("a TransformerBlock decodes with the bits of the whole, for any cut into steps",
                   "[nn]", float, double) {
  using T = TestType;
  const bool norm_first = GENERATE(false, true);
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  const Index B = 2, L = 23, D = 30;
  TransformerBlock<T> block({.d_model = D,
                             .num_heads = 3,
                             .num_kv_heads = 1,
                             .d_hidden = 5,
                             .gated = norm == NormKind::rms_norm,
                             .norm_first = norm_first,
                             .norm = norm});
  draw_all(block.parameters(), 9);
  const auto x = random_tensor<T>(Shape{B, L, D}, 4);
  const auto whole = block.forward(x, {.mask = causal});
  auto cache = key_value_cache<T>(block.options().attention(), B, L);
  for (const std::vector<Index>& cut : {std::vector<Index>(23, 1), {23}, {5, 0, 18}}) {
    cache.clear();
    for (const Index n : cut) {
      const Index at = cache.length();
      const auto y = transformer_block_step(block, slice(x, 1, at, n), cache);
      CAPTURE(at, n);
      CHECK(bitwise_equal(In<T, 3>(y), In<T, 3>(slice(whole, 1, at, n))));
    }
  }
}

TEST_CASE("a step of a block that runs out of memory leaves the cache as it was", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const TransformerBlock<double> block({.d_model = 6, .num_heads = 2, .norm_first = norm_first});
  const auto x = random_tensor<double>(Shape{2, 7, 6}, 5);
  auto cache = key_value_cache<double>(block.options().attention(), 2, 7);
  (void)transformer_block_step(block, slice(x, 1, 0, 4), cache);
  const In<double, 3> last = slice(x, 1, 4, 3);
  Tensor3<double> y;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              y = contiguous(
                  In<double, 3>(transformer_block_step(block, last, cache, {.memory = memory})));
            },
            [&] { return cache.length() == 4; }) >= 8);
  CHECK(cache.length() == 7);
  const auto whole = block.forward(x, {.mask = causal});
  CHECK(bitwise_equal(In<double, 3>(y), In<double, 3>(slice(whole, 1, 4, 3))));
}

}  // namespace nn_transformer_block_step
