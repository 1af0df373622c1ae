// The character model: a decoder of pre-LN blocks without biases, on the tape.
//
//   h = token_c + position_l,  h = block(h) for each block,  logits = layer_norm(h) token^T
//   block   h = h + attention(layer_norm(h)) W_proj,  h = h + gelu(layer_norm(h) W_up) W_down
//
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: GPT-2
// without biases and dropout.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "headwise/autograd/attention.hpp"
#include "headwise/autograd/functions.hpp"
#include "headwise/autograd/model_functions.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/nn/init.hpp"
#include "model.hpp"

namespace char_gpt {

using headwise::In;
using headwise::Shape;
using headwise::Tape;
using headwise::Variable;

/// A parameter and its gradient.
template <int R>
struct Weight {
  Tensor<float, R> value, gradient;

  explicit Weight(const Shape<R>& shape) : value(shape), gradient(shape) {}
  /// On a tape: read from the one, added to the other.
  Variable<float, R> on(Tape<float>& tape) { return tape.parameter(In<float, R>(value), gradient); }
};

/// What a block learns.
struct Block {
  Weight<1> norm1, norm2;         // [D]
  Weight<2> qkv, proj, up, down;  // [D, 3 D], [D, D], [D, 4 D], [4 D, D]

  explicit Block(Index D)
      : norm1(Shape{D}),
        norm2(Shape{D}),
        qkv(Shape{D, 3 * D}),
        proj(Shape{D, D}),
        up(Shape{D, 4 * D}),
        down(Shape{4 * D, D}) {
    for (float& one : norm1.value) one = 1;
    for (float& one : norm2.value) one = 1;
  }

  /// [B, L, D] of h [B, L, D].
  Variable<float, 3> forward(Tape<float>& tape, const Variable<float, 3>& x, Index num_heads) {
    const Index D = x.extent(2);
    const auto projected = linear(layer_norm(x, norm1.on(tape)), qkv.on(tape));
    const auto heads = [&](Index n) {
      return split_heads(slice(projected, 2, n * D, D), num_heads);
    };
    const auto context =
        merge_heads(attention(heads(0), heads(1), heads(2), {.mask = headwise::causal}));
    const auto h = x + linear(context, proj.on(tape));
    const auto hidden = gelu(linear(layer_norm(h, norm2.on(tape)), up.on(tape)));
    return h + linear(hidden, down.on(tape));
  }
};

/// The model. Weights start as normal numbers of deviation 0.02, those that end a branch divided by
/// sqrt(2 layers).
class Gpt final : public Model {
 public:
  explicit Gpt(const ModelOptions& options)
      : options_(options),
        token_(Shape{options.vocabulary, options.width}),
        position_(Shape{options.context, options.width}),
        norm_(Shape{options.width}) {
    for (Index n = 0; n < options.layers; ++n) blocks_.emplace_back(options.width);
    for (float& one : norm_.value) one = 1;
    std::uint32_t number = 0;
    const auto init = [&](Weight<2>& weight, double deviation) {
      headwise::init_normal<float>(weight.value, deviation, options.seed, number++);
    };
    init(token_, 0.02);
    init(position_, 0.02);
    const double last = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
    for (Block& block : blocks_) {
      init(block.qkv, 0.02);
      init(block.proj, last);
      init(block.up, 0.02);
      init(block.down, last);
    }
  }

  ParameterList<float> parameters() override {
    ParameterList<float> list;
    const auto add = [&](const std::string& name, auto& weight) {
      list.add(name, weight.value, weight.gradient);
    };
    add("token", token_);
    add("position", position_);
    for (std::size_t n = 0; n < blocks_.size(); ++n) {
      const std::string prefix = "blocks." + std::to_string(n) + ".";
      add(prefix + "norm1", blocks_[n].norm1);
      add(prefix + "qkv", blocks_[n].qkv);
      add(prefix + "proj", blocks_[n].proj);
      add(prefix + "norm2", blocks_[n].norm2);
      add(prefix + "up", blocks_[n].up);
      add(prefix + "down", blocks_[n].down);
    }
    add("norm", norm_);
    return list;
  }

  double loss_and_gradients(const Batch& batch, const Context& context) override {
    Tape<float> tape(context);
    const auto loss = loss_of(tape, batch);
    tape.backward(loss);
    return static_cast<double>(loss.value()(0));
  }

  double loss(const Batch& batch, const Context& context) override {
    Tape<float> tape(context);
    const headwise::NoGrad<float> values_only(tape);
    return static_cast<double>(loss_of(tape, batch).value()(0));
  }

  std::vector<float> next_logits(std::span<const TokenId> seen, const Context& context) override {
    Tape<float> tape(context);
    const headwise::NoGrad<float> values_only(tape);
    const auto L = static_cast<Index>(seen.size());
    const auto all = logits(tape, {seen.data(), Shape{1, L}});
    const In<float, 1> last = headwise::select(all.value(), L - 1);
    return {last.data(), last.data() + last.size()};
  }

 private:
  /// [B L, V] for inputs [B, L].
  Variable<float, 2> logits(Tape<float>& tape, In<TokenId, 2> inputs) {
    const Index B = inputs.extent(0), L = inputs.extent(1), D = options_.width;
    const auto token = token_.on(tape);
    const In<TokenId, 1> tokens(inputs.data(), Shape{B * L});
    auto h = reshape(embedding(tokens, token), Shape{B, L, D}) + slice(position_.on(tape), 0, 0, L);
    for (Block& block : blocks_) h = block.forward(tape, h, options_.heads);
    const auto normed = reshape(layer_norm(h, norm_.on(tape)), Shape{B * L, D});
    return linear(normed, transpose(token, 0, 1));
  }
  Variable<float, 1> loss_of(Tape<float>& tape, const Batch& batch) {
    const In<TokenId, 1> targets(batch.targets.data(), Shape{batch.targets.size()});
    return cross_entropy(logits(tape, batch.inputs), targets);
  }

  const ModelOptions options_;
  Weight<2> token_;     // [V, D]; its transpose is the head
  Weight<2> position_;  // [context, D]
  std::vector<Block> blocks_;
  Weight<1> norm_;  // [D]
};

}  // namespace char_gpt
