#include "headwise/io/pytorch.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace headwise;

namespace {

using Options = MultiHeadAttentionOptions;

SafetensorsFile data_file(const std::string& name) {
  return SafetensorsFile::read(std::string(HEADWISE_TEST_DATA "/") + name + ".safetensors");
}

SafetensorsFile reread(const SafetensorsWriter& writer) {
  return SafetensorsFile::parse(writer.bytes());
}

/// Other numbers in every parameter, biases too.
template <class T>
MultiHeadAttention<T> scrambled(const Options& options, int start) {
  MultiHeadAttention<T> module(options);
  int n = start;
  module.parameters().for_each([&](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) {
      n = (n * 733 + 17) % 99991;
      view(at) = T(n % 2 == 0 ? n : -n) / T(4093);
    });
  });
  return module;
}

/// Every parameter's shape and bits.
template <class T>
std::map<std::string, std::string> contents(const MultiHeadAttention<T>& module) {
  std::map<std::string, std::string> all;
  module.parameters().for_each([&](const std::string& name, const auto& view) {
    std::string& text = all[name] = view.shape().format();
    for_each_index(view.shape(), [&](const auto& at) {
      char bits[sizeof(T)];
      std::memcpy(bits, &view(at), sizeof(T));
      text.append(bits, sizeof(T));
    });
  });
  return all;
}

/// The names of the parameters that differ in a bit; empty if none does.
template <class T>
std::string difference(const MultiHeadAttention<T>& a, const MultiHeadAttention<T>& b) {
  std::string names;
  const auto left = contents(a), right = contents(b);
  if (left.size() != right.size()) names = "one has more parameters ";
  for (const auto& [name, content] : left) {
    if (!right.contains(name) || right.at(name) != content) names += name + " ";
  }
  return names;
}

/// in_proj_weight [3 D, D], out_proj.weight [D, D] and both biases, each element its number.
SafetensorsWriter square_state(Index D, const std::string& prefix = "") {
  SafetensorsWriter writer;
  double n = 0;
  const auto add = [&](const char* name, auto tensor) {
    for (double& x : tensor) x = ++n;
    writer.add(prefix + name, tensor);
  };
  add("in_proj_weight", Tensor2<double>(Shape{3 * D, D}));
  add("in_proj_bias", Tensor1<double>(Shape{3 * D}));
  add("out_proj.weight", Tensor2<double>(Shape{D, D}));
  add("out_proj.bias", Tensor1<double>(Shape{D}));
  return writer;
}

const Options biased{
    .d_model = 4, .num_heads = 2, .q_bias = true, .k_bias = true, .v_bias = true, .o_bias = true};

Options with(const std::function<void(Options&)>& change) {
  Options options = biased;
  change(options);
  return options;
}

}  // namespace

TEST_CASE("PyTorch's weights, loaded and saved, are the same bits under the same names", "[io]") {
  const auto [name, num_heads] = GENERATE(table<const char*, int>({{"mha_self", 3},
                                                                   {"mha_self_no_bias", 2},
                                                                   {"mha_single_head", 1},
                                                                   {"mha_cross", 3},
                                                                   {"mha_cross_kdim_vdim", 2}}));
  CAPTURE(name);
  const auto file = data_file(name);
  SafetensorsWriter writer;
  add_pytorch(writer, from_pytorch<double>(file, num_heads));
  const auto saved = reread(writer);
  std::size_t weights = 0;
  for (const std::string& tensor : file.names()) {
    if (tensor.find("proj") == std::string::npos || tensor.starts_with("expected.")) continue;
    CAPTURE(tensor);
    ++weights;
    REQUIRE(saved.contains(tensor));
    CHECK(saved.shape(tensor) == file.shape(tensor));
    const auto a = saved.bytes(tensor), b = file.bytes(tensor);
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
  CHECK(weights >= 2);
  CHECK(saved.names().size() == weights);
}

TEMPLATE_TEST_CASE("a module that is saved and loaded has the same bits in every parameter", "[io]",
                   double, float) {
  const std::vector<Options> modules = {
      biased,
      with([](Options& o) { o.num_heads = 4; }),
      with([](Options& o) { o.kdim = 3; }),
      with([](Options& o) { o.kdim = 7, o.vdim = 5; }),
      with([](Options& o) { o.q_bias = false; }),
      with([](Options& o) { o.q_bias = o.k_bias = o.v_bias = false; }),
      with([](Options& o) { o.o_bias = false; }),
      with([](Options& o) { o.q_bias = o.k_bias = o.v_bias = o.o_bias = false; })};
  const auto which = GENERATE(range(0, 8));
  CAPTURE(which);
  const Options& options = modules.at(static_cast<std::size_t>(which));
  const auto module = scrambled<TestType>(options, 5);
  SafetensorsWriter writer;
  writer.add("self_attn.other", Tensor1<double>(Shape{2}));
  add_pytorch(writer, module, "self_attn.");
  const auto file = reread(writer);

  auto loaded = scrambled<TestType>(options, 6);
  REQUIRE(difference(loaded, module) != "");
  load_pytorch(file, loaded, "self_attn.");
  CHECK(difference(loaded, module) == "");
}

TEST_CASE("PyTorch's rows are this library's columns", "[io]") {
  const auto file = reread(square_state(4, "x."));
  const auto module = from_pytorch<float>(file, 2, "x.");
  const auto stored = file.get<float, 2>("x.in_proj_weight");
  const auto bias = file.get<float, 1>("x.in_proj_bias");
  const auto& p = module.parameters();
  for (Index in = 0; in < 4; ++in) {
    for (Index out = 0; out < 4; ++out) {
      CHECK(p.W_Q()(in, out) == stored(out, in));
      CHECK(p.W_K()(in, out) == stored(4 + out, in));
      CHECK(p.W_V()(in, out) == stored(8 + out, in));
      CHECK(p.w_o(in, out) == file.get<float, 2>("x.out_proj.weight")(out, in));
    }
    CHECK(p.b_q(in) == bias(in));
    CHECK(p.b_k(in) == bias(4 + in));
    CHECK(p.b_v(in) == bias(8 + in));
    CHECK(p.b_o(in) == file.get<float, 1>("x.out_proj.bias")(in));
  }
}

TEST_CASE("the options of a module are read from the shapes of its weights", "[io]") {
  const auto plain = pytorch_options(data_file("mha_self"), 3);
  CHECK(plain.d_model == 12);
  CHECK(plain.num_heads == 3);
  CHECK(plain.num_kv_heads == 3);
  CHECK(plain.d_head == 4);
  CHECK(plain.fused());
  CHECK((plain.q_bias && plain.k_bias && plain.v_bias && plain.o_bias));

  const auto wide = pytorch_options(data_file("mha_cross_kdim_vdim"), 2);
  CHECK(wide.d_model == 12);
  CHECK(wide.kdim == 6);
  CHECK(wide.vdim == 10);

  const auto bare = pytorch_options(data_file("mha_self_no_bias"), 2);
  CHECK_FALSE((bare.q_bias || bare.k_bias || bare.v_bias || bare.o_bias));

  CHECK_THROWS_WITH(pytorch_options(data_file("mha_self"), 5),
                    ContainsSubstring("num_heads is 5, expected a divisor of d_model 12"));
  CHECK_THROWS_WITH(pytorch_options(data_file("mha_self"), 0),
                    ContainsSubstring("num_heads is 0, expected 1 to 2^30"));
  CHECK_THROWS_WITH(pytorch_options(data_file("mha_self"), 3, "self_attn."),
                    ContainsSubstring("holds no tensor \"self_attn.in_proj_weight\""));
}

TEST_CASE("three square matrices load into a module that keeps them as one", "[io]") {
  const auto fused = reread(square_state(4));
  const auto all = fused.get<double, 2>("in_proj_weight");
  SafetensorsWriter writer;
  writer.add("q_proj_weight", slice(all, 0, 0, 4));
  writer.add("k_proj_weight", slice(all, 0, 4, 4));
  writer.add("v_proj_weight", slice(all, 0, 8, 4));
  writer.add("in_proj_bias", fused.get<double, 1>("in_proj_bias"));
  writer.add("out_proj.weight", fused.get<double, 2>("out_proj.weight"));
  writer.add("out_proj.bias", fused.get<double, 1>("out_proj.bias"));
  CHECK(difference(from_pytorch<double>(reread(writer), 2), from_pytorch<double>(fused, 2)) == "");
}

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

TEST_CASE("a module with any bias is saved with all of PyTorch's, 0 where it has none", "[io]") {
  const auto module = scrambled<double>(with([](Options& o) { o.k_bias = o.o_bias = false; }), 9);
  SafetensorsWriter writer;
  add_pytorch(writer, module);
  const auto file = reread(writer);
  const auto bias = file.get<double, 1>("in_proj_bias");
  const auto out = file.get<double, 1>("out_proj.bias");
  REQUIRE(bias.extent(0) == 12);
  REQUIRE(out.extent(0) == 4);
  for (Index n = 0; n < 4; ++n) {
    CHECK(bias(n) == module.parameters().b_q(n));
    CHECK(bias(4 + n) == 0);
    CHECK(bias(8 + n) == module.parameters().b_v(n));
    CHECK(out(n) == 0);
  }
}

TEST_CASE("gradients lie in PyTorch's layout as the weights do", "[io]") {
  const std::vector<Options> modules = {
      biased, with([](Options& o) { o.kdim = 3; }), with([](Options& o) { o.o_bias = false; }),
      with([](Options& o) { o.q_bias = o.k_bias = o.v_bias = false; })};
  const auto which = GENERATE(range(0, 4));
  CAPTURE(which);
  const Options& options = modules.at(static_cast<std::size_t>(which));
  const MultiHeadAttention<float> module(options);
  auto gradients = module.zero_gradients();
  auto same_numbers = scrambled<float>(options, 21);
  static_cast<MultiHeadAttentionParameters<float>&>(gradients) = same_numbers.parameters();

  SafetensorsWriter writer;
  add_pytorch_gradients(writer, module, gradients);
  const auto file = reread(writer);
  CHECK(file.contains("grad.in_proj_bias") == options.q_bias);
  CHECK(file.contains("grad.out_proj.bias") == options.o_bias);
  CHECK(file.dtype("grad.out_proj.weight") == DType::f32);
  // Read back as if they were weights.
  auto loaded = scrambled<float>(options, 22);
  load_pytorch(file, loaded, "grad.");
  CHECK(difference(loaded, same_numbers) == "");
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

TEST_CASE("weights are saved in a narrower type where that is asked for", "[io]") {
  SafetensorsWriter writer;
  add_pytorch(writer, scrambled<double>(biased, 4), "", DType::bf16);
  const auto file = reread(writer);
  for (const std::string& name : file.names()) CHECK(file.dtype(name) == DType::bf16);
  CHECK(file.names().size() == 4);
}
