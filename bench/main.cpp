// headwise_bench: rates of products, attention, the module and what stands around them, beside the
// machine's peak.
//   headwise_bench --benchmark_filter=mha/forward/f32
//   headwise_bench --turns --seconds=0.3     answers requests on its input: see turns.hpp
//   headwise_bench --check                   times nothing: is every family right at odd sizes?
// HEADWISE_NUM_THREADS sets the threads. Names and arguments: family/type/B:4/L:512/...
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "prepared.hpp"
#include "turns.hpp"

namespace headwise::bench {

namespace {

void time_case(benchmark::State& state, const Family& family, const std::vector<Index>& values) {
  Prepared& prepared = prepare(family, values);
  const Case& one = prepared.one;
  const Context with;
  const Stopwatch watch;
  for (auto _ : state) {
    one.run(with);
    benchmark::ClobberMemory();
  }
  const double seconds = watch.seconds() / static_cast<double>(state.iterations());
  // Google Benchmark calls again with more iterations.
  prepared.checked = prepared.checked || one.right();
  if (!prepared.checked) state.SkipWithError("the result is wrong");

  const bool single = prepared.single_precision();
  measure_peak(single);
  if (family.name.starts_with("gemm")) note_flops(single, one.flops / seconds);
  using benchmark::Counter;
  state.counters["FLOP/s"] = Counter(one.flops / seconds);
  state.counters["of_peak"] = one.flops / seconds / highest_flops(single);
  state.counters["B/s"] = Counter(one.bytes / seconds, Counter::kDefaults, Counter::kIs1024);
  state.counters["of_bandwidth"] = one.bytes / seconds / read_bandwidth(one.bytes);
  state.counters["peak_bytes"] = Counter(prepared.peak_bytes, Counter::kDefaults, Counter::kIs1024);
  if (one.tokens != 0) state.counters["tokens/s"] = Counter(one.tokens / seconds);
}

void register_families() {
  for (const Family& family : families()) {
    for (const std::vector<Index>& values : family.values) {
      std::vector<std::string> names = family.arguments;
      std::vector<std::int64_t> numbers(values.begin(), values.end());
      names.emplace_back("threads");
      numbers.push_back(num_threads());
      benchmark::RegisterBenchmark(
          family.name.c_str(),
          [&family, &values](benchmark::State& state) { time_case(state, family, values); })
          ->ArgNames(names)
          ->Args(numbers)
          ->UseRealTime();
    }
  }
}

void time_peak(benchmark::State& state, Instructions set, bool single_precision) {
  double best = 0;
  for (auto _ : state) {
    best = std::max(best, register_flops(set, single_precision, num_threads(), 1));
  }
  note_flops(single_precision, best);
  state.counters["FLOP/s"] = benchmark::Counter(best);
}

void time_bandwidth(benchmark::State& state) {
  double rate = 0;
  for (auto _ : state) rate = read_bandwidth(static_cast<double>(state.range(0)));
  state.counters["B/s"] =
      benchmark::Counter(rate, benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
}

void register_peaks() {
  const std::pair<const char*, Instructions> sets[] = {
      {"sse2", Instructions::sse2}, {"avx2", Instructions::avx2}, {"avx512", Instructions::avx512}};
  for (const auto& [set_name, instructions] : sets) {
    for (const bool single : {true, false}) {
      const Instructions set = instructions;
      if (!supports(set)) continue;
      std::string name = "peak/registers/";
      name.append(single ? "f32/" : "f64/").append(set_name);
      benchmark::RegisterBenchmark(
          name.c_str(), [set, single](benchmark::State& state) { time_peak(state, set, single); })
          ->ArgName("threads")
          ->Arg(num_threads())
          ->UseRealTime();
    }
  }
  auto* reading = benchmark::RegisterBenchmark("peak/read", time_bandwidth);
  reading->ArgNames({"bytes", "threads"})->UseRealTime()->Iterations(1);
  for (std::int64_t bytes = 1 << 14; bytes <= 1 << 28; bytes *= 4) {
    reading->Args({bytes, num_threads()});
  }
}

void run_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) std::exit(1);
  benchmark::AddCustomContext("headwise_version", std::to_string(HEADWISE_VERSION_MAJOR) + "." +
                                                      std::to_string(HEADWISE_VERSION_MINOR) + "." +
                                                      std::to_string(HEADWISE_VERSION_PATCH));
  benchmark::AddCustomContext("threads", std::to_string(num_threads()));
  benchmark::AddCustomContext("processor_features", processor_features());
  benchmark::AddCustomContext("peak_f32_GFLOP/s", std::to_string(measure_peak(true) * 1e-9));
  benchmark::AddCustomContext("peak_f64_GFLOP/s", std::to_string(measure_peak(false) * 1e-9));
  register_peaks();
  register_families();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

/// Names the families whose results are wrong at sizes that no tile fits; how many there are.
int check_families() {
  int wrong = 0;
  for (const Family& family : families()) {
    const std::vector<std::vector<Index>> odd_sizes = {
        {17}, {5, 19}, {33, 17, 29}, {2, 19, 3, 10}, {2, 157, 52, 4, 2}, {2, 37, 48, 4, 2, 1}};
    for (const std::vector<Index>& values : odd_sizes) {
      if (values.size() != family.arguments.size()) continue;
      const bool right = prepare(family, values).one.right();
      std::printf("%s %s\n", right ? "right" : "WRONG", family.name.c_str());
      if (!right) ++wrong;
    }
  }
  return wrong;
}

}  // namespace

}  // namespace headwise::bench

int main(int argc, char** argv) try {
  using namespace headwise::bench;
  if (argc > 1 && std::strcmp(argv[1], "--turns") == 0) {
    double seconds = 0.3;
    const std::string option = "--seconds=";
    for (int n = 2; n < argc; ++n) {
      if (std::string(argv[n]).starts_with(option)) seconds = std::stod(argv[n] + option.size());
    }
    take_turns(std::cin, std::cout, seconds);
  } else if (argc > 1 && std::strcmp(argv[1], "--check") == 0) {
    return check_families() == 0 ? 0 : 1;
  } else {
    run_benchmarks(argc, argv);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "headwise_bench: %s\n", error.what());
  return 1;
}
