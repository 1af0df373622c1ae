// The whole module: projections with biases, attention, output projection.
#include "support.hpp"

namespace headwise::bench {

template <class T, bool with_backward>
void mha(benchmark::State& state) {
  const Index B = state.range(0), L = state.range(1), D = state.range(2), H = state.range(3),
              G = state.range(4);
  const MultiHeadAttention<T> module({.d_model = D,
                                      .num_heads = H,
                                      .num_kv_heads = G,
                                      .q_bias = true,
                                      .k_bias = true,
                                      .v_bias = true});
  const auto x = random_tensor<T>(Shape{B, L, D}, 1), dy = random_tensor<T>(Shape{B, L, D}, 2);
  MultiHeadAttentionCall<T> call;
  if (state.range(5) != 0) call.mask.add(causal);
  auto gradients = module.zero_gradients();
  const Stopwatch watch;
  for (auto _ : state) {
    if constexpr (with_backward) {
      MultiHeadAttentionCache<T> cache;
      benchmark::DoNotOptimize(module.forward(x, call, cache, context()).data());
      benchmark::DoNotOptimize(module.backward(dy, cache, gradients, context()).data());
    } else {
      benchmark::DoNotOptimize(module.forward(x, call, context()).data());
    }
    benchmark::ClobberMemory();
  }
  const double seconds = watch.seconds();
  // The first sequence alone on the readable path gives the same.
  const In<T, 3> first = slice(x, 0, 0, 1);
  MultiHeadAttentionCall<T> readable = call;
  readable.path = Path::materialized;
  if (L <= 1024 && !close_to(module.forward(first, call), module.forward(first, readable), 1e-4)) {
    state.SkipWithError("the first sequence is wrong");
  }
  const AttentionShape shape = attention_shape(module.options(), call, B, L);
  const auto products = count_flops(shape).products() +
                        (with_backward ? count_backward_flops(shape, Path::flash).products() : 0);
  report(state, static_cast<double>(products), seconds, sizeof(T) == 4);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(B * L), benchmark::Counter::kIsIterationInvariantRate);
}

template <class T, bool with_backward>
void register_mha(const std::string& family) {
  for (const BenchShape& shape : shapes()) {
    for (const bool is_causal : {false, true}) {
      benchmark::RegisterBenchmark(name_of<T>(family).c_str(), mha<T, with_backward>)
          ->ArgNames(attention_arguments())
          ->Args(attention_values(shape, is_causal))
          ->UseRealTime();
    }
  }
}

void register_mha_family() {
  register_mha<float, false>("mha/forward");
  register_mha<float, true>("mha/forward_backward");
  register_mha<double, false>("mha/forward");
  register_mha<double, true>("mha/forward_backward");
}

}  // namespace headwise::bench
