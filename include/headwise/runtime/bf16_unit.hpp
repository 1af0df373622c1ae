// What multiplies numbers of bf16 on this processor.
#pragma once

#include <string_view>

#include "headwise/runtime/instruction_set.hpp"

#if HEADWISE_X86 && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headwise::inline v0_1 {

/// From the slowest to the fastest, as far as processors are known that have them.
enum class Bf16Unit {
  multiply_add,  ///< multiply-adds of float, on every machine: slower than products of float
  avx512,        ///< the dot products of AVX512_BF16
  amx,           ///< the tiles of AMX, beside AVX-512
};

/// Its name.
constexpr std::string_view name_of(Bf16Unit unit) {
  return unit == Bf16Unit::amx ? "amx" : unit == Bf16Unit::avx512 ? "avx512_bf16" : "multiply_add";
}

namespace detail {

/// Linux lets a process use tiles once it has asked: their 8 KiB then belong to what is kept of a
/// thread. True for granted, now or before.
inline bool ask_for_tiles() {
#if HEADWISE_X86 && defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long ask_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;           // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace detail

/// Whether this process can use it. Asks the operating system for the tiles of AMX.
inline bool is_supported(Bf16Unit unit) {
  if (unit == Bf16Unit::multiply_add) return true;
#if HEADWISE_X86
  if (!is_supported(InstructionSet::avx512)) return false;
  const detail::Bf16Features features;
  if (!features.avx512) return false;
  return unit == Bf16Unit::avx512 || (features.amx && detail::ask_for_tiles());
#else
  return false;
#endif
}

/// The fastest that this process can use beside its instruction set.
inline Bf16Unit bf16_unit() {
  static const Bf16Unit chosen = [] {
    if (instruction_set() != InstructionSet::avx512) return Bf16Unit::multiply_add;
    if (is_supported(Bf16Unit::amx)) return Bf16Unit::amx;
    return is_supported(Bf16Unit::avx512) ? Bf16Unit::avx512 : Bf16Unit::multiply_add;
  }();
  return chosen;
}

}  // namespace headwise::inline v0_1
