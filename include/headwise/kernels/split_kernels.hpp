// The kernels whose products multiply floats in pieces of bf16, by AMX: compiled only where a
// program asks for them.
#pragma once

#include <concepts>

#include "headwise/kernels/kernels.hpp"

#if HEADWISE_CONFIG_VECTOR_KERNELS
HEADWISE_REGION(HEADWISE_AMX)
#define HEADWISE_ISA amx_two_pieces
#define HEADWISE_ISA_BYTES 64
#define HEADWISE_ISA_PAIRS 4
#include "headwise/kernels/bf16.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS

#define HEADWISE_ISA amx_three_pieces
#define HEADWISE_ISA_BYTES 64
#define HEADWISE_ISA_PAIRS 5
#include "headwise/kernels/bf16.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS
HEADWISE_REGION_END
#endif

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// Numbers in two or three pieces. The processor must have AMX, which split_products() asks for;
/// where there are no vector kernels, multiply-adds.
template <std::same_as<float> T, int pieces>
requires(pieces == 2 || pieces == 3) const Kernels<T>& split_kernels() {
#if HEADWISE_CONFIG_VECTOR_KERNELS
  static const auto table = [] {
    if constexpr (pieces == 2) {
      return amx_two_pieces::kernels_with_pairs<T>();
    } else {
      return amx_three_pieces::kernels_with_pairs<T>();
    }
  }();
  return table;
#else
  return kernels_here<T>();
#endif
}

#if HEADWISE_USES_COMPILED || defined(HEADWISE_EXTERN_KERNELS)
extern template const Kernels<float>& split_kernels<float, 2>();
extern template const Kernels<float>& split_kernels<float, 3>();
#endif

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
