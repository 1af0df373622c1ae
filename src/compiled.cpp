// What headwise::compiled holds: the operations and the module for float and double. It is compiled
// without -m and fast-math flags, whatever the program's are, so that it runs on every machine.
#define HEADWISE_INSTANCE template
#include "headwise/compiled.hpp"

#if !HEADWISE_CONFIG_PLAIN
#error "headwise::compiled must be compiled without flags that change its code: see CMakeLists.txt"
#endif
