# The programs of README.md and docs/ as tests: extract.cpp writes them as sources, which join the
# rules of documents.test.cpp in headwise_tests_documents. A handful of programs is compiled at once,
# as each by itself would read all headers again; that each also stands alone is a slow test.

add_executable(headwise_extract_documents documents/extract.cpp)
target_compile_features(headwise_extract_documents PRIVATE cxx_std_20)
target_compile_options(headwise_extract_documents PRIVATE -O0 -g0)
target_include_directories(headwise_extract_documents PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(headwise_extract_documents PRIVATE headwise_warnings)

file(GLOB_RECURSE pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.md")
set(folder "${CMAKE_CURRENT_BINARY_DIR}/documents")
set(program_sources "${folder}/programs_0.cpp" "${folder}/programs_1.cpp")
add_custom_command(
  OUTPUT "${folder}/extracted"
  BYPRODUCTS ${program_sources}
  COMMAND headwise_extract_documents "${PROJECT_SOURCE_DIR}" "${folder}" 2
  COMMAND "${CMAKE_COMMAND}" -E touch "${folder}/extracted"
  DEPENDS ${pages} "${PROJECT_SOURCE_DIR}/README.md"
  COMMENT "Taking the programs out of the pages"
  VERBATIM)
add_custom_target(headwise_documents DEPENDS "${folder}/extracted")
set_source_files_properties(${program_sources} PROPERTIES GENERATED ON COMPILE_OPTIONS "-O0;-g0"
                                                          SKIP_UNITY_BUILD_INCLUSION ON)
if(NOT documents IN_LIST not_optimised)  # precompiled headers are of other options
  set_source_files_properties(${program_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endif()
target_sources(headwise_tests_documents PRIVATE ${program_sources})
add_dependencies(headwise_tests_documents headwise_documents)

add_test(NAME "documents: every cmake block of a page configures a project that builds and runs"
         COMMAND documents/projects "${PROJECT_SOURCE_DIR}" "${folder}/projects"
         WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
add_test(NAME "documents: every program of a page compiles by itself"
         COMMAND documents/compile_alone "${PROJECT_SOURCE_DIR}" "${folder}/alone"
         WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
set_tests_properties(
  "documents: every cmake block of a page configures a project that builds and runs"
  "documents: every program of a page compiles by itself"
  PROPERTIES ENVIRONMENT "CXX=${CMAKE_CXX_COMPILER}" LABELS "documents;slow" TIMEOUT 1200)
