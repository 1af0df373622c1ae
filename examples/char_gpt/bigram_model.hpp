// The smallest model: what comes next depends on the last character alone. It is what a larger one
// has to beat, and what the tests of the training loop train.
#pragma once

#include <algorithm>
#include <cmath>

#include "headwise/ops/softmax.hpp"
#include "model.hpp"

namespace char_gpt {

/// logits of what follows character c: row c of a table [V, V], plus a bias [V]. All 0 at first.
class BigramModel final : public Model {
 public:
  explicit BigramModel(const ModelOptions& options)
      : table_({options.vocabulary, options.vocabulary}),
        table_gradient_(table_.shape()),
        bias_(Shape<1>(options.vocabulary)),
        bias_gradient_(bias_.shape()) {}

  ParameterList<float> parameters() override {
    ParameterList<float> list;
    list.add("table", table_, table_gradient_);
    list.add("bias", bias_, bias_gradient_);
    return list;
  }

  double loss_and_gradients(const Batch& batch, const Context& context) override {
    return visit(batch, context, [&](TokenId from, TokenId to, const float* p, float share) {
      for (Index v = 0; v < bias_.size(); ++v) {
        const float slope = (p[v] - (v == to ? 1.0f : 0.0f)) * share;
        table_gradient_(from, v) += slope;
        bias_gradient_(v) += slope;
      }
    });
  }

  double loss(const Batch& batch, const Context& context) override {
    return visit(batch, context, [](TokenId, TokenId, const float*, float) {});
  }

  std::unique_ptr<Generator<float>> generator(const Context&) const override {
    return std::make_unique<RowOfLast>(*this);
  }

 private:
  /// The logits of the last character alone.
  class RowOfLast final : public Generator<float> {
   public:
    explicit RowOfLast(const BigramModel& model) : model_(model), logits_(model.bias_.shape()) {}
    In<float, 1> append(std::span<const TokenId> tokens) override {
      for (Index v = 0; v < logits_.size(); ++v) {
        logits_(v) = model_.table_(tokens.back(), v) + model_.bias_(v);
      }
      return logits_;
    }

   private:
    const BigramModel& model_;
    Tensor<float, 1> logits_;  // [V]
  };

  /// f(from, to, probabilities, 1 / pairs) for each pair of the batch; returns the mean loss.
  template <class F>
  double visit(const Batch& batch, const Context& context, const F& f) {
    const Index V = bias_.size(), pairs = batch.inputs.size();
    Tensor<float, 2> p({V, V});
    for (Index c = 0; c < V; ++c) {
      for (Index v = 0; v < V; ++v) p(c, v) = table_(c, v) + bias_(v);
    }
    headwise::softmax_forward(p, p, context);
    double sum = 0;
    for (Index n = 0; n < pairs; ++n) {
      const TokenId from = batch.inputs.data()[n], to = batch.targets.data()[n];
      sum -= std::log(std::max(static_cast<double>(p(from, to)), 1e-30));
      f(from, to, &p(from, 0), 1.0f / static_cast<float>(pairs));
    }
    return sum / static_cast<double>(pairs);
  }

  Tensor<float, 2> table_, table_gradient_;  // [V, V]
  Tensor<float, 1> bias_, bias_gradient_;    // [V]
};

}  // namespace char_gpt
