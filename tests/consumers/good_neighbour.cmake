# What a subproject must leave alone, checked from the project around it:
#
#   remember_surroundings()               before headwise is taken in
#   require_good_neighbour(<directory>)   after it; the directory is headwise's source directory
#
# It checks what CMake can tell at configure time; that nothing is installed, `run` checks.

set(surrounding_variables
    BUILD_SHARED_LIBS BUILD_TESTING CMAKE_BUILD_TYPE CMAKE_CXX_EXTENSIONS CMAKE_CXX_FLAGS
    CMAKE_CXX_FLAGS_DEBUG CMAKE_CXX_FLAGS_RELEASE CMAKE_CXX_STANDARD CMAKE_EXE_LINKER_FLAGS
    CMAKE_INSTALL_PREFIX CMAKE_MODULE_PATH CMAKE_POSITION_INDEPENDENT_CODE CMAKE_PREFIX_PATH
    PROJECT_NAME PROJECT_VERSION THREADS_PREFER_PTHREAD_FLAG version)
set(surrounding_properties COMPILE_DEFINITIONS COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_LIBRARIES
                           LINK_OPTIONS)

macro(remember_surroundings)
  foreach(variable IN LISTS surrounding_variables)
    set(before_${variable} "${${variable}}")
  endforeach()
  foreach(property IN LISTS surrounding_properties)
    get_directory_property(before_${property} ${property})
  endforeach()
  get_cmake_property(before_cache CACHE_VARIABLES)
endmacro()

# The targets and tests of a directory and of all below it.
function(collect directory result_targets result_tests)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(tests DIRECTORY "${directory}" PROPERTY TESTS)
  get_property(below DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(subdirectory IN LISTS below)
    collect("${subdirectory}" more_targets more_tests)
    list(APPEND targets ${more_targets})
    list(APPEND tests ${more_tests})
  endforeach()
  set(${result_targets} "${targets}" PARENT_SCOPE)
  set(${result_tests} "${tests}" PARENT_SCOPE)
endfunction()

macro(require_unchanged name now)
  if(NOT "${now}" STREQUAL "${before_${name}}")
    message(FATAL_ERROR "headwise changed ${name} from '${before_${name}}' to '${now}'")
  endif()
endmacro()

function(require_good_neighbour directory)
  foreach(variable IN LISTS surrounding_variables)
    require_unchanged(${variable} "${${variable}}")
  endforeach()
  foreach(property IN LISTS surrounding_properties)
    get_directory_property(now ${property})
    require_unchanged(${property} "${now}")
  endforeach()

  collect("${directory}" targets tests)
  list(REMOVE_ITEM targets headwise headwise_io headwise_compiled)
  if(targets OR tests)
    message(FATAL_ERROR "headwise brought more than its libraries: ${targets} ${tests}")
  endif()

  # Everything in the cache is under our name, or under that of a CMake module or a dependency.
  get_cmake_property(cache CACHE_VARIABLES)
  list(REMOVE_ITEM cache ${before_cache})
  list(FILTER cache EXCLUDE REGEX "^(HEADWISE_|headwise_|FETCHCONTENT_|GIT_EXECUTABLE$)")
  list(FILTER cache EXCLUDE REGEX "^(CMAKE_INSTALL_|_GNUInstallDirs_|CMAKE_HAVE_|FIND_PACKAGE_)")
  list(FILTER cache EXCLUDE REGEX "^Eigen3_DIR$")
  if(cache)
    message(FATAL_ERROR "headwise put into the cache: ${cache}")
  endif()
  foreach(option IN ITEMS BUILD_TESTS BUILD_BENCHMARKS BUILD_EXAMPLES INSTALL)
    if(HEADWISE_${option})
      message(FATAL_ERROR "HEADWISE_${option} is on in a project that did not ask for it")
    endif()
  endforeach()

  foreach(property IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_OPTIONS)
    get_target_property(value headwise::headwise INTERFACE_${property})
    if(value)
      message(FATAL_ERROR "headwise::headwise hands on ${property} ${value}")
    endif()
  endforeach()
  get_target_property(libraries headwise::headwise INTERFACE_LINK_LIBRARIES)
  if(NOT libraries STREQUAL "Eigen3::Eigen;Threads::Threads")
    message(FATAL_ERROR "headwise::headwise links ${libraries}")
  endif()
endfunction()
