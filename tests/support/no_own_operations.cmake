# Fails where an object file defines an operation that headwise::compiled holds: it should only
# refer to it. Names are read as compilers write them: binutils 2.40 does not know how clang 19 does
# where a concept constrains a template.
execute_process(COMMAND "${NM}" ${OBJECTS} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
set(of_float_or_double "I(TkNS[0-9]*_6ScalarE)?[fd]EE")
if(NOT symbols MATCHES " U _ZN8headwise[^\n]*flash_attention_forward${of_float_or_double}")
  message(FATAL_ERROR "flash_attention_forward<float> is not referred to: is this the right object?")
endif()
set(operations "(linear|softmax|attention|norm|dropout|activation|swiglu|add|block)_(for|back)ward")
string(REGEX MATCHALL "[^\n]* [TtWw] _ZN8headwise[^\n]*${operations}${of_float_or_double}[^\n]*" own
       "${symbols}")
if(own)
  message(FATAL_ERROR "compiled here, not linked:\n${own}")
endif()
