// What the processor that runs the program can do, and how it is told to wait.
#pragma once

#include <string>

#include "headwise/tensor/config.hpp"

namespace headwise::inline v0_1 {

/// The instruction sets that matter to kernels, by their usual names: "sse2 avx avx2 fma avx512f".
/// Empty on other machines than x86-64.
inline std::string processor_features() {
  std::string names;
#if HEADWISE_X86
  const auto add = [&](bool has, const char* name) {
    if (!has) return;
    if (!names.empty()) names += ' ';
    names += name;
  };
  add(__builtin_cpu_supports("sse2"), "sse2");
  add(__builtin_cpu_supports("avx"), "avx");
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
#endif
  return names;
}

namespace detail {

/// Tells the processor that a loop only waits.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace detail

}  // namespace headwise::inline v0_1
