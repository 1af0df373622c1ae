// Scaled dot-product attention alone, on both paths; and its growth with L.
#include "support.hpp"

namespace headwise::bench {

template <class T>
struct Problem {
  Tensor<T, 4> q, k, v, d_o;
  AttentionOptions<T> options;
  Tensor<T, 4> o, weights, dq, dk, dv;
  Tensor<T, 4> lse;
  AttentionShape shape;

  Problem(const benchmark::State& state, bool keep_weights) {
    const Index B = state.range(0), L = state.range(1), D = state.range(2), H = state.range(3),
                G = state.range(4), d = D / H;
    q = random_tensor<T>(Shape{B, H, L, d}, 1);
    k = random_tensor<T>(Shape{B, G, L, d}, 2);
    v = random_tensor<T>(Shape{B, G, L, d}, 3);
    d_o = random_tensor<T>(Shape{B, H, L, d}, 4);
    o = dq = Tensor<T, 4>(q.shape());
    dk = dv = Tensor<T, 4>(k.shape());
    lse = Tensor<T, 4>({B, H, L, 2});
    if (keep_weights) weights = Tensor<T, 4>({B, H, L, L});
    if (state.range(5) != 0) options.mask.add(causal);
    shape = {.batch_size = B,
             .seq_len = L,
             .d_model = D,
             .num_heads = H,
             .num_kv_heads = G,
             .causal = state.range(5) != 0};
  }

  void forward(Path path) {
    if (path == Path::flash) {
      flash_attention_forward(q, k, v, options, o, lse, context());
    } else {
      attention_forward(q, k, v, options, weights, o, context());
    }
  }
  void backward(Path path) {
    if (path == Path::flash) {
      flash_attention_backward(d_o, {q, k, v}, o, lse, options, {dq, dk, dv}, context());
    } else {
      attention_backward(d_o, {q, k, v}, weights, options, {dq, dk, dv}, context());
    }
  }

  /// The last head of the last batch element against the readable path.
  bool right() {
    const Index b = q.extent(0) - 1, h = q.extent(1) - 1, g = k.extent(1) - 1, L = q.extent(2);
    const auto one = [](const Tensor<T, 4>& x, Index at_b, Index at_h) {
      return slice(slice(x, 0, at_b, 1), 1, at_h, 1);
    };
    Tensor<T, 4> expected({1, 1, L, v.extent(3)}), p({1, 1, L, L});
    attention_forward(one(q, b, h), one(k, b, g), one(v, b, g), options, p, expected);
    return bool(close_to(one(o, b, h), In<T, 4>(expected), 1e-4));
  }

  /// FLOPs of matrix products, as rates of attention are usually given.
  double flops(bool with_backward, Path path) const {
    const auto forward = count_flops(shape);
    const auto backward = count_backward_flops(shape, path);
    return static_cast<double>(forward.scores + forward.context +
                               (with_backward ? backward.scores + backward.context : 0));
  }
};

template <class T, Path path, bool with_backward>
void sdpa(benchmark::State& state) {
  Problem<T> problem(state, path == Path::materialized);
  const Stopwatch watch;
  for (auto _ : state) {
    problem.forward(path);
    if (with_backward) problem.backward(path);
    benchmark::DoNotOptimize(problem.o.data());
    benchmark::ClobberMemory();
  }
  const double seconds = watch.seconds();
  if (!problem.right()) state.SkipWithError("the last head is wrong");
  report(state, problem.flops(with_backward, path), seconds, sizeof(T) == 4);
  state.SetComplexityN(state.range(1));
}

template <class T, Path path, bool with_backward>
void register_sdpa(const std::string& family) {
  for (const BenchShape& shape : shapes()) {
    if (path == Path::materialized && shape.L > 2048) continue;
    for (const bool is_causal : {false, true}) {
      benchmark::RegisterBenchmark(name_of<T>(family).c_str(), sdpa<T, path, with_backward>)
          ->ArgNames(attention_arguments())
          ->Args(attention_values(shape, is_causal))
          ->UseRealTime();
    }
  }
}

void register_sdpa_family() {
  register_sdpa<float, Path::flash, false>("sdpa/forward");
  register_sdpa<float, Path::flash, true>("sdpa/forward_backward");
  register_sdpa<double, Path::flash, false>("sdpa/forward");
  register_sdpa<double, Path::flash, true>("sdpa/forward_backward");
  register_sdpa<float, Path::materialized, false>("sdpa_weights_kept/forward");
  register_sdpa<float, Path::materialized, true>("sdpa_weights_kept/forward_backward");
  // The core grows like L^2: Google Benchmark fits the exponent's factor and prints its error.
  auto* growth = benchmark::RegisterBenchmark(name_of<float>("sdpa/growth").c_str(),
                                              sdpa<float, Path::flash, false>);
  growth->ArgNames(attention_arguments())->UseRealTime()->Complexity(benchmark::oNSquared);
  for (Index L = 128; L <= 2048; L *= 2) {
    growth->Args(attention_values({1, L, 256, 4, 4}, false));
  }
}

}  // namespace headwise::bench
