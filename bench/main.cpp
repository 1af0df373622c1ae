// headwise_bench: rates of products, attention and the module, beside the machine's peak.
//   headwise_bench --benchmark_filter=mha/forward/f32
// HEADWISE_NUM_THREADS sets the threads. Names and arguments: family/type/B:4/L:512/...
#include <cstdio>
#include <exception>

#include "support.hpp"

namespace headwise::bench {
void register_gemm_family();
void register_sdpa_family();
void register_mha_family();
}  // namespace headwise::bench

int main(int argc, char** argv) try {
  using namespace headwise::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("headwise_version", std::to_string(HEADWISE_VERSION_MAJOR) + "." +
                                                      std::to_string(HEADWISE_VERSION_MINOR) + "." +
                                                      std::to_string(HEADWISE_VERSION_PATCH));
  benchmark::AddCustomContext("threads", std::to_string(num_threads()));
  benchmark::AddCustomContext("peak_f32_GFLOP/s",
                              std::to_string(peak_flops(true, num_threads()) * 1e-9));
  benchmark::AddCustomContext("peak_f64_GFLOP/s",
                              std::to_string(peak_flops(false, num_threads()) * 1e-9));
  register_gemm_family();
  register_sdpa_family();
  register_mha_family();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "headwise_bench: %s\n", error.what());
  return 1;
}
