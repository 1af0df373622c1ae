// A decoder while memory runs out anywhere: at any operator new of the program.
#include "headwise/nn/transformer_decoder.hpp"
#include "outside_faults/allocations.hpp"
#include "support/parameter_values.hpp"

namespace outside_faults_decoder {

using namespace headwise_tests;

TEST_CASE("a decoder that is made or called while memory runs out leaves everything as it was",
          "[outside]") {
  const bool norm_first = GENERATE(false, true);
  const TransformerDecoderOptions options{.vocabulary = 7,
                                          .max_length = 6,
                                          .num_blocks = 2,
                                          .block = {.d_model = 6,
                                                    .num_heads = 2,
                                                    .d_hidden = 5,
                                                    .gated = norm_first,
                                                    .norm_first = norm_first}};
  const auto nothing_to_change = [] { return true; };
  CHECK(fail_each_allocation([&] { TransformerDecoder<double> decoder(options); },
                             nothing_to_change) > 20);
  const TransformerDecoder<double> decoder(options);
  const Tensor2<std::int64_t> tokens({2, 5}, {3, 1, 4, 1, 5, 2, 6, 5, 3, 5}), next({2, 1}, {0, 1});
  const auto d_logits = random_tensor<double>(Shape{10, 7}, 2);
  const Context context{.memory = std::pmr::new_delete_resource()};  // every time anew
  TransformerDecoderCache<double> cache;
  (void)decoder.forward(tokens, {}, cache, context);
  auto gradients = decoder.zero_gradients();
  decoder.backward(d_logits, cache, gradients, context);
  const auto once = values_of<double>(gradients);
  CHECK(fail_each_allocation([&] { decoder.backward(d_logits, cache, gradients, context); },
                             [&] { return same_bits(values_of<double>(gradients), once); }) > 30);
  CHECK_FALSE(same_bits(values_of<double>(gradients), once));
  TransformerDecoderCache<double> filled;
  CHECK(fail_each_allocation([&] { (void)decoder.forward(tokens, {}, filled, context); },
                             [&] { return !filled.filled; }) > 30);
  CHECK(filled.filled);
  CHECK(fail_each_allocation([&] { (void)decoder.state(2); }, nothing_to_change) > 4);
  auto state = decoder.state(2);
  (void)decoder.step(tokens, state, context);
  CHECK(fail_each_allocation([&] { (void)decoder.step(next, state, context); },
                             [&] { return state.length() == 5; }) > 20);
  CHECK(state.length() == 6);
}

}  // namespace outside_faults_decoder
