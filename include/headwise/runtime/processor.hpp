// What the processor that runs the program can do, and how it is told to wait.
#pragma once

#include <string>

#include "headwise/tensor/config.hpp"

#if HEADWISE_X86
#include <cpuid.h>
#endif

namespace headwise::inline v0_1 {

#if HEADWISE_X86
namespace detail {

/// What the processor has for numbers of bf16: the compilers' own question knows no AMX.
struct Bf16Features {
  bool avx512 = false, amx = false;

  Bf16Features() {
    constexpr unsigned amx_bits = 1u << 22 | 1u << 24;  // AMX-BF16, AMX-TILE
    constexpr unsigned avx512_bit = 1u << 5;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return;
    amx = (edx & amx_bits) == amx_bits;
    if (eax == 0 || __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) return;
    avx512 = (eax & avx512_bit) != 0;
  }
};

}  // namespace detail
#endif

/// The instruction sets that matter to kernels, by their usual names: "sse2 avx avx2 fma avx512f
/// avx512_bf16 amx_bf16".
/// Empty on other machines than x86-64.
inline std::string processor_features() {
  std::string names;
#if HEADWISE_X86
  const detail::Bf16Features bf16;
  const struct {
    bool has;
    const char* name;
  } features[] = {{__builtin_cpu_supports("sse2") != 0, "sse2"},
                  {__builtin_cpu_supports("avx") != 0, "avx"},
                  {__builtin_cpu_supports("avx2") != 0, "avx2"},
                  {__builtin_cpu_supports("fma") != 0, "fma"},
                  {__builtin_cpu_supports("avx512f") != 0, "avx512f"},
                  {bf16.avx512, "avx512_bf16"},
                  {bf16.amx, "amx_bf16"}};
  for (const auto& [has, name] : features) {
    if (!has) continue;
    if (!names.empty()) names += ' ';
    names += name;
  }
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
