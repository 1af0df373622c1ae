// A token of a decoder, one sequence: every matrix is read once for one row, as floats or kept in
// 16 bits. It waits for memory.
#include <memory>

#include "headwise/nn/stored_weights.hpp"
#include "headwise/testing/close_to.hpp"
#include "support.hpp"

namespace headwise::bench {

namespace {

template <class W>
struct Writer {
  TransformerDecoder<float, W> decoder;
  typename TransformerDecoder<float, W>::State state;
  Tensor2<std::int32_t> tokens;  // [1, 1]
  Tensor2<float> logits = {};    // [1, V]

  explicit Writer(const TransformerDecoderOptions& options)
      : decoder(options), state(decoder.state()), tokens({1, 1}, {std::int32_t{1}}) {}

  /// The next token, of a state that holds as many before it each time.
  void run(const Context& context) {
    if (state.room() == 0) state.clear();
    logits = decoder.step(tokens, state, context);
  }
  /// The first token has the bits of the whole sequence by the same numbers as floats.
  bool right() {
    state.clear();
    run({});
    const auto whole = store_weights_as<float>(decoder).forward(tokens);
    return bool(bitwise_equal(logits, whole));
  }
};

template <class W>
Case step(const std::vector<Index>& sizes) {
  const Index V = sizes.at(0), D = sizes.at(1), blocks = sizes.at(2);
  const auto writer = std::make_shared<Writer<W>>(
      TransformerDecoderOptions{.vocabulary = V,
                                .max_length = 64,
                                .num_blocks = blocks,
                                .block = {.d_model = D, .num_heads = D % 64 == 0 ? D / 64 : 1}});
  const auto weights = static_cast<double>(V * D + blocks * 12 * D * D);
  Case one;
  one.run = [writer](const Context& context) { writer->run(context); };
  one.right = [writer] { return writer->right(); };
  one.flops = 2 * weights;
  one.bytes = static_cast<double>(sizeof(W)) * weights;
  one.tokens = 1;
  return one;
}

}  // namespace

void add_step(Families& families) {
  const std::vector<std::string> arguments = {"V", "D", "blocks"};
  const std::vector<std::vector<Index>> values = {{30000, 768, 4}, {256, 128, 4}};
  families.push_back({"step/f32", arguments, values, step<float>});
  families.push_back({"step/bf16", arguments, values, step<BFloat16>});
  families.push_back({"step/fp16", arguments, values, step<Float16>});
}

}  // namespace headwise::bench
