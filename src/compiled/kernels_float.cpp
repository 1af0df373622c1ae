// The kernels of headwise::compiled for float, of every instruction set.
#include "headwise/kernels/kernels.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

template const Kernels<float>& kernels_of<float>(InstructionSet);
template const ModelKernels<float>& model_kernels_of<float>(InstructionSet);
template const VectorFunctions<float>& vector_functions_of<float>(InstructionSet);

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
