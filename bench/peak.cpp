// The roofs. A thread for each of num_threads() starts at the same moment, so that what threads
// take from each other (a core that two share, the memory bus) counts.
#include "peak.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "support.hpp"

namespace headwise::bench {

namespace {

// 12 independent chains hide the latency of 4 cycles on two units, with a reserve.
#define HEADWISE_BENCH_PEAK(name, T, bytes, isa)                                               \
  __attribute__((target(isa), noinline)) double name(int rounds, T start) {                    \
    typedef T Vector __attribute__((vector_size(bytes)));                                      \
    Vector sums[12], factor = Vector{} + T(0.999999), step = Vector{} + T(1e-6);               \
    for (int i = 0; i < 12; ++i) sums[i] = Vector{} + (start + T(i));                          \
    for (int round = 0; round < rounds; ++round) {                                             \
      _Pragma("GCC unroll 12") for (int i = 0; i < 12; ++i) sums[i] = sums[i] * factor + step; \
    }                                                                                          \
    for (int i = 1; i < 12; ++i) sums[0] = sums[0] + sums[i];                                  \
    return static_cast<double>(sums[0][0]);                                                    \
  }
HEADWISE_BENCH_PEAK(chains_f32_avx512, float, 64, "avx512f")
HEADWISE_BENCH_PEAK(chains_f64_avx512, double, 64, "avx512f")
HEADWISE_BENCH_PEAK(chains_f32_avx2, float, 32, "avx2,fma")
HEADWISE_BENCH_PEAK(chains_f64_avx2, double, 32, "avx2,fma")
HEADWISE_BENCH_PEAK(chains_f32_sse2, float, 16, "sse2")
HEADWISE_BENCH_PEAK(chains_f64_sse2, double, 16, "sse2")
#undef HEADWISE_BENCH_PEAK

// Eight sums, so that loads and not additions are what it waits for.
#define HEADWISE_BENCH_READ(name, bytes, isa)                                                 \
  __attribute__((target(isa), noinline)) double name(const float* data, std::size_t blocks) { \
    typedef float Vector __attribute__((vector_size(bytes)));                                 \
    Vector sums[8] = {};                                                                      \
    for (std::size_t block = 0; block < blocks; ++block) {                                    \
      const float* from = data + block * 8 * (bytes / sizeof(float));                         \
      _Pragma("GCC unroll 8") for (std::size_t i = 0; i < 8; ++i) {                           \
        Vector x;                                                                             \
        __builtin_memcpy(&x, from + i * (bytes / sizeof(float)), sizeof x);                   \
        sums[i] = sums[i] + x;                                                                \
      }                                                                                       \
    }                                                                                         \
    for (int i = 1; i < 8; ++i) sums[0] = sums[0] + sums[i];                                  \
    return static_cast<double>(sums[0][0]);                                                   \
  }
HEADWISE_BENCH_READ(read_avx512, 64, "avx512f")
HEADWISE_BENCH_READ(read_avx2, 32, "avx2")
HEADWISE_BENCH_READ(read_sse2, 16, "sse2")
#undef HEADWISE_BENCH_READ

std::atomic<double> sink;  // what is written here was computed

Instructions widest() {
  if (supports(Instructions::avx512)) return Instructions::avx512;
  return supports(Instructions::avx2) ? Instructions::avx2 : Instructions::sse2;
}

double run_chains(Instructions set, bool single_precision, int rounds, double start) {
  const auto x = static_cast<float>(start);
  switch (set) {
    case Instructions::avx512:
      return single_precision ? chains_f32_avx512(rounds, x) : chains_f64_avx512(rounds, start);
    case Instructions::avx2:
      return single_precision ? chains_f32_avx2(rounds, x) : chains_f64_avx2(rounds, start);
    case Instructions::sse2:
      break;
  }
  return single_precision ? chains_f32_sse2(rounds, x) : chains_f64_sse2(rounds, start);
}

double run_read(const float* data, std::size_t blocks_of_512) {
  switch (widest()) {
    case Instructions::avx512:
      return read_avx512(data, blocks_of_512);
    case Instructions::avx2:
      return read_avx2(data, blocks_of_512 * 2);
    case Instructions::sse2:
      break;
  }
  return read_sse2(data, blocks_of_512 * 4);
}

/// What all threads do together, over the time from the first that begins to the last that ends:
/// threads that take turns on a core are no faster than one. The best attempt.
double best_rate(Index threads, int attempts,
                 const std::function<double(Index thread)>& work_done) {
  struct Part {
    double begin, end, done;
  };
  std::vector<Part> parts(static_cast<std::size_t>(threads));
  std::barrier gate(threads);
  const Stopwatch watch;
  double best = 0;
  const auto serve = [&](Index thread) {
    Part& mine = parts[static_cast<std::size_t>(thread)];
    for (int attempt = 0; attempt < attempts; ++attempt) {
      gate.arrive_and_wait();
      mine.begin = watch.seconds();
      mine.done = work_done(thread);
      mine.end = watch.seconds();
      gate.arrive_and_wait();
      if (thread != 0) continue;
      Part all{mine.begin, mine.end, 0};
      for (const Part& part : parts) {
        all.begin = std::min(all.begin, part.begin);
        all.end = std::max(all.end, part.end);
        all.done += part.done;
      }
      best = std::max(best, all.done / (all.end - all.begin));
    }
  };
  std::vector<std::jthread> others;
  for (Index thread = 1; thread < threads; ++thread) others.emplace_back(serve, thread);
  serve(0);
  return best;
}

std::array<double, 2>& highest() {
  static std::array<double, 2> rates = {0, 0};  // of double, of float
  return rates;
}

}  // namespace

bool supports(Instructions set) {
  switch (set) {
    case Instructions::avx512:
      return __builtin_cpu_supports("avx512f") != 0;
    case Instructions::avx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case Instructions::sse2:
      break;
  }
  return true;
}

double register_flops(Instructions set, bool single_precision, Index threads, int attempts) {
  const int bytes = set == Instructions::avx512 ? 64 : set == Instructions::avx2 ? 32 : 16;
  const int lanes = bytes / (single_precision ? 4 : 8);
  constexpr int rounds = 500'000;
  return best_rate(threads, attempts, [&](Index thread) {
    sink = run_chains(set, single_precision, rounds, static_cast<double>(thread));
    return 2.0 * 12.0 * lanes * rounds;
  });
}

double measure_peak(bool single_precision) {
  const double rate = register_flops(widest(), single_precision, num_threads(), 8);
  note_flops(single_precision, rate);
  return rate;
}

double highest_flops(bool single_precision) {
  if (highest()[single_precision] == 0) measure_peak(single_precision);
  return highest()[single_precision];
}

void note_flops(bool single_precision, double flops_per_second) {
  highest()[single_precision] = std::max(highest()[single_precision], flops_per_second);
}

double read_bandwidth(double bytes) {
  static std::map<std::size_t, double> measured;  // by blocks of 512 bytes a thread
  const Index threads = num_threads();
  const auto blocks = static_cast<std::size_t>(
      std::clamp(bytes / 512.0 / static_cast<double>(threads), 1.0, 0x1p20));  // up to 512 MiB
  const auto known = measured.find(blocks);
  if (known != measured.end()) return known->second;
  std::vector<std::vector<float>> data(static_cast<std::size_t>(threads));
  for (auto& part : data) part.assign(blocks * 128 + 16, 1.0f);
  const auto passes = std::max<std::size_t>(1, 65536 / blocks);  // at least 32 MiB a thread
  const double rate = best_rate(threads, 4, [&](Index thread) {
    const float* part = data[static_cast<std::size_t>(thread)].data();
    const auto skew = reinterpret_cast<std::uintptr_t>(part) % 64 / sizeof(float);
    for (std::size_t pass = 0; pass < passes; ++pass) {
      sink = run_read(part + (16 - skew) % 16, blocks);
      asm volatile("" ::: "memory");  // each pass reads anew
    }
    return static_cast<double>(passes) * static_cast<double>(blocks) * 512.0;
  });
  measured[blocks] = rate;
  return rate;
}

}  // namespace headwise::bench
