# Fails where an object file of a program that uses nothing defines kernels: an inline function that
# is no template and names them has every program compile them all, three times as long.
execute_process(COMMAND "${NM}" ${OBJECTS} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES " [TtWw] _ZN8headwise[^\n]*ThreadPool")
  message(FATAL_ERROR "no inline function is defined: is this the right object?")
endif()
string(REGEX MATCHALL "[^\n]* [TtWw] _ZN8headwise[^\n]*7kernels[0-9]+[a-z0-9_]+4gemmI[fd]E[^\n]*"
       kernels "${symbols}")
if(kernels)
  message(FATAL_ERROR "compiled without a use:\n${kernels}")
endif()
