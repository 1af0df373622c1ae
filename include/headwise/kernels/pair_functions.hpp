// What a user says of a pair, a score function or a mask function, over runs of pairs: compiled in
// the user's program once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "headwise/runtime/instruction_set.hpp"
#include "headwise/score/score_function.hpp"
#include "headwise/tensor/dual.hpp"

#define HEADWISE_ISA generic
#include "headwise/kernels/pair_functions.inc"
#undef HEADWISE_ISA

#if HEADWISE_X86
HEADWISE_REGION(HEADWISE_AVX2)
#define HEADWISE_ISA avx2
#include "headwise/kernels/pair_functions.inc"
#undef HEADWISE_ISA
HEADWISE_REGION_END

HEADWISE_REGION(HEADWISE_AVX512)
#define HEADWISE_ISA avx512
#include "headwise/kernels/pair_functions.inc"
#undef HEADWISE_ISA
HEADWISE_REGION_END
#endif
