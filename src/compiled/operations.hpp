// What headwise::compiled holds of one type, HEADWISE_INSTANCE_SCALAR: operations and modules,
// which call kernels of other files. They are compiled without -m and fast-math flags, whatever the
// program's are, so that they run on every machine.
#define HEADWISE_EXTERN_KERNELS
#define HEADWISE_INSTANCE template
#include "headwise/compiled.hpp"

#if !HEADWISE_CONFIG_PLAIN
#error "headwise::compiled must be compiled without flags that change its code: see CMakeLists.txt"
#endif
