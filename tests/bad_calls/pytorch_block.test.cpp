// What the weights of PyTorch's TransformerEncoderLayer ask of a call: blocks and files that do not
// fit one another.
#include <map>

#include "headwise/io/pytorch_block.hpp"
#include "support/refusal.hpp"

namespace bad_calls_pytorch_block {

using namespace headwise_tests;

namespace {

using Block = TransformerBlock<double>;
using Options = TransformerBlockOptions;
using Kind = Refusal (*)(std::string, Action<Witness&>);

/// A file of tensors of these shapes, all 1.
using Shapes = std::map<std::string, std::vector<Index>>;
SafetensorsFile file_of(const Shapes& shapes) {
  SafetensorsWriter writer;
  for (const auto& [name, shape] : shapes) {
    Index count = 1;
    for (const Index extent : shape) count *= extent;
    const std::vector<double> ones(static_cast<std::size_t>(count), 1.0);
    writer.add_bytes(name, DType::f64, shape, std::as_bytes(std::span(ones)));
  }
  return SafetensorsFile::parse(writer.bytes());
}
Shapes layer() {
  return {{"self_attn.in_proj_weight", {12, 4}},
          {"self_attn.in_proj_bias", {12}},
          {"self_attn.out_proj.weight", {4, 4}},
          {"self_attn.out_proj.bias", {4}},
          {"linear1.weight", {5, 4}},
          {"linear1.bias", {5}},
          {"linear2.weight", {4, 5}},
          {"linear2.bias", {4}},
          {"norm1.weight", {4}},
          {"norm1.bias", {4}},
          {"norm2.weight", {4}},
          {"norm2.bias", {4}}};
}
Shapes with(const char* name, std::vector<Index> shape) {
  Shapes shapes = layer();
  shapes[name] = std::move(shape);
  return shapes;
}
const Options right{.d_model = 4, .num_heads = 2, .d_hidden = 5};

/// One of the three functions that take a block.
void call_with(const std::string& function, Block& block) {
  SafetensorsWriter writer;
  if (function == "load_pytorch") {
    load_pytorch(file_of(layer()), block);
  } else if (function == "add_pytorch") {
    add_pytorch(writer, block);
  } else {
    add_pytorch_gradients(writer, block, block.zero_gradients());
  }
}

std::vector<Refusal> block_table() {
  std::vector<Refusal> table;
  const auto add = [&](Kind kind, const std::string& message, const Options& options) {
    for (const std::string function : {"load_pytorch", "add_pytorch", "add_pytorch_gradients"}) {
      table.push_back(kind(function + message, [=](Witness&) {
        Block block(options);
        call_with(function, block);
      }));
    }
  };
  Options gated = right, rms = right, grouped = right;
  gated.gated = true;
  rms.norm = NormKind::rms_norm;
  grouped.num_kv_heads = 1;
  add(argument_error, ": gated is set, which PyTorch's layer has not", gated);
  add(argument_error, ": norm is rms_norm, expected layer_norm (PyTorch's layer)", rms);
  add(argument_error,
      ": num_kv_heads is 1, expected num_heads 2 (PyTorch's module has no grouped queries)",
      grouped);
  for (const std::string function : {"load_pytorch", "add_pytorch", "add_pytorch_gradients"}) {
    table.push_back(
        shape_error(function + ": norm1.gamma is [0], expected [4] (the block's options; a block "
                               "that was moved from has no parameters)",
                    [=](Witness&) {
                      Block block(right);
                      const Block taken = std::move(block);
                      call_with(function, block);
                    }));
  }
  return table;
}

Refusal load(Kind kind, const std::string& message, const Shapes& shapes,
             const Options& options = right) {
  return kind("load_pytorch: " + message, [=](Witness& m) {
    Block& block = m.make<Block>(options);
    m.keep(block.parameters());
    load_pytorch(file_of(shapes), block);
  });
}

std::vector<Refusal> file_table() {
  const std::string widths = " (the block's widths)";
  Options bare = right;
  bare.feed_forward_bias = bare.norm_bias = false;
  return {
      load(shape_error, "linear1.weight is [6, 4], expected [5, 4]" + widths,
           with("linear1.weight", {6, 4})),
      load(shape_error, "linear2.weight is [4, 6], expected [4, 5]" + widths,
           with("linear2.weight", {4, 6})),
      load(shape_error, "linear1.bias is [4], expected [5]" + widths, with("linear1.bias", {4})),
      load(shape_error, "norm2.weight is [5], expected [4]" + widths, with("norm2.weight", {5})),
      load(shape_error,
           "self_attn.out_proj.weight is [4, 5], expected [4, 4] (d_model of the module)",
           with("self_attn.out_proj.weight", {4, 5})),
      load(argument_error,
           "linear1.bias is not 0, the module has no bias for it (feed_forward_bias)", layer(),
           bare),
  };
}

Refusal gradients(const std::string& message, void (*spoil)(TransformerBlockGradients<double>&)) {
  return shape_error("add_pytorch_gradients: " + message, [=](Witness&) {
    const Block block(right);
    auto of_block = block.zero_gradients();
    spoil(of_block);
    SafetensorsWriter writer;
    add_pytorch_gradients(writer, block, of_block);
  });
}

std::vector<Refusal> gradient_table() {
  const std::string zero = " (zero_gradients())", shape = " (the shape of its parameter)";
  return {
      gradients("gradients.w_in is [0, 0], expected [4, 5]" + zero,
                [](auto& g) { g.feed_forward.w_in = {}; }),
      gradients("gradients.b_in is [0], expected [5]" + zero,
                [](auto& g) { g.feed_forward.b_in = {}; }),
      gradients("gradients.w_out is [0, 0], expected [5, 4]" + zero,
                [](auto& g) { g.feed_forward.w_out = {}; }),
      gradients("gradients.b_out is [0], expected [4]" + zero,
                [](auto& g) { g.feed_forward.b_out = {}; }),
      gradients("norm1.gamma is [0], expected [4]" + shape, [](auto& g) { g.norm1.gamma = {}; }),
      gradients("norm1.beta is [0], expected [4]" + shape, [](auto& g) { g.norm1.beta = {}; }),
      gradients("norm2.gamma is [0], expected [4]" + shape, [](auto& g) { g.norm2.gamma = {}; }),
      gradients("norm2.beta is [0], expected [4]" + shape, [](auto& g) { g.norm2.beta = {}; }),
      gradients("w_o is [0, 0], expected [4, 4]" + shape, [](auto& g) { g.attention.w_o = {}; }),
  };
}

const Refusals of_blocks(block_table()), of_files(file_table()), of_gradients(gradient_table());
const Refusals of_options({shape_error("pytorch_options: linear1.weight is [5], expected 2 axes",
                                       [](Witness&) {
                                         (void)pytorch_options(file_of(with("linear1.weight", {5})),
                                                               right);
                                       })});

}  // namespace

TEST_CASE("blocks that PyTorch's layer cannot hold are refused", "[bad_calls]") {
  of_blocks.check();
  of_gradients.check();
}

TEST_CASE("files whose tensors do not fit a block are refused", "[bad_calls]") {
  of_files.check();
  of_options.check();
}

TEST_CASE("the block and the file that are spoilt fit before", "[bad_calls]") {
  Block block(right);
  for (const char* function : {"load_pytorch", "add_pytorch", "add_pytorch_gradients"}) {
    CHECK_NOTHROW(call_with(function, block));
  }
  CHECK(block.parameters().feed_forward.w_in(0, 0) == 1);
  CHECK(pytorch_options(file_of(layer()), {.num_heads = 2}).d_hidden == 5);
}

}  // namespace bad_calls_pytorch_block
