// The kernels of long double and of dual numbers, compiled once for all test programs.
#define HEADWISE_WIDE_INSTANCE template
#include "support/wide_kernels.hpp"
