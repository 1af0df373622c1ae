# A gradient check of your own op as a test of your own project:
#
#   enable_testing()
#   find_package(headwise REQUIRED)
#   headwise_add_gradient_check(my_op_gradients my_op_gradients.cpp LIBRARIES my_op)
#
# The source has a main() that returns 0 where the gradients are right, for example
# `return headwise::check_op(forward, backward, x) ? 0 : 1;`. `ctest -L gradient_check` runs all.

# headwise_add_gradient_check(<name> <source> [LIBRARIES <target>...])
function(headwise_add_gradient_check name source)
  cmake_parse_arguments(PARSE_ARGV 2 check "" "" "LIBRARIES")
  if(check_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "headwise_add_gradient_check(${name}): what is "
                        "'${check_UNPARSED_ARGUMENTS}'? Libraries follow the word LIBRARIES.")
  endif()
  if(NOT TARGET headwise::headwise)
    message(FATAL_ERROR "headwise_add_gradient_check(${name}): there is no target "
                        "headwise::headwise; call find_package(headwise) first.")
  endif()
  if(NOT CMAKE_TESTING_ENABLED)
    message(FATAL_ERROR "headwise_add_gradient_check(${name}): tests are off, and ctest would pass "
                        "without having run one; call enable_testing() first, in the project's "
                        "topmost CMakeLists.txt.")
  endif()
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE headwise::headwise ${check_LIBRARIES})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS gradient_check)
endfunction()
