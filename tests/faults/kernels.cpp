// The kernels that a planted fault's test is linked with, for one type, HEADWISE_FAULT_SCALAR:
// those of the instruction set that tests choose on this machine, HEADWISE_FAULT_ISA, and of the
// others the functions of numbers alone. (Everything for both types takes the compiler three times
// as long.) Whoever calls more of the others calls a null pointer.
// HEADWISE_FAULT_BF16: those of products in bf16 instead, for every unit, and of its pieces.
#include "headwise/kernels/bf16_kernels.hpp"
#include "headwise/kernels/split_kernels.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

#if defined(HEADWISE_FAULT_BF16)

extern template const Kernels<float>& kernels_of<float>(InstructionSet);
template const Kernels<float>& bf16_kernels_of<float>(Bf16Unit, InstructionSet);
template const Kernels<float>& split_kernels<float, 2>();
template const Kernels<float>& split_kernels<float, 3>();

#else

using T = HEADWISE_FAULT_SCALAR;

template <>
const Kernels<T>& kernels_of<T>(InstructionSet set) {
  using enum InstructionSet;
  if (set == HEADWISE_FAULT_ISA) return HEADWISE_FAULT_ISA::table<T>;
  static constexpr Kernels<T> none{};
  return none;
}

template <>
const ModelKernels<T>& model_kernels_of<T>(InstructionSet set) {
  using enum InstructionSet;
  if (set == HEADWISE_FAULT_ISA) return HEADWISE_FAULT_ISA::model_table<T>;
  static constexpr ModelKernels<T> none{};
  return none;
}

template const VectorFunctions<T>& vector_functions_of<T>(InstructionSet);

#endif

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
