// A call of MultiHeadAttention, all of it right, and what a table of refusals spoils in it.
#pragma once

#include <string>
#include <vector>

#include "support/refusal.hpp"

namespace headwise_tests::multi_head_attention_calls {

using Options = MultiHeadAttentionOptions;
using Module = MultiHeadAttention<double>;
using Cache = MultiHeadAttentionCache<double>;
using Gradients = MultiHeadAttentionGradients<double>;

inline const Options plain = {.d_model = 8, .num_heads = 4, .num_kv_heads = 2};

/// A module, a pending call of it, and what a further call takes; x is [2, 3, 8], keys have 5.
struct Attention {
  Witness& m;
  bool self = true;
  Path path = Path::flash;
  Module& module = m.make<Module>(plain);
  View3<double> x = m.tensor(2, 3, 8), key = m.tensor(2, 5, 8), value = m.tensor(2, 5, 8),
                dy = m.tensor(2, 3, 8);
  MultiHeadAttentionCall<double> call = {.path = path};
  Cache& cache = m.make<Cache>();
  Gradients& gradients = m.make<Gradients>(module.zero_gradients());

  void fill_cache() {
    if (self) {
      (void)module.forward(x, call, cache);
    } else {
      (void)module.forward(x, key, value, call, cache);
    }
  }
  void keep() { m.keep(module), m.keep(cache), m.keep(gradients); }
  void forward() {
    keep();
    if (self) {
      (void)module.forward(x, call, cache, m.context());
    } else {
      (void)module.forward(x, key, value, call, cache, m.context());
    }
  }
  void infer() {
    keep();
    if (self) {
      (void)module.forward(x, call, m.context());
    } else {
      (void)module.forward(x, key, value, call, m.context());
    }
  }
  void backward() {
    keep();
    (void)module.backward(dy, cache, gradients, m.context());
  }
  void backward_cross() {
    keep();
    (void)module.backward_cross(dy, cache, gradients, m.context());
  }
};

struct Spoilt {
  bool self;
  std::string error, message;
  Action<Attention&> spoil;
};

const char* const shape_of = "ShapeError";
const char* const argument_of = "ArgumentError";

/// Each with a cache that is pending, on both paths, and without a cache.
inline std::vector<Refusal> of_forward(const std::vector<Spoilt>& rules) {
  std::vector<Refusal> refusals;
  for (const Spoilt& rule : rules) {
    const std::string message = "MultiHeadAttention::forward: " + rule.message;
    for (const Path path : {Path::flash, Path::materialized}) {
      refusals.push_back({message, rule.error, [=](Witness& memory) {
                            Attention a{memory, rule.self, path};
                            a.fill_cache();
                            rule.spoil(a);
                            a.forward();
                          }});
    }
    refusals.push_back({message, rule.error, [=](Witness& memory) {
                          Attention a{memory, rule.self};
                          rule.spoil(a);
                          a.infer();
                        }});
  }
  return refusals;
}

}  // namespace headwise_tests::multi_head_attention_calls
