// What the benchmark families share: shapes, inputs, threads, counters.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "headwise/headwise.hpp"

namespace headwise::bench {

/// A multi-head attention to be timed. The one list that every family takes its shapes from.
struct BenchShape {
  Index B, L, D, H, G;
};
inline const std::vector<BenchShape>& shapes() {
  static const std::vector<BenchShape> list = {
      {1, 16, 64, 4, 4},      {1, 128, 256, 4, 4},  {4, 512, 768, 12, 12},
      {1, 2048, 768, 12, 12}, {1, 4096, 512, 8, 8}, {4, 1024, 1024, 16, 4},
  };
  return list;
}

/// Threads of every benchmark: HEADWISE_NUM_THREADS, or 1.
inline Index num_threads() {
  const char* text = std::getenv("HEADWISE_NUM_THREADS");
  char* end = nullptr;
  const long threads = text == nullptr ? 1 : std::strtol(text, &end, 10);
  if (threads < 1 || (end != nullptr && *end != '\0')) {
    raise<ArgumentError>("HEADWISE_NUM_THREADS is \"" + std::string(text) + "\", expected >= 1");
  }
  return threads;
}

inline Context context() {
  static ThreadPool pool(num_threads());
  return {.executor = pool};
}

template <class T, int R>
Tensor<T, R> random_tensor(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> tensor(shape);
  const auto key = philox_key(seed);
  for (Index n = 0; n < tensor.size(); ++n) {
    // 4,096 different numbers are enough, and quicker to make than to use.
    tensor.data()[n] =
        n < 4096 ? T(philox_normal(key, static_cast<std::uint64_t>(n))) : tensor.data()[n - 4093];
  }
  return tensor;
}

/// Runs from where it is made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// FLOP/s, and their share of the machine's peak: see peak.cpp. `seconds` is the timed loop's.
void report(benchmark::State& state, double flops_an_iteration, double seconds,
            bool single_precision);

/// The highest rate of multiply-adds that registers allow, in FLOP/s: the best of 20 tries on one
/// thread at the first call of this run, times `threads`.
double peak_flops(bool single_precision, Index threads);

/// `family/f32` or `family/f64`.
template <class T>
std::string name_of(const std::string& family) {
  return family + (sizeof(T) == 4 ? "/f32" : "/f64");
}

inline const std::vector<std::string>& attention_arguments() {
  static const std::vector<std::string> names = {"B", "L", "D", "H", "G", "causal", "threads"};
  return names;
}
inline std::vector<std::int64_t> attention_values(const BenchShape& s, bool is_causal) {
  return {s.B, s.L, s.D, s.H, s.G, is_causal, num_threads()};
}

}  // namespace headwise::bench
