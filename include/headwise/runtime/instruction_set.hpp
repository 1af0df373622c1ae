// The instruction sets that kernels are compiled for, and which of them this process uses.
#pragma once

#include <cstdlib>
#include <string_view>

#include "headwise/runtime/processor.hpp"
#include "headwise/tensor/error.hpp"

namespace headwise::inline v0_1 {

/// From the narrowest vectors to the widest.
enum class InstructionSet {
  generic,  ///< 16 bytes, without fused multiply-add: every machine
  avx2,     ///< 32 bytes: AVX2 and FMA
  avx512,   ///< 64 bytes: AVX-512 F, DQ, BW and VL
};

/// Its name, as HEADWISE_SIMD takes it.
constexpr std::string_view name_of(InstructionSet set) {
  return set == InstructionSet::avx512 ? "avx512"
         : set == InstructionSet::avx2 ? "avx2"
                                       : "generic";
}

/// The size of its vectors.
constexpr int vector_bytes(InstructionSet set) {
  return set == InstructionSet::avx512 ? 64 : set == InstructionSet::avx2 ? 32 : 16;
}

/// Whether this processor runs it.
inline bool is_supported(InstructionSet set) {
  if (set == InstructionSet::generic) return true;
#if HEADWISE_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (set == InstructionSet::avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

/// What a text chooses: null or empty the widest that this processor runs, else the one that it
/// names. Throws ArgumentError for another name, or one that this processor does not run.
inline InstructionSet choose_instruction_set(const char* text) {
  const std::string_view name = text == nullptr ? "" : text;
  for (const auto set : {InstructionSet::avx512, InstructionSet::avx2, InstructionSet::generic}) {
    if (name.empty() && is_supported(set)) return set;
    if (name != name_of(set)) continue;
    if (is_supported(set)) return set;
    raise<ArgumentError>("HEADWISE_SIMD: it is ", name,
                         ", which this processor does not run; it has: ", processor_features());
  }
  raise<ArgumentError>("HEADWISE_SIMD: it is \"", name, "\", expected generic, avx2 or avx512");
}

/// The instruction set of this process: that of the environment variable HEADWISE_SIMD, read at the
/// first call, or the widest that the processor runs. Throws ArgumentError as
/// choose_instruction_set.
inline InstructionSet instruction_set() {
  static const InstructionSet chosen = choose_instruction_set(std::getenv("HEADWISE_SIMD"));
  return chosen;
}

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Whether kernels for float and double are compiled for it here: for each, unless
/// HEADWISE_VECTOR_BYTES says for which alone.
constexpr bool is_compiled([[maybe_unused]] InstructionSet set) {
#if defined(HEADWISE_VECTOR_BYTES)
  return vector_bytes(set) == HEADWISE_VECTOR_BYTES;
#else
  return true;
#endif
}

/// The instruction set of kernels that are called here: that of the process, or the only one that
/// is compiled. Throws ArgumentError as choose_instruction_set, where the processor does not run
/// the only one, and where HEADWISE_SIMD names another.
inline InstructionSet instruction_set_here() {
#if defined(HEADWISE_VECTOR_BYTES)
  static const InstructionSet only = [] {
    using enum InstructionSet;
    constexpr InstructionSet set = is_compiled(avx512) ? avx512
                                   : is_compiled(avx2) ? avx2
                                                       : generic;
    require(is_supported(set), "HEADWISE_VECTOR_BYTES", "it is ", HEADWISE_VECTOR_BYTES, ", for ",
            name_of(set), ", which this processor does not run; it has: ", processor_features());
    const char* const text = std::getenv("HEADWISE_SIMD");
    const bool asked = text != nullptr && *text != '\0';
    require(!asked || choose_instruction_set(text) == set, "HEADWISE_SIMD", "it is ", text,
            ", expected ", name_of(set), ", the only one of a program with HEADWISE_VECTOR_BYTES ",
            HEADWISE_VECTOR_BYTES);
    return set;
  }();
  return only;
#else
  return instruction_set();
#endif
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
