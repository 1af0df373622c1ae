// The module forward and backward: it learns to copy the first token to every position.
#include <iostream>

#include "headwise/headwise.hpp"

using namespace headwise;

int main() {
  MultiHeadAttention<float> attention({.d_model = 16, .num_heads = 4, .seed = 1});
  Tensor3<float> x({8, 6, 16}), wanted({8, 6, 16});  // [B, L, D]
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = static_cast<float>(philox_normal({7, 7}, static_cast<std::uint64_t>(n)));
  }
  for_each_index(wanted.shape(), [&](const Shape<3>& at) { wanted(at) = x(at[0], 0, at[2]); });

  float first = 0, loss = 0;
  for (int step = 0; step <= 200; ++step) {
    MultiHeadAttention<float>::Cache cache;
    const Tensor3<float> y = attention.forward(x, {.mask = causal}, cache);
    Tensor3<float> dy(y.shape());
    loss = 0;
    for (Index n = 0; n < y.size(); ++n) {
      const float error = y.data()[n] - wanted.data()[n];
      loss += error * error / static_cast<float>(y.size());
      dy.data()[n] = 2 * error / static_cast<float>(y.size());
    }
    auto gradients = attention.zero_gradients();
    attention.backward(dy, cache, gradients);
    for_each_with_gradient(attention.parameters(), gradients, [](auto&, auto w, auto dw) {
      for_each_index(w.shape(), [&](const auto& at) { w(at) -= 2.0f * dw(at); });
    });
    if (step == 0) first = loss;
    if (step % 50 == 0) std::cout << "step " << step << "  loss " << loss << '\n';
  }
  return loss < first / 2 ? 0 : 1;
}
