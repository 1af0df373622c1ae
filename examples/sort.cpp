// Sorting, learned: a transformer of modules reads eight digits and writes them in order. There is
// no tape here: each module's backward is called by hand, forward read upward.
//   sort          trains until it sorts, some seconds, and shows what it does
#include <cstdint>
#include <iostream>
#include <vector>

#include "headwise/nn/embedding.hpp"
#include "headwise/nn/layer_norm.hpp"
#include "headwise/nn/linear.hpp"
#include "headwise/nn/transformer_block.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "headwise/optim/adamw.hpp"
#include "support/digits.hpp"

using namespace headwise;
using namespace headwise::examples;

namespace {

constexpr Index width = 32, batch = 64;

/// logits = norm(block(block(digit + place))) W.
class Sorter {
 public:
  /// Logits [batch length, digits].
  Tensor2<float> forward(In<std::int32_t, 1> tokens) {
    cache_ = {};
    cache_.x = digit_.forward(tokens, cache_.digit);
    const Tensor2<float> place = place_.forward(In(places_), cache_.place);
    add_forward(cache_.x, place, cache_.x);
    cache_.h = blocks_[0].forward(rows(cache_.x), {}, cache_.blocks[0]);
    cache_.y = blocks_[1].forward(cache_.h, {}, cache_.blocks[1]);
    cache_.normed = norm_.forward(merge_rows(cache_.y), cache_.norm);
    return head_.forward(cache_.normed, cache_.head);
  }
  /// Adds the gradients of all parameters.
  void backward(In<float, 2> d_logits) {
    const auto d_normed = head_.backward(d_logits, cache_.head, d_head_);
    const auto d_y = norm_.backward(d_normed, cache_.norm, d_norm_);
    const auto d_h = blocks_[1].backward(rows(d_y), cache_.blocks[1], d_blocks_[1]);
    const auto d_x = blocks_[0].backward(d_h, cache_.blocks[0], d_blocks_[0]);
    place_.backward(merge_rows(d_x), cache_.place, d_place_);
    digit_.backward(merge_rows(d_x), cache_.digit, d_digit_);
  }
  ParameterList<float> parameters() {
    ParameterList<float> list;
    collect(list, "digit.", digit_.parameters(), d_digit_);
    collect(list, "place.", place_.parameters(), d_place_);
    collect(list, "block0.", blocks_[0].parameters(), d_blocks_[0]);
    collect(list, "block1.", blocks_[1].parameters(), d_blocks_[1]);
    collect(list, "norm.", norm_.parameters(), d_norm_);
    collect(list, "head.", head_.parameters(), d_head_);
    return list;
  }

 private:
  static In<float, 3> rows(In<float, 2> x) { return {x.data(), Shape{batch, length, width}}; }
  static Tokens places() {
    Tokens all(Shape{batch * length});
    for (Index n = 0; n < all.size(); ++n) all(n) = static_cast<std::int32_t>(n % length);
    return all;
  }
  static TransformerBlock<float> block(std::uint64_t seed) {
    return TransformerBlock<float>({.d_model = width, .num_heads = 4, .seed = seed});
  }

  const Tokens places_ = places();
  Embedding<float> digit_{digits, width, 0.3, 1}, place_{length, width, 0.3, 2};
  std::vector<TransformerBlock<float>> blocks_ = {block(3), block(4)};
  LayerNorm<float> norm_{width};
  Linear<float> head_{width, digits};

  EmbeddingParameters<float> d_digit_ = digit_.zero_gradients(), d_place_ = place_.zero_gradients();
  std::vector<TransformerBlock<float>::Gradients> d_blocks_ = {blocks_[0].zero_gradients(),
                                                               blocks_[1].zero_gradients()};
  LayerNormParameters<float> d_norm_ = norm_.zero_gradients();
  LinearParameters<float> d_head_ = head_.zero_gradients();

  struct {
    Embedding<float>::Cache digit, place;
    TransformerBlock<float>::Cache blocks[2];
    LayerNorm<float>::Cache norm;
    Linear<float>::Cache head;
    Tensor2<float> x, normed;  // [batch length, width]
    Tensor3<float> h, y;       // [batch, length, width]
  } cache_;
};

void show(const Tensor2<float>& logits, const Tokens& tokens) {
  for (Index n = 0; n < 3 * length; ++n) {
    if (n % length == 0) {
      for (Index i = 0; i < length; ++i) std::cout << tokens(n + i) << ' ';
      std::cout << "-> ";
    }
    std::cout << answer(logits, n) << (n % length == 7 ? '\n' : ' ');
  }
}

}  // namespace

int main() {
  Sorter sorter;
  const auto parameters = sorter.parameters();
  AdamW<float> optimizer;
  optimizer.add_group(parameters, {.learning_rate = 3e-3, .weight_decay = 0});
  Tensor2<float> d_logits({batch * length, digits});
  Tensor1<float> lse(Shape{batch * length});
  double right = 0;
  std::uint64_t step = 0;
  for (; step < 1000 && right < 0.99; ++step) {
    const Tokens tokens = draw(batch, step), wanted = sorted(tokens);
    const auto logits = sorter.forward(tokens);
    cross_entropy_forward(In<float, 2>(logits), In(wanted), {}, lse);
    cross_entropy_backward(1.0f, In<float, 2>(logits), In(wanted), lse, {}, d_logits);
    zero_gradients(parameters);
    sorter.backward(d_logits);
    clip_grad_norm(parameters, 1.0);
    optimizer.step();
    right = share_right(logits, wanted);
  }
  const Tokens unseen = draw(batch, 1u << 20);
  const auto logits = sorter.forward(unseen);
  const double share = share_right(logits, sorted(unseen));
  std::cout << parameters.elements() << " parameters, " << step << " steps: " << 100 * share
            << " % of unseen digits are where they belong\n";
  show(logits, unseen);
  return share > 0.95 ? 0 : 1;
}
