// The model that char_gpt trains: the decoder in float.
#pragma once

#include "generation.hpp"
#include "heads.hpp"

namespace char_gpt {

class Gpt final : public Model {
 public:
  /// Steps, but not the losses of what is held out, fill a profile where one is given.
  explicit Gpt(const ModelOptions& options, headwise::TapeProfile* profile = nullptr)
      : decoder_(options), profile_(profile) {}

  ParameterList<float> parameters() override { return decoder_.parameters(); }

  double loss_and_gradients(const Batch& batch, const Context& context) override {
    Tape<float> tape(context, profile_);
    const auto loss = decoder_.loss(tape, batch);
    tape.backward(loss);
    return static_cast<double>(loss.value()(0));
  }

  double loss(const Batch& batch, const Context& context) override {
    Tape<float> tape(context);
    const headwise::NoGrad<float> values_only(tape);
    return static_cast<double>(decoder_.loss(tape, batch).value()(0));
  }

  std::unique_ptr<Generator<float>> generator(const Context& context) const override {
    return std::make_unique<DecoderGenerator<float>>(decoder_, context);
  }

  Tensor<float, 4> attention_weights(std::span<const TokenId> tokens,
                                     const Context& context) const override {
    return char_gpt::attention_weights(decoder_, tokens, context);
  }

 private:
  Decoder<float> decoder_;
  headwise::TapeProfile* const profile_;
};

}  // namespace char_gpt
