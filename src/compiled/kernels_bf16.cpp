// The kernels of headwise::compiled whose products are of bf16. What is no product of theirs is
// float's: kernels_float.cpp.
#include "headwise/kernels/bf16_kernels.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

extern template const Kernels<float>& kernels_of<float>(InstructionSet);
template const Kernels<float>& bf16_kernels_of<float>(Bf16Unit, InstructionSet);

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
