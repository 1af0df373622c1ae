// A module whose matrices are of 16 bits beside the one of the same numbers as floats.
#pragma once

#include <vector>

#include "headwise/nn/stored_weights.hpp"
#include "nn/transformer_decoder_case.hpp"

namespace headwise_tests {

/// f(module of 16-bit weights, module of the same numbers as floats).
template <class U, class Module, class F>
void with_both(Module module, const F& f) {
  draw_all(module.parameters(), 3);
  const auto kept = store_weights_as<U>(module);
  f(kept, store_weights_as<float>(kept));
}

/// Plain; grouped without a bias; all that a module of attention may have.
inline std::vector<MultiHeadAttentionOptions> self_attentions() {
  return {{.d_model = 24, .num_heads = 3},
          {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .d_head = 16, .q_bias = false},
          {.d_model = 48,
           .num_heads = 3,
           .q_bias = false,
           .k_bias = false,
           .v_bias = false,
           .o_bias = false,
           .layer_norm = true,
           .qk_norm = true,
           .sinks = true,
           .alibi = true,
           .relative_reach = 3,
           .rotary = RotaryOptions{}}};
}

}  // namespace headwise_tests
