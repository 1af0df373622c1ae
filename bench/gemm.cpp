// Matrix products as the linear layer runs them: y = x w, and x^T dy.
#include "support.hpp"

namespace headwise::bench {

/// N rows, I in, O out.
template <class T>
void gemm_forward(benchmark::State& state) {
  const Index N = state.range(0), I = state.range(1), O = state.range(2);
  const auto x = random_tensor<T>(Shape{N, I}, 1), w = random_tensor<T>(Shape{I, O}, 2);
  Tensor<T, 2> y({N, O});
  const Stopwatch watch;
  for (auto _ : state) {
    linear_forward(x, w, {}, y, context());
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  const double seconds = watch.seconds();
  const EigenMatrix<T> expected = eigen_map(slice(x, 0, 0, 1)) * eigen_map(w);
  if (!close_to(In<T, 2>(slice(y, 0, 0, 1)), from_eigen(expected), 1e-4)) {
    state.SkipWithError("the first row is wrong");
  }
  report(state, 2.0 * static_cast<double>(N * I * O), seconds, sizeof(T) == 4);
}

/// The rival: Eigen's product of the same matrices.
template <class T>
void gemm_eigen(benchmark::State& state) {
  const Index N = state.range(0), I = state.range(1), O = state.range(2);
  const auto x = random_tensor<T>(Shape{N, I}, 1), w = random_tensor<T>(Shape{I, O}, 2);
  const EigenMatrix<T> a = eigen_map(x), b = eigen_map(w);
  EigenMatrix<T> c(N, O);
  const Stopwatch watch;
  for (auto _ : state) {
    c.noalias() = a * b;
    benchmark::DoNotOptimize(c.data());
    benchmark::ClobberMemory();
  }
  const double seconds = watch.seconds();
  report(state, 2.0 * static_cast<double>(N * I * O), seconds, sizeof(T) == 4);
}

template <class T>
void gemm_weight_gradient(benchmark::State& state) {
  const Index N = state.range(0), I = state.range(1), O = state.range(2);
  const auto x = random_tensor<T>(Shape{N, I}, 1), dy = random_tensor<T>(Shape{N, O}, 2);
  const Tensor<T, 2> w({I, O});
  Tensor<T, 2> dw({I, O});
  const Stopwatch watch;
  for (auto _ : state) {
    linear_backward(In<T, 2>(dy), x, w, {}, dw, {}, context());
    benchmark::DoNotOptimize(dw.data());
    benchmark::ClobberMemory();
  }
  const double seconds = watch.seconds();
  Tensor<T, 2> once({I, O});
  linear_backward(In<T, 2>(dy), x, w, {}, once, {}, context());
  const EigenMatrix<T> expected = eigen_map(slice(transpose(x, 0, 1), 0, 0, 1)) * eigen_map(dy);
  if (!close_to(In<T, 2>(slice(once, 0, 0, 1)), from_eigen(expected), 1e-4)) {
    state.SkipWithError("the first row is wrong");
  }
  report(state, 2.0 * static_cast<double>(N * I * O), seconds, sizeof(T) == 4);
}

template <class T>
void register_gemm() {
  for (const auto& [N, I, O] :
       {std::array<Index, 3>{2048, 768, 2304}, {2048, 768, 768}, {128, 256, 256}, {64, 64, 64}}) {
    for (auto* one :
         {benchmark::RegisterBenchmark(name_of<T>("gemm/forward").c_str(), gemm_forward<T>),
          benchmark::RegisterBenchmark(name_of<T>("gemm/eigen").c_str(), gemm_eigen<T>),
          benchmark::RegisterBenchmark(name_of<T>("gemm/weight_gradient").c_str(),
                                       gemm_weight_gradient<T>)}) {
      one->ArgNames({"N", "I", "O", "threads"})->Args({N, I, O, num_threads()})->UseRealTime();
    }
  }
}

void register_gemm_family() {
  register_gemm<float>();
  register_gemm<double>();
}

}  // namespace headwise::bench
