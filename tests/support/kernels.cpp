// The kernels for float and double, compiled once for all test programs and with their flags: each
// of their files would else compile three instruction sets again.
#include "headwise/kernels/bf16_kernels.hpp"
#include "headwise/kernels/split_kernels.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

template const Kernels<float>& kernels_of<float>(InstructionSet);
template const ModelKernels<float>& model_kernels_of<float>(InstructionSet);
template const Kernels<float>& bf16_kernels_of<float>(Bf16Unit, InstructionSet);
template const Kernels<float>& split_kernels<float, 2>();
template const Kernels<float>& split_kernels<float, 3>();
template const Kernels<double>& kernels_of<double>(InstructionSet);
template const ModelKernels<double>& model_kernels_of<double>(InstructionSet);
template const VectorFunctions<float>& vector_functions_of<float>(InstructionSet);
template const VectorFunctions<double>& vector_functions_of<double>(InstructionSet);

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
