// The model that char_gpt trains: the decoder in float.
#pragma once

#include "decoder.hpp"

namespace char_gpt {

class Gpt final : public Model {
 public:
  explicit Gpt(const ModelOptions& options) : decoder_(options) {}

  ParameterList<float> parameters() override { return decoder_.parameters(); }

  double loss_and_gradients(const Batch& batch, const Context& context) override {
    Tape<float> tape(context);
    const auto loss = decoder_.loss(tape, batch);
    tape.backward(loss);
    return static_cast<double>(loss.value()(0));
  }

  double loss(const Batch& batch, const Context& context) override {
    Tape<float> tape(context);
    const headwise::NoGrad<float> values_only(tape);
    return static_cast<double>(decoder_.loss(tape, batch).value()(0));
  }

  std::vector<float> next_logits(std::span<const TokenId> seen, const Context& context) override {
    Tape<float> tape(context);
    const headwise::NoGrad<float> values_only(tape);
    const auto length = static_cast<Index>(seen.size());
    const auto all = decoder_.logits(tape, {seen.data(), Shape{1, length}});
    const In<float, 1> last = headwise::select(all.value(), length - 1);
    return {last.data(), last.data() + last.size()};
  }

 private:
  Decoder<float> decoder_;
};

}  // namespace char_gpt
