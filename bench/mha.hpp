// A module with its inputs, for the families that time it and those that are compared with it.
#pragma once

#include "support.hpp"

namespace headwise::bench {

/// Projections with biases, attention, output projection; x and dy [B, L, D] of type E.
template <class T, class E = T>
struct Module {
  AttentionCase sizes;
  MultiHeadAttention<T> module;
  Tensor<E, 3> x, dy;
  MultiHeadAttentionCall<T> call;
  MultiHeadAttentionGradients<T> gradients;  // of every run so far: backward adds
  Tensor<E, 3> y, dx;                        // of the last run

  explicit Module(const std::vector<Index>& values)
      : sizes(values),
        module({.d_model = sizes.D,
                .num_heads = sizes.H,
                .num_kv_heads = sizes.G,
                .q_bias = true,
                .k_bias = true,
                .v_bias = true}),
        x(convert<E>(random_tensor<T>(Shape{sizes.B, sizes.L, sizes.D}, 1))),
        dy(convert<E>(random_tensor<T>(Shape{sizes.B, sizes.L, sizes.D}, 2))),
        gradients(module.zero_gradients()) {
    if (sizes.is_causal) call.mask.add(causal);
  }

  void run(bool with_backward, const Context& context) {
    y = dx = Tensor<E, 3>();  // given back first, as a loop over steps does
    if (with_backward) {
      MultiHeadAttentionCache<T> cache;
      y = module.forward(x, call, cache, context);
      dx = module.backward(dy, cache, gradients, context);
    } else {
      y = module.forward(x, call, context);
    }
  }

  AttentionShape shape() const { return attention_shape(module.options(), call, sizes.B, sizes.L); }
  /// FLOPs of matrix products.
  double flops(bool with_backward) const {
    const auto back = with_backward ? count_backward_flops(shape(), Path::flash).products() : 0;
    return static_cast<double>(count_flops(shape()).products() + back);
  }
  /// Inputs, parameters and outputs, each once.
  double bytes(bool with_backward) const {
    double parameters = 0;
    module.parameters().for_each(
        [&](const std::string&, auto view) { parameters += bytes_of(view); });
    return (2 * bytes_of(x) + parameters) * (with_backward ? 2 : 1);
  }
};

}  // namespace headwise::bench
