# Executors on threads of other libraries: executor_libraries, those that are found, their targets and
# the programs that test them.

# runtime/<library>_executor.hpp and its test are compiled where the library is found, and left out
# of what is compiled everywhere. ThreadSanitizer is not for them: of libraries that were compiled
# without it, it sees half and reports races that are none. Nor is AddressSanitizer for LLVM's libomp
# (14): a program of one parallel loop leaks the 14 KB that it ends with.
set(executor_libraries eigen openmp tbb)
set(executor_libraries_found "")
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
  include(CheckIncludeFileCXX)
  set(CMAKE_REQUIRED_LIBRARIES Eigen3::Eigen)
  check_include_file_cxx(Eigen/ThreadPool HEADWISE_HAS_EIGEN5_THREADPOOL -std=c++20)
  check_include_file_cxx(unsupported/Eigen/CXX11/ThreadPool HEADWISE_HAS_EIGEN_THREADPOOL -std=c++20)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(HEADWISE_HAS_EIGEN5_THREADPOOL OR HEADWISE_HAS_EIGEN_THREADPOOL)
    list(APPEND executor_libraries_found eigen)
    set(executor_target_eigen "")
  endif()
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(OpenMP_CXX_FOUND AND NOT (CMAKE_CXX_FLAGS MATCHES "-fsanitize=.*address"
                               AND CMAKE_CXX_COMPILER_ID MATCHES "Clang"))
    list(APPEND executor_libraries_found openmp)
    set(executor_target_openmp OpenMP::OpenMP_CXX)
  endif()
  find_package(TBB QUIET)
  if(TBB_FOUND)
    list(APPEND executor_libraries_found tbb)
    set(executor_target_tbb TBB::tbb)
  endif()
endif()
foreach(library IN LISTS executor_libraries)
  if(library IN_LIST executor_libraries_found)
    set(name headwise_tests_${library}_executor)
    headwise_test_program(${name} runtime runtime/${library}_executor.test.cpp)
    target_link_libraries(${name} PRIVATE ${executor_target_${library}})
  else()
    message(STATUS "headwise: runtime/${library}_executor.hpp is not tested in this build")
  endif()
endforeach()
