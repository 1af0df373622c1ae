// Calls of a step over a cache, of attention and of a block, all of them right.
#pragma once

#include <vector>

#include "support/refusal_rules.hpp"

namespace headwise_tests::step_calls {

/// 6 wide, 2 heads; a cache of 2 sequences of at most 3 tokens.
struct Step {
  Witness& m;
  MultiHeadAttention<double> attention{{.d_model = 6, .num_heads = 2}};
  KeyValueCache<double> cache = key_value_cache(attention, 2, 3);
  View<3> x = m.tensor(2, 2, 6);
  std::vector<Index> counts = {};
  MultiHeadAttentionStepCall<double> options = {};
  void call() {
    options.counts = counts;
    try {
      (void)multi_head_attention_step(attention, x, options, cache, m.context());
    } catch (...) {
      CHECK(cache.length() == 0);
      throw;
    }
  }
};

/// 4 wide, 2 heads; a cache of 2 sequences of at most 3 tokens.
struct BlockStep {
  Witness& m;
  TransformerBlock<double>& block = m.make<TransformerBlock<double>>(
      TransformerBlockOptions{.d_model = 4, .num_heads = 2, .d_hidden = 5});
  KeyValueCache<double>& cache =
      m.make<KeyValueCache<double>>(key_value_cache<double>(block.options().attention(), 2, 3));
  View<3> x = m.tensor(2, 2, 4);
  std::vector<Index> counts = {};
  MultiHeadAttentionStepCall<double> options = {};
  void call() {
    m.keep(block.parameters()), m.keep(cache);
    options.counts = counts;
    (void)transformer_block_step(block, x, options, cache, m.context());
  }
};

}  // namespace headwise_tests::step_calls
