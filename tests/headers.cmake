# Every header stands alone, and may be included twice: a test that compiles them, one by one. It is
# slow, as all of them read the same headers again and again.

# (A fragment, x.inc, is no header: kernels.hpp includes it.)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
     "${PROJECT_SOURCE_DIR}/include/headwise/*.hpp")
set(check_sources "")
set(check_sources_io "")
foreach(header IN LISTS headers)
  string(REGEX REPLACE "[^A-Za-z0-9]" "_" name "${header}")
  set(source "${CMAKE_CURRENT_BINARY_DIR}/header_check/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <${header}>\n#include <${header}>\n")
  if(header MATCHES "^headwise/io/")
    list(APPEND check_sources_io "${source}")
  elseif(header MATCHES "^headwise/runtime/(.*)_executor[.]hpp$" AND CMAKE_MATCH_1 IN_LIST
                                                                     executor_libraries)
    list(APPEND check_sources_${CMAKE_MATCH_1} "${source}")
  else()
    list(APPEND check_sources "${source}")
  endif()
endforeach()

add_custom_target(headwise_header_checks)
function(headwise_header_check name library)
  if(ARGN)
    add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
    add_dependencies(headwise_header_checks ${name})
    target_link_libraries(${name} PRIVATE ${library} headwise_warnings)
    target_compile_options(${name} PRIVATE -O0 -g0)
  endif()
endfunction()
headwise_header_check(headwise_header_check headwise::headwise ${check_sources})
headwise_header_check(headwise_header_check_io headwise::io ${check_sources_io})
foreach(library IN LISTS executor_libraries_found)
  headwise_header_check(headwise_header_check_${library} headwise::headwise
                        ${check_sources_${library}})
  target_link_libraries(headwise_header_check_${library} PRIVATE ${executor_target_${library}})
endforeach()

set(name "layering: every header stands alone, and may be included twice")
add_test(NAME "${name}" COMMAND "${CMAKE_COMMAND}" --build "${CMAKE_BINARY_DIR}" --target
                                headwise_header_checks --parallel)
set_tests_properties("${name}" PROPERTIES LABELS "layering;slow" TIMEOUT 1200
                                            RESOURCE_LOCK build_tree)
