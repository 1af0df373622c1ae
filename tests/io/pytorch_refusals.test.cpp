// Weights, gradients and modules that do not fit PyTorch's or each other's: refused by name, and
// what was there stays.
#include <functional>
#include <utility>
#include <vector>

#include "headwise/io/pytorch.hpp"
#include "io/pytorch_modules.hpp"

namespace io_pytorch_refusals {

using namespace headwise_tests;

TEST_CASE("weights that do not fit are refused by name and shape, and the module stays", "[io]") {
  struct Refusal {
    Options module;
    std::function<void(SafetensorsWriter&)> more;
    const char* message;
  };
  const auto nothing = [](SafetensorsWriter&) {};
  const std::vector<Refusal> refusals = {
      {with([](Options& o) { o.d_model = 6; }), nothing, "in_proj_weight is [12, 4], expected [18"},
      {with([](Options& o) { o.kdim = 3; }), nothing, "expected q_proj_weight, k_proj_weight"},
      {with([](Options& o) { o.k_bias = false; }), nothing, "no bias for it (k_bias)"},
      {with([](Options& o) { o.o_bias = false; }), nothing, "no bias for it (o_bias)"},
      {with([](Options& o) { o.layer_norm = true; }), nothing, "layer_norm is set"},
      {with([](Options& o) { o.num_kv_heads = 1; }), nothing, "num_kv_heads is 1, expected"},
      {biased,
       [](SafetensorsWriter& w) {
         w.add("q_proj_weight", Tensor2<double>(Shape{4, 4}));
       },
       "in_proj_weight and q_proj_weight are both there"},
      {biased,
       [](SafetensorsWriter& w) {
         w.add("bias_k", Tensor3<double>(Shape{1, 1, 4}));
       },
       "bias_k is there: add_bias_kv is not supported"},
  };
  for (const Refusal& refusal : refusals) {
    auto writer = square_state(4);
    refusal.more(writer);
    const auto before = scrambled<double>(refusal.module, 3);
    auto module = before;
    CHECK_THROWS_WITH(load_pytorch(reread(writer), module), ContainsSubstring(refusal.message));
    CHECK(difference(module, before) == "");
  }
}

TEST_CASE("a fault in the last tensor of a file leaves the module as it was", "[io]") {
  const auto whole = reread(square_state(4));
  SafetensorsWriter writer;
  for (const char* name : {"in_proj_weight", "out_proj.weight"}) {
    writer.add(name, whole.get<double, 2>(name));
  }
  writer.add("in_proj_bias", whole.get<double, 1>("in_proj_bias"));
  const auto before = scrambled<double>(biased, 3);
  auto module = before;
  CHECK_THROWS_WITH(load_pytorch(reread(writer), module),
                    ContainsSubstring("holds no tensor \"out_proj.bias\""));
  CHECK(difference(module, before) == "");

  writer.add("out_proj.bias", Tensor2<double>(Shape{4, 1}));
  CHECK_THROWS_WITH(load_pytorch(reread(writer), module),
                    ContainsSubstring("out_proj.bias is [4, 1], expected [4]"));
  CHECK(difference(module, before) == "");
}

TEST_CASE("what PyTorch's module cannot hold is refused by name, and nothing is added", "[io]") {
  const std::vector<std::pair<Options, const char*>> refusals = {
      {with([](Options& o) { o.num_kv_heads = 1; }), "num_kv_heads is 1, expected num_heads 2"},
      {with([](Options& o) { o.d_head = 3; }), "d_head is 3, expected d_model 4 / num_heads 2"},
      {with([](Options& o) { o.d_value = 5; }), "d_value is 5, expected d_head 2"},
      {with([](Options& o) { o.layer_norm = true; }), "layer_norm is set"}};
  for (const auto& [options, message] : refusals) {
    const MultiHeadAttention<double> module(options);
    SafetensorsWriter writer;
    CHECK_THROWS_WITH(add_pytorch(writer, module), ContainsSubstring(message));
    CHECK_THROWS_WITH(add_pytorch_gradients(writer, module, module.zero_gradients()),
                      ContainsSubstring(message));
    CHECK(reread(writer).names().empty());
  }
}

TEST_CASE("a module that was moved from is refused, and nothing is added", "[io]") {
  for (const Options& options : {biased, with([](Options& o) { o.kdim = 3; })}) {
    MultiHeadAttention<double> module(options);
    const auto gradients = module.zero_gradients();
    SafetensorsWriter whole;
    add_pytorch(whole, module);
    const MultiHeadAttention<double> moved = std::move(module);
    SafetensorsWriter writer;
    const auto says = ContainsSubstring("a module that was moved from has no parameters");
    CHECK_THROWS_AS(add_pytorch(writer, module), ShapeError);
    CHECK_THROWS_WITH(add_pytorch(writer, module), says);
    CHECK_THROWS_WITH(add_pytorch_gradients(writer, module, gradients), says);
    CHECK_THROWS_WITH(add_pytorch_gradients(writer, module, MultiHeadAttentionGradients<double>()),
                      says);
    CHECK_THROWS_WITH(load_pytorch(reread(whole), module), says);
    CHECK(reread(writer).names().empty());
  }
}

TEST_CASE("gradients are refused where a bias is unknown or a shape is another module's", "[io]") {
  SafetensorsWriter writer;
  const MultiHeadAttention<double> partly(with([](Options& o) { o.v_bias = false; }));
  CHECK_THROWS_WITH(add_pytorch_gradients(writer, partly, partly.zero_gradients()),
                    ContainsSubstring("only some of q_bias, k_bias and v_bias are set"));
  const MultiHeadAttention<double> module(biased);
  const MultiHeadAttention<double> wider(with([](Options& o) { o.d_model = 6; }));
  CHECK_THROWS_WITH(add_pytorch_gradients(writer, module, wider.zero_gradients()),
                    ContainsSubstring("w_qkv is [6, 18], expected [4, 12]"));
  CHECK(reread(writer).names().empty());
}

}  // namespace io_pytorch_refusals
