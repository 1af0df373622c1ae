// The weights of PyTorch's TransformerEncoderLayer, in and out of a TransformerBlock.
#include "headwise/io/pytorch_block.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "headwise/testing/close_to.hpp"
#include "io/pytorch_modules.hpp"
#include "support/parameter_values.hpp"

namespace io_pytorch_block {

using namespace headwise_tests;

namespace {

template <class T>
TransformerBlock<T> drawn(const TransformerBlockOptions& options) {
  TransformerBlock<T> block(options);
  draw_all(block.parameters(), 3);
  return block;
}

}  // namespace

TEMPLATE_TEST_CASE("a block comes back from PyTorch's names with the same bits", "[io]", float,
                   double) {
  using T = TestType;
  TransformerBlockOptions o{.d_model = 6, .num_heads = 2, .d_hidden = 5, .norm_first = false};
  o.attention_bias = o.feed_forward_bias = o.norm_bias = GENERATE(true, false);
  const auto block = drawn<T>(o);
  SafetensorsWriter writer;
  add_pytorch(writer, block, "layers.0.");
  const SafetensorsFile file = reread(writer);
  const auto again = from_pytorch<T>(file, {.num_heads = 2, .norm_first = false}, "layers.0.");
  CHECK(again.options().same_shape(block.options()));
  CHECK(names_of(again.parameters()) == names_of(block.parameters()));
  CHECK(same_bits(values_of<T>(again.parameters()), values_of<T>(block.parameters())));
  CHECK(file.shape("layers.0.linear1.weight") == std::vector<Index>{5, 6});
  const auto linear2 = file.get<T, 2>("layers.0.linear2.weight");
  CHECK(linear2(1, 4) == block.parameters().feed_forward.w_out(4, 1));
  CHECK(file.contains("layers.0.norm1.bias") == o.norm_bias);
}

// PyTorch's layer has all biases or none.
TEST_CASE("of a block with some biases those that it lacks are written as 0", "[io]") {
  TransformerBlockOptions o{.d_model = 6, .num_heads = 2, .d_hidden = 5};
  o.attention_bias = GENERATE(false, true);
  o.feed_forward_bias = GENERATE(false, true);
  o.norm_bias = GENERATE(false, true);
  const auto block = drawn<double>(o);
  SafetensorsWriter writer;
  add_pytorch(writer, block);
  const SafetensorsFile file = reread(writer);
  const std::vector<std::pair<std::string, bool>> biases = {
      {"self_attn.in_proj_bias", o.attention_bias},
      {"self_attn.out_proj.bias", o.attention_bias},
      {"linear1.bias", o.feed_forward_bias},
      {"linear2.bias", o.feed_forward_bias},
      {"norm1.bias", o.norm_bias},
      {"norm2.bias", o.norm_bias}};
  const bool some = o.attention_bias || o.feed_forward_bias || o.norm_bias;
  for (const auto& [name, there] : biases) {
    CAPTURE(name, o.attention_bias, o.feed_forward_bias, o.norm_bias);
    REQUIRE(file.contains(name) == some);
    if (!some) continue;
    const auto bias = file.get<double, 1>(name);
    const bool zeros = std::all_of(bias.begin(), bias.end(), [](double x) { return x == 0; });
    CHECK(zeros == !there);
  }
  TransformerBlock<double> again(o);
  load_pytorch(file, again);
  CHECK(same_bits(values_of<double>(again.parameters()), values_of<double>(block.parameters())));
}

TEST_CASE("a block keeps its views when weights are loaded, and takes a bias of 0 for none",
          "[io]") {
  TransformerBlockOptions o{.d_model = 6, .num_heads = 2, .d_hidden = 5};
  const TransformerBlock<double> start(o);  // biases 0
  SafetensorsWriter writer;
  add_pytorch(writer, start);
  o.feed_forward_bias = o.norm_bias = false;
  auto block = drawn<double>(o);
  const double* before = block.parameters().feed_forward.w_in.data();
  load_pytorch(reread(writer), block);
  CHECK(block.parameters().feed_forward.w_in.data() == before);
  CHECK(bitwise_equal(block.parameters().feed_forward.w_in, start.parameters().feed_forward.w_in));
  CHECK(bitwise_equal(block.parameters().norm2.gamma, start.parameters().norm2.gamma));
}

TEST_CASE("what no file tells of a block is what it was known by", "[io]") {
  const auto file = data_file("block_pre_ln");
  const auto o =
      pytorch_options(file, {.num_heads = 3, .activation = Activation::silu, .norm_epsilon = 0.25});
  CHECK((o.d_model == 12 && o.d_hidden == 24 && o.num_heads == 3 && o.num_kv_heads == 3));
  CHECK((o.attention_bias && o.feed_forward_bias && o.norm_bias && o.norm_first));
  CHECK((o.activation == Activation::silu && o.norm_epsilon == 0.25));
}

}  // namespace io_pytorch_block
