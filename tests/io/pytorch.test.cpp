// PyTorch's weights and gradients, read and written: names, layout, options and bits.
#include "headwise/io/pytorch.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "io/pytorch_modules.hpp"

namespace io_pytorch {

using namespace headwise_tests;

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

TEST_CASE("weights are saved in a narrower type where that is asked for", "[io]") {
  SafetensorsWriter writer;
  add_pytorch(writer, scrambled<double>(biased, 4), "", DType::bf16);
  const auto file = reread(writer);
  for (const std::string& name : file.names()) CHECK(file.dtype(name) == DType::bf16);
  CHECK(file.names().size() == 4);
}

}  // namespace io_pytorch
