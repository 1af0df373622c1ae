// The roof: multiply-adds on registers alone, with the widest vectors that the machine has.
#include <algorithm>
#include <chrono>

#include "support.hpp"

namespace headwise::bench {

using Clock = std::chrono::steady_clock;

// 12 independent chains hide the latency of 4 cycles on two units, with a reserve.
#define HEADWISE_BENCH_PEAK(name, T, bytes, isa)                                               \
  __attribute__((target(isa))) double name(int rounds) {                                       \
    typedef T Vector __attribute__((vector_size(bytes)));                                      \
    Vector sums[12], factor = Vector{} + T(0.999999), step = Vector{} + T(1e-6);               \
    for (int i = 0; i < 12; ++i) sums[i] = Vector{} + T(i);                                    \
    for (int round = 0; round < rounds; ++round) {                                             \
      _Pragma("GCC unroll 12") for (int i = 0; i < 12; ++i) sums[i] = sums[i] * factor + step; \
    }                                                                                          \
    for (int i = 1; i < 12; ++i) sums[0] = sums[0] + sums[i];                                  \
    T used = sums[0][0]; /* clang binds no reference to an element of a vector */              \
    benchmark::DoNotOptimize(used);                                                            \
    return 2.0 * 12.0 * static_cast<double>(bytes / sizeof(T)) * rounds;                       \
  }
HEADWISE_BENCH_PEAK(peak_f32_avx512, float, 64, "avx512f")
HEADWISE_BENCH_PEAK(peak_f64_avx512, double, 64, "avx512f")
HEADWISE_BENCH_PEAK(peak_f32_avx2, float, 32, "avx2,fma")
HEADWISE_BENCH_PEAK(peak_f64_avx2, double, 32, "avx2,fma")
HEADWISE_BENCH_PEAK(peak_f32_base, float, 16, "sse2")
HEADWISE_BENCH_PEAK(peak_f64_base, double, 16, "sse2")
#undef HEADWISE_BENCH_PEAK

double one_round(bool single_precision, int rounds) {
  if (__builtin_cpu_supports("avx512f")) {
    return single_precision ? peak_f32_avx512(rounds) : peak_f64_avx512(rounds);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return single_precision ? peak_f32_avx2(rounds) : peak_f64_avx2(rounds);
  }
  return single_precision ? peak_f32_base(rounds) : peak_f64_base(rounds);
}

double measure_peak(bool single_precision) {
  double best = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto begin = Clock::now();
    const double flops = one_round(single_precision, 1'000'000);
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

double peak_flops(bool single_precision, Index threads) {
  static const double single = measure_peak(true), twice = measure_peak(false);
  return (single_precision ? single : twice) * static_cast<double>(threads);
}

void report(benchmark::State& state, double flops_an_iteration, double seconds,
            bool single_precision) {
  const double peak = peak_flops(single_precision, num_threads());
  const double rate = flops_an_iteration * static_cast<double>(state.iterations()) / seconds;
  state.counters["FLOP/s"] =
      benchmark::Counter(rate, benchmark::Counter::kDefaults, benchmark::Counter::kIs1000);
  state.counters["of_peak"] = rate / peak;
}

}  // namespace headwise::bench
