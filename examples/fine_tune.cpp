// A head, fine-tuned on frozen layers: a transformer on the tape learns to sort eight digits; then
// its layers are frozen, and a new linear layer alone learns from their features how far the
// largest digit is from the smallest. To freeze is to give the tape constants instead of
// parameters: what has no gradient is not recorded, and nothing is kept for it.
//   fine_tune     some seconds; fails where the head does not learn or a frozen number changes
#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "headwise/autograd/functions.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/nn/init.hpp"
#include "headwise/optim/adamw.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/digits.hpp"

using namespace headwise;
using namespace headwise::examples;

namespace {

constexpr Index width = 32, heads = 4, batch = 64;

/// A matrix that is learned; frozen, the tape takes it as it is.
struct Weight {
  Tensor2<float> value, gradient;  // [in, out]
  bool frozen = false;

  Weight(Index in, Index out, std::uint64_t seed) : value({in, out}), gradient({in, out}) {
    init_weights<float>(value, Init::xavier_normal, seed, 0);
  }
  Variable<float, 2> on(Tape<float>& tape) {
    return frozen ? tape.constant(In(value)) : tape.parameter(In(value), gradient);
  }
};

/// h = digit + place, then twice h += attention(norm(h)) W_o, h += gelu(norm(h) W_up) W_down.
struct Layers {
  std::vector<Weight> weights;  // in the order in which they are used

  Layers() : weights{{digits, width, 1}, {length, width, 2}} {
    for (const std::uint64_t seed : {10u, 20u}) {
      weights.insert(weights.end(), {{width, 3 * width, seed},
                                     {width, width, seed + 1},
                                     {width, 4 * width, seed + 2},
                                     {4 * width, width, seed + 3}});
    }
  }
  void freeze() {
    for (Weight& weight : weights) weight.frozen = true;
  }
  /// [rows, length, width] of tokens [rows length].
  Variable<float, 3> features(Tape<float>& tape, In<std::int32_t, 1> tokens) {
    auto weight = weights.begin();
    const auto next = [&] { return (weight++)->on(tape); };
    const auto digit = embedding(tokens, next()), place = next();
    auto h = reshape(digit, Shape{tokens.size() / length, length, width}) + place;
    while (weight != weights.end()) {
      const auto qkv = linear(layer_norm(h), next());
      const auto part = [&](Index n) {
        return split_heads(slice(qkv, 2, n * width, width), heads);
      };
      h = h + linear(merge_heads(attention(part(0), part(1), part(2))), next());
      const auto hidden = gelu(linear(layer_norm(h), next()));
      h = h + linear(hidden, next());
    }
    return layer_norm(h);
  }
};

bool same_bits(const Weight& a, const Weight& b) {
  return bitwise_equal(a.value, b.value) && bitwise_equal(a.gradient, b.gradient);
}

/// The largest digit of each row less the smallest.
Tokens spread(Tokens tokens) {
  const Tokens in_order = sorted(std::move(tokens));
  Tokens spreads(Shape{in_order.size() / length});
  for (Index n = 0; n < spreads.size(); ++n) {
    spreads(n) = in_order((n + 1) * length - 1) - in_order(n * length);
  }
  return spreads;
}

/// Answers by a linear layer over the features: as wide as they are it gives one a place, `length`
/// times as wide one a row.
struct Task {
  Layers& layers;
  Weight& head;
  Tokens (*wanted)(Tokens tokens);

  Variable<float, 2> logits(Tape<float>& tape, const Tokens& tokens) const {
    const Index in = head.value.extent(0);
    const auto features = layers.features(tape, tokens);
    return linear(reshape(features, Shape{features.size() / in, in}), head.on(tape));
  }
  double share_of_unseen() const {
    Tape<float> tape;
    const NoGrad<float> values_only(tape);
    const Tokens unseen = draw(16 * batch, 1u << 20);
    return share_right(logits(tape, unseen).value(), wanted(unseen));
  }
  /// Trains what is not frozen, and says so. The share of unseen answers that are right then.
  double train() const {
    ParameterList<float> parameters;
    const auto add = [&](Weight& w) {
      if (!w.frozen) parameters.add(std::to_string(parameters.size()), w.value, w.gradient);
    };
    for (Weight& weight : layers.weights) add(weight);
    add(head);
    AdamW<float> optimizer;
    optimizer.add_group(parameters, {.learning_rate = 3e-3, .weight_decay = 0});
    const double before = share_of_unseen();
    Tape<float> tape;
    std::uint64_t step = 0;
    for (double share = 0; step < 600 && share < 0.99; ++step) {
      tape.clear();
      const Tokens tokens = draw(batch, step), answers = wanted(tokens);
      const auto answered = logits(tape, tokens);
      share = 0.9 * share + 0.1 * share_right(answered.value(), answers);  // of the last steps
      zero_gradients(parameters);
      tape.backward(cross_entropy(answered, In(answers)));
      clip_grad_norm(parameters, 1.0);
      optimizer.step();
    }
    const double after = share_of_unseen();
    std::cout << "  " << step << " steps, " << parameters.elements() << " numbers trained, "
              << tape.size() << " nodes on the tape: " << 100 * before
              << " % of unseen answers right, then " << 100 * after << " %\n";
    return after;
  }
};

}  // namespace

int main() {
  Layers layers, untrained;
  Weight places(width, digits, 3), head(length * width, digits, 4), other_head = head;
  std::cout << "sorting, everything trained\n";
  const double sorting = Task{layers, places, sorted}.train();
  layers.freeze();
  const Layers before = layers;
  std::cout << "largest digit less smallest, a head on the frozen layers\n";
  const double tuned = Task{layers, head, spread}.train();
  std::cout << "the same head on layers that have learned nothing\n";
  untrained.freeze();
  const double control = Task{untrained, other_head, spread}.train();
  const bool kept =
      std::equal(layers.weights.begin(), layers.weights.end(), before.weights.begin(), same_bits);
  std::cout << "frozen numbers and their gradients: " << (kept ? "as they were" : "CHANGED")
            << '\n';
  return sorting > 0.95 && tuned > 0.85 && tuned > control + 0.1 && kept ? 0 : 1;
}
