// Everything that a forward and a backward of MultiHeadAttention give, as bits, to be compared
// between executors.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/tensor/philox.hpp"
#include "support/catch.hpp"
#include "support/module_call.hpp"

namespace headwise_tests {

template <class T>
class ModuleRun {
 public:
  ModuleRun() {
    for (Index n = 0; n < x_.size(); ++n) {
      x_.data()[n] = static_cast<T>(philox_normal({1, 0}, static_cast<std::uint64_t>(n)));
      dy_.data()[n] = static_cast<T>(philox_normal({2, 0}, static_cast<std::uint64_t>(n)));
    }
  }

  /// y, dx and every gradient, one behind the other.
  std::string bits(Path path, const Context& context = {}) const {
    std::string all;
    const auto add = [&](const auto& tensor) {
      const auto x = contiguous(tensor);
      all.append(reinterpret_cast<const char*>(x.data()),
                 static_cast<std::size_t>(x.size()) * sizeof(T));
    };
    auto call = call_of<T>(path, {causal});
    call.weight_dropout = {.rate = 0.1, .seed = 4};
    MultiHeadAttentionCache<T> cache;
    auto gradients = module_.zero_gradients();
    add(In<T, 3>(module_.forward(x_, call, cache, context)));
    add(In<T, 3>(module_.backward(dy_, cache, gradients, context)));
    gradients.for_each(
        [&](const std::string&, auto view) { add(In<T, decltype(view)::rank>(view)); });
    return all;
  }

 private:
  MultiHeadAttention<T> module_{{.d_model = 24,
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .q_bias = true,
                                 .v_bias = true,
                                 .layer_norm = true,
                                 .seed = 3}};
  Tensor3<T> x_{Shape{3, 70, 24}}, dy_{Shape{3, 70, 24}};
};

/// The same bits on both paths, float and double, as the calling thread alone computes.
inline void check_same_bits(const Context& context) {
  SerialExecutor serial;
  for (const Path path : {Path::flash, Path::materialized}) {
    static const ModuleRun<float> single;
    static const ModuleRun<double> twice;
    CHECK(single.bits(path, context) == single.bits(path, {.executor = serial}));
    CHECK(twice.bits(path, context) == twice.bits(path, {.executor = serial}));
  }
}

}  // namespace headwise_tests
