// The kernels whose products round their factors to bf16 and sum in float: compiled only where a
// program asks for them.
#pragma once

#include "headwise/kernels/kernels.hpp"
#include "headwise/runtime/bf16_unit.hpp"

#define HEADWISE_ISA generic_bf16
#define HEADWISE_ISA_BYTES 16
#define HEADWISE_ISA_PAIRS 1
#include "headwise/kernels/bf16.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS

#if HEADWISE_CONFIG_VECTOR_KERNELS
HEADWISE_REGION(HEADWISE_AVX2)
#define HEADWISE_ISA avx2_bf16
#define HEADWISE_ISA_BYTES 32
#define HEADWISE_ISA_PAIRS 1
#include "headwise/kernels/bf16.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS
HEADWISE_REGION_END

HEADWISE_REGION(HEADWISE_AVX512_BF16)
#define HEADWISE_ISA avx512_bf16
#define HEADWISE_ISA_BYTES 64
#define HEADWISE_ISA_PAIRS 2
#include "headwise/kernels/bf16.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS
HEADWISE_REGION_END

HEADWISE_REGION(HEADWISE_AMX)
#define HEADWISE_ISA amx_bf16
#define HEADWISE_ISA_BYTES 64
#define HEADWISE_ISA_PAIRS 3
#include "headwise/kernels/bf16.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS
HEADWISE_REGION_END
#endif

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// Those of a unit that the processor has; of multiply_add, by the vectors of an instruction set.
template <std::same_as<float> T>
const Kernels<T>& bf16_kernels_of([[maybe_unused]] Bf16Unit unit,
                                  [[maybe_unused]] InstructionSet set) {
#if HEADWISE_CONFIG_VECTOR_KERNELS
  if (unit == Bf16Unit::amx) {
    static const auto table = amx_bf16::kernels_with_pairs<T>();
    return table;
  }
  if (unit == Bf16Unit::avx512) {
    static const auto table = avx512_bf16::kernels_with_pairs<T>();
    return table;
  }
  if (set != InstructionSet::generic) {
    static const auto table = avx2_bf16::kernels_with_pairs<T>();
    return table;
  }
#endif
  static const auto table = generic_bf16::kernels_with_pairs<T>();
  return table;
}

#if HEADWISE_USES_COMPILED || defined(HEADWISE_EXTERN_KERNELS)
extern template const Kernels<float>& bf16_kernels_of<float>(Bf16Unit, InstructionSet);
#endif

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
