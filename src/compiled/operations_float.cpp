// The operations and modules of headwise::compiled for float.
#define HEADWISE_INSTANCE_SCALAR float
#include "operations.hpp"
