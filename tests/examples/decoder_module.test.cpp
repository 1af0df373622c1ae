// The library's TransformerDecoder, written by hand, and the decoder of char_gpt on the tape: one
// function, derived in two ways.
#include "../../examples/char_gpt/decoder.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "support/catch.hpp"

namespace examples_decoder_module {

namespace {

using namespace headwise;

constexpr Index B = 3, L = 9, V = 11, D = 12;

/// f(name, the tape's weight, the module's tensor) for each parameter.
template <class Parameters, class F>
void for_each_pair(char_gpt::Decoder<double>& taped, Parameters& p, const F& f) {
  taped.for_each([&](const std::string& name, auto& weight) {
    const auto pair = [&](const std::string& wanted, auto& tensor) {
      if constexpr (std::decay_t<decltype(tensor)>::rank ==
                    std::decay_t<decltype(weight.value)>::rank) {
        if (name == wanted) f(name, weight, tensor);
      }
    };
    pair("token", p.token);
    pair("position", p.position);
    pair("norm", p.norm.gamma);
    for (std::size_t n = 0; n < p.blocks.size(); ++n) {
      const std::string block = "blocks." + std::to_string(n) + ".";
      pair(block + "norm1", p.blocks[n].norm1.gamma);
      pair(block + "qkv", p.blocks[n].attention.w_qkv);
      pair(block + "proj", p.blocks[n].attention.w_o);
      pair(block + "norm2", p.blocks[n].norm2.gamma);
      pair(block + "up", p.blocks[n].feed_forward.w_in);
      pair(block + "down", p.blocks[n].feed_forward.w_out);
    }
  });
}

/// The greatest difference, relative to the greatest number.
template <int R>
double error_of(const Tensor<double, R>& got, const Tensor<double, R>& wanted) {
  REQUIRE(got.shape() == wanted.shape());
  double worst = 0, greatest = 0;
  for (Index n = 0; n < got.size(); ++n) {
    worst = std::max(worst, std::abs(got.data()[n] - wanted.data()[n]));
    greatest = std::max(greatest, std::abs(wanted.data()[n]));
  }
  return worst / greatest;
}

}  // namespace

TEST_CASE("a TransformerDecoder has the loss and the gradients of char_gpt's decoder on the tape",
          "[examples]") {
  char_gpt::Decoder<double> taped(
      {.vocabulary = V, .layers = 3, .heads = 2, .width = D, .context = L + 1, .seed = 3});
  TransformerDecoder<double> decoder({.vocabulary = V,
                                      .max_length = L + 1,
                                      .num_blocks = 3,
                                      .block = {.d_model = D,
                                                .num_heads = 2,
                                                .attention_bias = false,
                                                .feed_forward_bias = false,
                                                .norm_bias = false}});
  int paired = 0;
  std::uint64_t drawn = 0;
  for_each_pair(taped, decoder.parameters(), [&](const std::string&, auto& weight, auto& tensor) {
    REQUIRE(tensor.shape() == weight.value.shape());
    for (double& w : weight.value) w += 0.3 * philox_normal({5, 0}, drawn++);
    tensor = weight.value;
    ++paired;
  });
  int all = 0;
  decoder.parameters().for_each([&](const std::string& name, auto) {
    all += name.find("W_K") == name.npos && name.find("W_V") == name.npos ? 1 : 0;  // with W_Q
  });
  REQUIRE(paired == all);

  char_gpt::Batch batch{Tensor2<char_gpt::TokenId>({B, L}), Tensor2<char_gpt::TokenId>({B, L})};
  for (Index n = 0; n < B * L; ++n) {
    batch.inputs.data()[n] = static_cast<char_gpt::TokenId>(n * n % V);
    batch.targets.data()[n] = static_cast<char_gpt::TokenId>((3 * n + 1) % V);
  }
  Tape<double> tape;
  const auto loss = taped.loss(tape, batch);
  tape.backward(loss);

  TransformerDecoderCache<double> cache;
  auto gradients = decoder.zero_gradients();
  const Tensor2<double> logits = decoder.forward(batch.inputs, {}, cache);
  const In<char_gpt::TokenId, 1> targets(batch.targets.data(), Shape{B * L});
  Tensor1<double> logsumexp(B * L);
  Tensor2<double> d_logits(logits.shape());
  const double same = cross_entropy_forward(logits, targets, {}, logsumexp);
  cross_entropy_backward(1.0, logits, targets, logsumexp, {}, d_logits);
  decoder.backward(d_logits, cache, gradients);

  CHECK(std::abs(same - loss.value()(0)) < 1e-12);
  for_each_pair(taped, gradients, [&](const std::string& name, auto& weight, auto& tensor) {
    CAPTURE(name);
    CHECK(error_of(tensor, weight.gradient) < 1e-12);
  });
}

}  // namespace examples_decoder_module
