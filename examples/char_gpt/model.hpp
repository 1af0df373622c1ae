// What char_gpt trains: anything that says how likely each character is to come next, and how that
// changes with its parameters.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "headwise/optim/parameter_list.hpp"
#include "headwise/runtime/context.hpp"
#include "text.hpp"

namespace char_gpt {

using headwise::Context;
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

  /// A number for each character, [V]: it comes next with probability softmax of them.
  ///
  /// seen   at least one character, at most context of them
  virtual std::vector<float> next_logits(std::span<const TokenId> seen, const Context& context) = 0;
};

}  // namespace char_gpt
