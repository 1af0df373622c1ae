# Two translation units of one program include everything, and neither compiles a kernel by that.

set(dir "${CMAKE_CURRENT_BINARY_DIR}/link_check")
file(CONFIGURE OUTPUT "${dir}/main.cpp"
     CONTENT "#include <headwise/headwise.hpp>\nint other();\nint main() { return other(); }\n")
file(CONFIGURE OUTPUT "${dir}/other.cpp"
     CONTENT "#include <headwise/headwise.hpp>\nint other();\nint other() { return 0; }\n")
add_executable(headwise_link_check "${dir}/main.cpp" "${dir}/other.cpp")
add_dependencies(headwise_test_programs headwise_link_check)
target_link_libraries(headwise_link_check PRIVATE headwise::headwise headwise_warnings)
target_compile_options(headwise_link_check PRIVATE -O0 -g0)
add_test(NAME "link: headwise.hpp may be included by two translation units"
         COMMAND headwise_link_check)
set_tests_properties("link: headwise.hpp may be included by two translation units"
                     PROPERTIES LABELS link)
# What no template keeps back is written out then, and all that it instantiates.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND HEADWISE_NM)
  set_source_files_properties("${dir}/other.cpp" PROPERTIES COMPILE_OPTIONS
                                                            -fkeep-inline-functions)
  add_test(NAME "link: a program that only includes headwise.hpp compiles no kernel"
           COMMAND "${CMAKE_COMMAND}" "-DNM=${HEADWISE_NM}"
                   "-DOBJECTS=$<TARGET_OBJECTS:headwise_link_check>"
                   -P "${CMAKE_CURRENT_SOURCE_DIR}/support/no_kernels.cmake")
  set_tests_properties("link: a program that only includes headwise.hpp compiles no kernel"
                       PROPERTIES LABELS link)
endif()
