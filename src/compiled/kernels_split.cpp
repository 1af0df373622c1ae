// The kernels of headwise::compiled whose products are of pieces of bf16. What is no product of
// theirs is float's: kernels_float.cpp.
#include "headwise/kernels/split_kernels.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

extern template const Kernels<float>& kernels_of<float>(InstructionSet);
template const Kernels<float>& split_kernels<float, 2>();
template const Kernels<float>& split_kernels<float, 3>();

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
