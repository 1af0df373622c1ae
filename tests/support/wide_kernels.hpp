// The kernels of long double and of dual numbers as compiled elsewhere, by wide_kernels.cpp: eight
// programs of tests would else compile them again. They are precompiled with the standard headers;
// what does not read those compiles its own.
#pragma once

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/dual.hpp"

#if !defined(HEADWISE_WIDE_INSTANCE)
#define HEADWISE_WIDE_INSTANCE extern template
#endif

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_WIDE_INSTANCE const Kernels<long double>& kernels_of<long double>(InstructionSet);
HEADWISE_WIDE_INSTANCE const ModelKernels<long double>& model_kernels_of<long double>(
    InstructionSet);
HEADWISE_WIDE_INSTANCE const Kernels<Dual<double>>& kernels_of<Dual<double>>(InstructionSet);
HEADWISE_WIDE_INSTANCE const ModelKernels<Dual<double>>& model_kernels_of<Dual<double>>(
    InstructionSet);
HEADWISE_WIDE_INSTANCE const Kernels<Dual<long double>>& kernels_of<Dual<long double>>(
    InstructionSet);
HEADWISE_WIDE_INSTANCE const ModelKernels<Dual<long double>>& model_kernels_of<Dual<long double>>(
    InstructionSet);

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
