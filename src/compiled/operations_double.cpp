// The operations and modules of headwise::compiled for double.
#define HEADWISE_INSTANCE_SCALAR double
#include "operations.hpp"
