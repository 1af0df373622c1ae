// What PyTorch's weights ask of a call: modules and files that do not fit one another.
#include <map>

#include "headwise/io/pytorch.hpp"
#include "support/refusal.hpp"

namespace bad_calls_pytorch {

using namespace headwise_tests;

namespace {

using Module = MultiHeadAttention<double>;
using Parameters = MultiHeadAttentionParameters<double>;
using Options = MultiHeadAttentionOptions;
using Kind = Refusal (*)(std::string, Action<Witness&>);

Options options_of(void (*change)(Options&)) {
  Options options{.d_model = 4, .num_heads = 2};
  options.q_bias = options.k_bias = options.v_bias = options.o_bias = true;
  change(options);
  return options;
}
void as_it_is(Options&) {}

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
Shapes fused() {
  return {{"in_proj_weight", {12, 4}},
          {"in_proj_bias", {12}},
          {"out_proj.weight", {4, 4}},
          {"out_proj.bias", {4}}};
}
Shapes separate() {
  return {{"q_proj_weight", {4, 4}}, {"k_proj_weight", {4, 3}},   {"v_proj_weight", {4, 5}},
          {"in_proj_bias", {12}},    {"out_proj.weight", {4, 4}}, {"out_proj.bias", {4}}};
}
/// The same with one more shape, or another.
Shapes with(Shapes shapes, const char* name, std::vector<Index> shape) {
  shapes[name] = std::move(shape);
  return shapes;
}

/// One of the three functions that take a module.
void call_with(const std::string& function, Module& module) {
  SafetensorsWriter writer;
  if (function == "load_pytorch") {
    load_pytorch(file_of(fused()), module);
  } else if (function == "add_pytorch") {
    add_pytorch(writer, module);
  } else {
    add_pytorch_gradients(writer, module, module.zero_gradients());
  }
}
const char* const with_module[] = {"load_pytorch", "add_pytorch", "add_pytorch_gradients"};

std::vector<Refusal> options_table() {
  const std::vector<std::pair<const char*, void (*)(Options&)>> rules{
      {": num_kv_heads is 1, expected num_heads 2 (PyTorch's module has no grouped queries)",
       [](Options& o) { o.num_kv_heads = 1; }},
      {": d_head is 3, expected d_model 4 / num_heads 2 (PyTorch's module)",
       [](Options& o) { o.d_head = 3; }},
      {": d_value is 5, expected d_head 2 (PyTorch's module)", [](Options& o) { o.d_value = 5; }},
      {": layer_norm is set, which PyTorch's module has not",
       [](Options& o) { o.layer_norm = true; }},
      {": qk_norm is set, which PyTorch's module has not", [](Options& o) { o.qk_norm = true; }},
      {": sinks is set, which PyTorch's module has not", [](Options& o) { o.sinks = true; }},
      {": alibi is set, which PyTorch's module has not", [](Options& o) { o.alibi = true; }},
      {": relative_reach is set, which PyTorch's module has not",
       [](Options& o) { o.relative_reach = 2; }},
      {": rotary is set, which PyTorch's module has not",
       [](Options& o) { o.rotary = RotaryOptions{}; }}};
  std::vector<Refusal> table;
  for (const std::string function : with_module) {
    for (const auto& rule : rules) {
      const auto change = rule.second;
      table.push_back(argument_error(function + rule.first, [function, change](Witness&) {
        Module module(options_of(change));
        call_with(function, module);
      }));
    }
  }
  table.push_back(argument_error(
      "add_pytorch_gradients: only some of q_bias, k_bias and v_bias are set, expected all or none",
      [](Witness&) {
        Module module(options_of([](Options& o) { o.v_bias = false; }));
        call_with("add_pytorch_gradients", module);
      }));
  return table;
}

struct Spoilt {
  const char* expected;
  void (*spoil)(Parameters&);
};
const Spoilt spoilt_parameters[] = {
    {"w_qkv is [1, 1], expected [4, 12]",
     [](Parameters& p) {
       p.w_qkv = Tensor2<double>({1, 1});
     }},
    {"w_q is [1, 1], expected [0, 0]",
     [](Parameters& p) {
       p.w_q = Tensor2<double>({1, 1});
     }},
    {"w_k is [1, 1], expected [0, 0]",
     [](Parameters& p) {
       p.w_k = Tensor2<double>({1, 1});
     }},
    {"w_v is [1, 1], expected [0, 0]",
     [](Parameters& p) {
       p.w_v = Tensor2<double>({1, 1});
     }},
    {"w_o is [1, 1], expected [4, 4]",
     [](Parameters& p) {
       p.w_o = Tensor2<double>({1, 1});
     }},
    {"b_q is [1], expected [4]", [](Parameters& p) { p.b_q = Tensor1<double>(Shape{1}); }},
    {"b_k is [1], expected [4]", [](Parameters& p) { p.b_k = Tensor1<double>(Shape{1}); }},
    {"b_v is [1], expected [4]", [](Parameters& p) { p.b_v = Tensor1<double>(Shape{1}); }},
    {"b_o is [1], expected [4]", [](Parameters& p) { p.b_o = Tensor1<double>(Shape{1}); }}};

std::vector<Refusal> parameters_table() {
  const std::string whence =
      " (the module's options; a module that was moved from has no parameters)";
  std::vector<Refusal> table;
  for (const Spoilt& spoilt : spoilt_parameters) {
    const auto spoil = spoilt.spoil;
    for (const std::string function : with_module) {
      table.push_back(
          shape_error(function + ": " + spoilt.expected + whence, [function, spoil](Witness&) {
            Module module(options_of(as_it_is));
            spoil(module.parameters());
            call_with(function, module);
          }));
    }
    table.push_back(shape_error(
        std::string("add_pytorch_gradients: ") + spoilt.expected + " (the shape of its parameter)",
        [spoil](Witness&) {
          const Module module(options_of(as_it_is));
          auto gradients = module.zero_gradients();
          spoil(gradients);
          SafetensorsWriter writer;
          add_pytorch_gradients(writer, module, gradients);
        }));
  }
  return table;
}

Refusal load(Kind kind, const std::string& message, void (*change)(Options&), Shapes shapes) {
  return kind("load_pytorch: " + message, [change, shapes](Witness&) {
    Module module(options_of(change));
    load_pytorch(file_of(shapes), module);
  });
}
Refusal options(Kind kind, const std::string& message, Shapes shapes) {
  return kind("pytorch_options: " + message,
              [shapes](Witness&) { (void)pytorch_options(file_of(shapes), 2); });
}
void wide(Options& o) { o.kdim = 3, o.vdim = 5; }

const Refusals shapes({
    load(shape_error,
         "in_proj_weight is [1, 1], expected [12, 4] (3 d_model, d_model of the module's W_Q, W_K, "
         "W_V)",
         as_it_is, with(fused(), "in_proj_weight", {1, 1})),
    load(shape_error,
         "in_proj_bias is [1], expected [12] (3 d_model of the module's b_Q, b_K, b_V)", as_it_is,
         with(fused(), "in_proj_bias", {1})),
    load(shape_error, "out_proj.weight is [4], expected [4, 4] (d_model of the module)", as_it_is,
         with(fused(), "out_proj.weight", {4})),
    load(shape_error, "out_proj.bias is [4, 1], expected [4] (d_model of the module's b_O)",
         as_it_is, with(fused(), "out_proj.bias", {4, 1})),
    load(shape_error, "q_proj_weight is [4, 3], expected [4, 4] (d_model, d_model of the module)",
         wide, with(separate(), "q_proj_weight", {4, 3})),
    load(shape_error, "k_proj_weight is [4, 4], expected [4, 3] (d_model, kdim of the module)",
         wide, with(separate(), "k_proj_weight", {4, 4})),
    load(shape_error, "v_proj_weight is [4, 4], expected [4, 5] (d_model, vdim of the module)",
         wide, with(separate(), "v_proj_weight", {4, 4})),
    load(shape_error,
         "in_proj_weight is [12, 4], expected q_proj_weight, k_proj_weight and v_proj_weight "
         "(d_model 4, kdim 3, vdim 5 of the module)",
         wide, fused()),
    options(shape_error, "in_proj_weight is [12], expected 2 axes",
            with(fused(), "in_proj_weight", {12})),
    options(shape_error, "q_proj_weight is [4], expected 2 axes",
            with(separate(), "q_proj_weight", {4})),
    options(shape_error, "k_proj_weight is [4], expected 2 axes",
            with(separate(), "k_proj_weight", {4})),
    options(shape_error, "v_proj_weight is [4], expected 2 axes",
            with(separate(), "v_proj_weight", {4})),
});

const Refusals contents({
    load(
        argument_error, "in_proj_bias is not 0, the module has no bias for it (q_bias)",
        [](Options& o) { o.q_bias = false; }, fused()),
    load(
        argument_error, "in_proj_bias is not 0, the module has no bias for it (k_bias)",
        [](Options& o) { o.k_bias = false; }, fused()),
    load(
        argument_error, "in_proj_bias is not 0, the module has no bias for it (v_bias)",
        [](Options& o) { o.v_bias = false; }, fused()),
    load(
        argument_error, "out_proj.bias is not 0, the module has no bias for it (o_bias)",
        [](Options& o) { o.o_bias = false; }, fused()),
    load(argument_error, "bias_v is there: add_bias_kv is not supported", as_it_is,
         with(fused(), "bias_v", {1, 1, 4})),
    load(argument_error, "in_proj_weight and q_proj_weight are both there", as_it_is,
         with(fused(), "q_proj_weight", {4, 4})),
    options(argument_error, "bias_k is there: add_bias_kv is not supported",
            with(fused(), "bias_k", {1, 1, 4})),
    options(argument_error, "in_proj_weight and q_proj_weight are both there",
            with(fused(), "q_proj_weight", {4, 4})),
});

const Refusals module_options(options_table());
const Refusals module_parameters(parameters_table());

}  // namespace

TEST_CASE("PyTorch's weights are refused where a module or a file does not fit", "[bad_calls]") {
  module_options.check();
  module_parameters.check();
  shapes.check();
  contents.check();
}

}  // namespace bad_calls_pytorch
