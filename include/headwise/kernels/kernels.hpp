// The kernels: matrix products, rows and attention of one head, compiled once for each instruction
// set and chosen when the program runs. They see pointers and strides; they check, allocate and
// throw nothing and know no threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "headwise/kernels/arguments.hpp"
#include "headwise/kernels/column_sums.hpp"
#include "headwise/kernels/decode.hpp"
#include "headwise/kernels/layer_norm.hpp"
#include "headwise/kernels/model_kernels.hpp"
#include "headwise/kernels/rms_norm.hpp"
#include "headwise/kernels/softmax.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/runtime/instruction_set.hpp"
#include "headwise/runtime/workspace.hpp"
#include "headwise/simd/constants.hpp"

// Where another translation unit compiles the kernels for float and double, with the same flags,
// only the generic ones are read here, for other types.
#if HEADWISE_USES_COMPILED || defined(HEADWISE_EXTERN_KERNELS)
#define HEADWISE_CONFIG_VECTOR_KERNELS 0
#else
#define HEADWISE_CONFIG_VECTOR_KERNELS HEADWISE_X86
#endif
#if defined(HEADWISE_VECTOR_BYTES)
#define HEADWISE_CONFIG_AVX2_KERNELS (HEADWISE_CONFIG_VECTOR_KERNELS && HEADWISE_VECTOR_BYTES == 32)
#define HEADWISE_CONFIG_AVX512_KERNELS \
  (HEADWISE_CONFIG_VECTOR_KERNELS && HEADWISE_VECTOR_BYTES == 64)
#else
#define HEADWISE_CONFIG_AVX2_KERNELS HEADWISE_CONFIG_VECTOR_KERNELS
#define HEADWISE_CONFIG_AVX512_KERNELS HEADWISE_CONFIG_VECTOR_KERNELS
#endif

#if HEADWISE_CONFIG_VECTOR_KERNELS
#include <immintrin.h>
#endif

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// The kernels of one instruction set for T. What each does and takes is said where it is defined:
/// kernels/<file>.inc.
template <Scalar T>
struct Kernels {
  InstructionSet instruction_set;
  Index lanes;             // of a vector
  Index forward_queries;   // most of a task of flash_forward
  Index forward_keys;      // of its blocks of keys
  Index backward_queries;  // of a tile of flash_backward_tile
  Index backward_keys;     // of a block of keys
  Index columns;           // of a panel: products are cut in multiples of it
  Index inner;             // of a chain: products of longer rows are sums of chains of so many

  bool (*all_finite)(const Matrix<const T>& x, Index rows, Index columns);

  // gemm.inc
  Index (*gemm_scratch)(const Extents& size);
  void (*gemm)(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c,
               const Extents& size, const Epilogue<T>& epilogue, T* scratch);
  std::int64_t (*executed_gemm_flops)(const Extents& size);

  // column_sums.inc, layer_norm.inc, rms_norm.inc, rotary.inc, softmax.inc and dropout.inc, each
  // over a part of the rows or, where sums run down them, of the columns
  void (*add_rows)(const Matrix<const T>& x, Index rows, Index begin, Index end, Row<T> to);
  void (*layer_norm_rows)(const LayerNormRows<T>& of, Index begin, Index end);
  void (*layer_norm_backward_rows)(const LayerNormBackwardRows<T>& of, Index begin, Index end);
  void (*layer_norm_columns)(const LayerNormBackwardRows<T>& of, Index begin, Index end);
  void (*rms_norm_rows)(const LayerNormRows<T>& of, Index begin, Index end);
  void (*rms_norm_backward_rows)(const LayerNormBackwardRows<T>& of, Index begin, Index end);
  void (*rms_norm_columns)(const LayerNormBackwardRows<T>& of, Index begin, Index end);
  void (*rotate_rows)(const RotaryRows<T>& of, const Matrix<const T>& x, const Matrix<T>& y,
                      Index begin, Index end);
  void (*softmax_rows)(const Matrix<const T>& x, const Matrix<T>& p, Index N, Index begin,
                       Index end);
  void (*softmax_backward_rows)(const Matrix<const T>& dp, const Matrix<const T>& p,
                                const Matrix<T>& dx, Index N, Index begin, Index end);
  void (*drop_rows)(const DropoutMask& mask, const Matrix<const T>& x, const Matrix<T>& y, Index N,
                    Index begin, Index end);

  // attention_head.inc
  Index (*attention_forward_scratch)(Index L, Index S, Index d, Index dv, bool dropout);
  Index (*attention_backward_scratch)(Index L, Index S, Index d, Index dv, bool dropout,
                                      bool scores);
  void (*score_head)(const AttentionHead<T>& head, const Matrix<T>& scores, T* scratch);
  void (*attention_head_forward)(const AttentionHead<T>& head, const Matrix<T>& weights,
                                 const Matrix<T>& o, Scratch<T> memory);
  void (*attention_head_backward)(const AttentionHead<T>& head, const Matrix<const T>& d_o,
                                  const Matrix<const T>& weights, const HeadGradients<T>& to,
                                  Scratch<T> memory);

  // flash_forward.inc and flash_backward.inc
  Index (*flash_forward_scratch)(Index d, Index dv);
  Index (*flash_backward_scratch)(Index d, Index dv);
  TileWork (*flash_forward)(const AttentionHead<T>& head, Index i0, Index rows, const Matrix<T>& o,
                            const Matrix<T>& lse, Scratch<T> memory);
  void (*row_deltas)(const FlashHead<T>& head, Index i0, Index rows, T* delta);
  void (*flash_backward_begin)(const AttentionHead<T>& head, Index j0, Index n, Scratch<T> memory);
  TileWork (*flash_backward_tile)(const FlashHead<T>& head, Index i0, Index rows, Index j0, Index n,
                                  Scratch<T> memory);
  void (*flash_backward_end)(const AttentionHead<T>& head, Index j0, Index n, const Matrix<T>& dk,
                             const Matrix<T>& dv, T* to_scale, Scratch<T> memory);

  // decode.inc
  DecodeKernels<T> decode;
};

/// Functions of numbers as kernels compute them (simd/vector_functions.inc): for tests, a table
/// that no other program compiles.
template <Scalar T>
struct VectorFunctions {
  void (*weights_of)(const T* x, Index n, T* y);
  void (*logs_of)(const T* x, Index n, T* y);
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels

#define HEADWISE_ISA generic
#define HEADWISE_ISA_BYTES 16
#define HEADWISE_ISA_PAIRS 0
#include "headwise/kernels/isa.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS

#if HEADWISE_CONFIG_AVX2_KERNELS
HEADWISE_REGION(HEADWISE_AVX2)
#define HEADWISE_ISA avx2
#define HEADWISE_ISA_BYTES 32
#define HEADWISE_ISA_PAIRS 0
#include "headwise/kernels/isa.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS
HEADWISE_REGION_END
#endif

#if HEADWISE_CONFIG_AVX512_KERNELS
HEADWISE_REGION(HEADWISE_AVX512)
#define HEADWISE_ISA avx512
#define HEADWISE_ISA_BYTES 64
#define HEADWISE_ISA_PAIRS 0
#include "headwise/kernels/isa.inc"
#undef HEADWISE_ISA
#undef HEADWISE_ISA_BYTES
#undef HEADWISE_ISA_PAIRS
HEADWISE_REGION_END
#endif

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// of(tables) for the tables of an instruction set. Types other than float and double have the
/// generic ones. Throws ArgumentError for a set that HEADWISE_VECTOR_BYTES leaves out.
template <Scalar T, class Of>
decltype(auto) choose_tables([[maybe_unused]] InstructionSet set, const Of& of) {
  if constexpr (simd::vectorised<T>) {
#if HEADWISE_CONFIG_AVX512_KERNELS
    if (set == InstructionSet::avx512) return of(avx512::Tables());
#endif
#if HEADWISE_CONFIG_AVX2_KERNELS
    if (set == InstructionSet::avx2) return of(avx2::Tables());
#endif
  }
  if constexpr (simd::vectorised<T> && !is_compiled(InstructionSet::generic)) {
    raise<ArgumentError>("kernels_of: the instruction set is ", name_of(set),
                         ", expected the one of HEADWISE_VECTOR_BYTES");
  } else {
    return of(generic::Tables());
  }
}

/// The kernels of an instruction set.
template <Scalar T>
const Kernels<T>& kernels_of(InstructionSet set) {
  return choose_tables<T>(
      set, [](auto tables) -> const Kernels<T>& { return tables.template kernels<T>(); });
}
/// What a model has around attention, likewise.
template <Scalar T>
const ModelKernels<T>& model_kernels_of(InstructionSet set) {
  return choose_tables<T>(set, [](auto tables) -> const ModelKernels<T>& {
    return tables.template model_kernels<T>();
  });
}
/// Functions of numbers, likewise.
template <Scalar T>
const VectorFunctions<T>& vector_functions_of(InstructionSet set) {
  return choose_tables<T>(
      set, [](auto tables) -> const VectorFunctions<T>& { return tables.template functions<T>(); });
}

#if HEADWISE_USES_COMPILED || defined(HEADWISE_EXTERN_KERNELS)
extern template const Kernels<float>& kernels_of<float>(InstructionSet);
extern template const Kernels<double>& kernels_of<double>(InstructionSet);
extern template const ModelKernels<float>& model_kernels_of<float>(InstructionSet);
extern template const ModelKernels<double>& model_kernels_of<double>(InstructionSet);
extern template const VectorFunctions<float>& vector_functions_of<float>(InstructionSet);
extern template const VectorFunctions<double>& vector_functions_of<double>(InstructionSet);
#endif

/// Those of this process. Throws ArgumentError where HEADWISE_SIMD asks for what cannot be had.
template <Scalar T>
const Kernels<T>& kernels_here() {
  return kernels_of<T>(instruction_set_here());
}
/// The same, with products as they are asked for.
template <Scalar T>
const Kernels<T>& kernels_with(const Products& products) {
  if constexpr (std::same_as<T, float>) {
    const void* asked = products.kernels();
    if (asked != nullptr) return *static_cast<const Kernels<float>*>(asked);
  }
  return kernels_here<T>();
}
/// The same, for a call.
template <Scalar T>
const Kernels<T>& kernels_for(const Context& context) {
  return kernels_with<T>(context.products);
}
template <Scalar T>
const ModelKernels<T>& model_kernels_here() {
  return model_kernels_of<T>(instruction_set_here());
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
