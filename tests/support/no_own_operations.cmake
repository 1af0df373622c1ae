# Fails where an object file defines an operation that headwise::compiled holds: it should only
# refer to it.
execute_process(COMMAND "${NM}" --demangle ${OBJECTS} OUTPUT_VARIABLE symbols
                        COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES " U void headwise::[^\n]*flash_attention_forward<float>")
  message(FATAL_ERROR "flash_attention_forward<float> is not referred to: is this the right object?")
endif()
string(REGEX MATCHALL
       "[^\n]* [TtWw] [^\n]*(linear|softmax|attention|layer_norm|dropout)_(for|back)ward<(float|double)>[(][^\n]*"
       own "${symbols}")
if(own)
  message(FATAL_ERROR "compiled here, not linked:\n${own}")
endif()
