// What upper_halves looks at: the kernels that a block calls, in float, through both directions.
#include <headwise/nn/transformer_block.hpp>

int main() {
  using namespace headwise;
  const TransformerBlock<float> block({.d_model = 64, .num_heads = 4});
  const Tensor3<float> x({1, 16, 64});
  TransformerBlock<float>::Cache cache;
  auto gradients = block.zero_gradients();
  const Tensor3<float> y = block.forward(x, {.mask = causal}, cache);
  const Tensor3<float> dx = block.backward(y, cache, gradients);
  return dx(0, 0, 0) == 0 ? 0 : 1;
}
