// A decoder of pre-LN blocks without biases, on the tape: what char_gpt trains.
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

#include "headwise/autograd/functions.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/nn/embedding.hpp"
#include "headwise/nn/init.hpp"
#include "model.hpp"

namespace char_gpt {

using headwise::Out;
using headwise::Shape;
using headwise::Tape;
using headwise::Variable;

/// A parameter and its gradient.
template <class T, int R>
struct Weight {
  Tensor<T, R> value, gradient;

  explicit Weight(const Shape<R>& shape) : value(shape), gradient(shape) {}
  /// On a tape: read from the one, added to the other.
  Variable<T, R> on(Tape<T>& tape) { return tape.parameter(In<T, R>(value), gradient); }
};

/// What a block learns.
template <class T>
struct Block {
  Weight<T, 1> norm1, norm2;         // [D]
  Weight<T, 2> qkv, proj, up, down;  // [D, 3 D], [D, D], [D, 4 D], [4 D, D]

  explicit Block(Index D)
      : norm1(Shape{D}),
        norm2(Shape{D}),
        qkv(Shape{D, 3 * D}),
        proj(Shape{D, D}),
        up(Shape{D, 4 * D}),
        down(Shape{4 * D, D}) {
    for (T& one : norm1.value) one = 1;
    for (T& one : norm2.value) one = 1;
  }

  /// [B, L, D] of x [B, L, D].
  Variable<T, 3> forward(Tape<T>& tape, const Variable<T, 3>& x, Index num_heads) {
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

  /// f(name, weight) for each.
  template <class F>
  void for_each(F&& f, const std::string& prefix) {
    f(prefix + "norm1", norm1);
    f(prefix + "qkv", qkv);
    f(prefix + "proj", proj);
    f(prefix + "norm2", norm2);
    f(prefix + "up", up);
    f(prefix + "down", down);
  }
};

/// Token and position embeddings, blocks, a norm, and the token table once more as head. Weights
/// start as normal numbers of deviation 0.02, those that end a branch divided by sqrt(2 layers).
template <class T>
class Decoder {
 public:
  explicit Decoder(const ModelOptions& options)
      : options_(options),
        token_(Shape{options.vocabulary, options.width}),
        position_(Shape{options.context, options.width}),
        norm_(Shape{options.width}) {
    for (Index n = 0; n < options.layers; ++n) blocks_.emplace_back(options.width);
    for (T& one : norm_.value) one = 1;
    std::uint32_t number = 0;
    const auto init = [&](Weight<T, 2>& weight, double deviation) {
      headwise::init_normal<T>(weight.value, deviation, options.seed, number++);
    };
    init(token_, 0.02);
    init(position_, 0.02);
    const double last = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
    for (Block<T>& block : blocks_) {
      init(block.qkv, 0.02);
      init(block.proj, last);
      init(block.up, 0.02);
      init(block.down, last);
    }
  }

  /// f(name, weight) for each.
  template <class F>
  void for_each(F&& f) {
    f("token", token_);
    f("position", position_);
    for (std::size_t n = 0; n < blocks_.size(); ++n) {
      blocks_[n].for_each(f, "blocks." + std::to_string(n) + ".");
    }
    f("norm", norm_);
  }
  /// All of them, for an optimiser.
  ParameterList<T> parameters() {
    ParameterList<T> list;
    for_each([&](const std::string& name, auto& weight) {
      list.add(name, weight.value, weight.gradient);
    });
    return list;
  }

  /// [B L, V] for inputs [B, L], dense, L at most the context. Throws headwise::ArgumentError.
  Variable<T, 2> logits(Tape<T>& tape, In<TokenId, 2> inputs) {
    headwise::require(inputs.dense(), "Decoder::logits",
                      "inputs have gaps or another order, expected them dense");
    const Index B = inputs.extent(0), L = inputs.extent(1), D = options_.width;
    const auto token = token_.on(tape);
    const In<TokenId, 1> tokens(inputs.data(), Shape{B * L});
    auto h = reshape(embedding(tokens, token), Shape{B, L, D}) + slice(position_.on(tape), 0, 0, L);
    for (Block<T>& block : blocks_) h = block.forward(tape, h, options_.heads);
    const auto normed = reshape(layer_norm(h, norm_.on(tape)), Shape{B * L, D});
    return tied_head(normed, token);
  }
  /// The mean of -log p(target), [1].
  Variable<T, 1> loss(Tape<T>& tape, const Batch& batch) {
    const In<TokenId, 1> targets(batch.targets.data(), Shape{batch.targets.size()});
    return cross_entropy(logits(tape, batch.inputs), targets);
  }

  /// What it is made of, to be read.
  ///@{
  const ModelOptions& options() const { return options_; }
  const Tensor<T, 2>& token() const { return token_.value; }        // [V, D]
  const Tensor<T, 2>& position() const { return position_.value; }  // [context, D]
  const std::vector<Block<T>>& blocks() const { return blocks_; }
  const Tensor<T, 1>& norm() const { return norm_.value; }  // [D]

  ///@}

 private:
  const ModelOptions options_;
  Weight<T, 2> token_;     // [V, D]; its transpose is the head
  Weight<T, 2> position_;  // [context, D]
  std::vector<Block<T>> blocks_;
  Weight<T, 1> norm_;  // [D]
};

}  // namespace char_gpt
