// PyTorch's weights straight into modules that keep their matrices in 16 bits, and out of them.
#include "headwise/io/pytorch_block.hpp"
#include "headwise/nn/stored_weights.hpp"
#include "headwise/testing/close_to.hpp"
#include "io/pytorch_modules.hpp"
#include "support/parameter_values.hpp"

namespace io_pytorch_stored {

using namespace headwise_tests;

namespace {

template <class Module>
SafetensorsFile file_of(const Module& module, DType dtype) {
  SafetensorsWriter writer;
  add_pytorch(writer, module, "part.", dtype);
  return reread(writer);
}

/// With numbers that bf16 does not hold, of all sizes.
const std::vector<Options> modules = {
    biased,
    with([](Options& o) { o.d_model = 6, o.num_heads = 3, o.q_bias = false; }),
    with([](Options& o) { o.kdim = 3, o.vdim = 5; }),
};

}  // namespace

TEMPLATE_TEST_CASE("weights of a file are kept in 16 bits as the nearest numbers", "[io]", BFloat16,
                   Float16) {
  using W = TestType;
  for (const Options& options : modules) {
    const auto module = scrambled<float>(options, 5);
    const auto stored = store_weights_as<W>(module);
    REQUIRE(difference(store_weights_as<float>(stored), module) != "");
    for (const DType dtype : {DType::f32, DType::f64}) {
      const auto loaded =
          from_pytorch<float, W>(file_of(module, dtype), options.num_heads, "part.");
      // What PyTorch has no place for comes back as a bias of 0.
      auto expected = store_weights_as<W>(
          from_pytorch<float>(file_of(module, dtype), options.num_heads, "part."));
      CHECK(difference(loaded, expected) == "");
    }
  }
}

TEMPLATE_TEST_CASE("weights of 16 bits come back from PyTorch's names with the same bits", "[io]",
                   BFloat16, Float16) {
  using W = TestType;
  for (const Options& options : modules) {
    const auto module = store_weights_as<W>(scrambled<float>(options, 7));
    for (const DType dtype : {DType::f32, DType::f64}) {
      const SafetensorsFile file = file_of(module, dtype);
      auto loaded = store_weights_as<W>(scrambled<float>(options, 9));
      REQUIRE(difference(loaded, module) != "");
      load_pytorch(file, loaded, "part.");
      CHECK(difference(loaded, module) == "");
    }
    // A file of 16 bits rounds biases, and no matrix.
    const auto narrow =
        from_pytorch<float, W>(file_of(module, dtype_of<W>), options.num_heads, "part.");
    CHECK(bitwise_equal(narrow.parameters().W_Q(), module.parameters().W_Q()));
    CHECK(bitwise_equal(narrow.parameters().W_K(), module.parameters().W_K()));
    CHECK(bitwise_equal(narrow.parameters().W_V(), module.parameters().W_V()));
    CHECK(bitwise_equal(narrow.parameters().w_o, module.parameters().w_o));
  }
}

TEST_CASE("a module of 16-bit weights stays as it was where a file does not fit", "[io]") {
  auto module = store_weights_as<BFloat16>(scrambled<float>(biased, 3));
  const auto before = module;
  const SafetensorsFile other =
      file_of(scrambled<float>(with([](Options& o) { o.d_model = 6; }), 4), DType::f32);
  CHECK_THROWS_AS(load_pytorch(other, module, "part."), ShapeError);
  CHECK(difference(module, before) == "");
}

TEST_CASE("a block keeps its matrices in 16 bits on the way in and out of PyTorch's names",
          "[io]") {
  TransformerBlock<float> block({.d_model = 6, .num_heads = 2, .d_hidden = 5});
  draw_all(block.parameters(), 3);
  const auto stored = store_weights_as<BFloat16>(block);
  const TransformerBlockOptions known{.num_heads = 2};
  const auto loaded = from_pytorch<float, BFloat16>(file_of(block, DType::f32), known, "part.");
  CHECK(difference(loaded, stored) == "");
  const auto again = from_pytorch<float, BFloat16>(file_of(stored, DType::f32), known, "part.");
  CHECK(difference(again, stored) == "");
}

}  // namespace io_pytorch_stored
