// The kernels of headwise::compiled for double, of every instruction set.
#include "headwise/kernels/kernels.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

template const Kernels<double>& kernels_of<double>(InstructionSet);
template const ModelKernels<double>& model_kernels_of<double>(InstructionSet);
template const VectorFunctions<double>& vector_functions_of<double>(InstructionSet);

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
