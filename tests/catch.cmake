# Catch2, 3 where it is found and 2.13 elsewhere, and the main function of every test program.

find_package(Catch2 3 QUIET)
if(NOT Catch2_FOUND)
  # Not one call with a range: Catch2's version file refuses a range over two major versions.
  find_package(Catch2 2.13 QUIET)
endif()
if(NOT Catch2_FOUND)
  message(FATAL_ERROR "headwise's tests need Catch2 >= 2.13 (Debian: catch2); "
                      "HEADWISE_BUILD_TESTS=OFF does without")
endif()
include(Catch)

# A test whose name Catch2 cannot find again (it holds a `;`, say) must not pass as "0 tests run".
# Catch2 3 fails by itself then, and no longer knows the option.
set(no_tests_is_failure "")
if(Catch2_VERSION VERSION_LESS 3)
  set(no_tests_is_failure EXTRA_ARGS -w NoTests)
endif()

add_library(headwise_catch_main STATIC support/main.cpp)
target_compile_features(headwise_catch_main PUBLIC cxx_std_20)
target_compile_options(headwise_catch_main PRIVATE -O0 -g0)
target_include_directories(headwise_catch_main PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
target_compile_definitions(headwise_catch_main PUBLIC HEADWISE_CATCH2=${Catch2_VERSION_MAJOR})
target_link_libraries(headwise_catch_main PUBLIC Catch2::Catch2)
