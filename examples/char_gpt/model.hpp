// What char_gpt trains: anything that says how likely each character is to come next, and how that
// changes with its parameters.
#pragma once

#include <memory>
#include <span>

#include "headwise/optim/parameter_list.hpp"
#include "headwise/runtime/context.hpp"
#include "text.hpp"

namespace char_gpt {

using headwise::Context;
using headwise::In;
using headwise::ParameterList;

/// The sizes of a model.
struct ModelOptions {
  Index vocabulary = 0;  // V, characters in the alphabet
  Index layers = 0;      // blocks
  Index heads = 0;       // H
  Index width = 0;       // D
  Index context = 0;     // L, most characters that it sees
  std::uint64_t seed = 0;
};

/// Reads a text and says after each part of it what may come next.
template <class T>
class Generator {
 public:
  Generator() = default;
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  virtual ~Generator() = default;

  /// A number for each character, [V], right until the next call: it follows all that was appended
  /// so far with probability softmax of them.
  ///
  /// tokens   [n]   at least one
  virtual In<T, 1> append(std::span<const TokenId> tokens) = 0;
};

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  /// Every parameter with its gradient, by name; the same memory for as long as the model lives.
  virtual ParameterList<float> parameters() = 0;

  /// The mean of -log p(target) over the batch. The gradients of it are added to those of the
  /// parameters.
  virtual double loss_and_gradients(const Batch& batch, const Context& context) = 0;

  /// The same loss without gradients.
  virtual double loss(const Batch& batch, const Context& context) = 0;

  /// What says how a text goes on; the model has to outlive it, and keep its values.
  virtual std::unique_ptr<Generator<float>> generator(const Context& context) const = 0;

  /// The attention weights of every layer and head [layers, H, L, L], a row a query; of no layer
  /// where the model has no heads.
  ///
  /// tokens   [L]   at least one, at most context
  virtual Tensor<float, 4> attention_weights(std::span<const TokenId>, const Context&) const {
    return Tensor<float, 4>(Shape{0, 0, 0, 0});
  }
};

}  // namespace char_gpt
