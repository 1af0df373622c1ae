# Runs packaging/vcpkg's portfile without vcpkg: the functions that it calls stand below, each doing
# to the files what vcpkg documents for a header-only port. Then what vcpkg checks of a package is
# checked, and a consumer is built from it. What this cannot show: that vcpkg itself accepts it.
#
#   cmake -D SOURCE=<checkout> -D SCRATCH=<folder> [-D EIGEN3_DIR=..] -P rehearse_vcpkg.cmake
cmake_minimum_required(VERSION 3.21)

set(PORT headwise)
set(port_file_dir "${SOURCE}/packaging/vcpkg/ports/headwise")
set(CURRENT_PACKAGES_DIR "${SCRATCH}/packages/headwise_x64-linux")
set(build_dir "${SCRATCH}/buildtrees/headwise")
set(prefix "${SCRATCH}/installed/x64-linux")
file(REMOVE_RECURSE "${SCRATCH}")
file(MAKE_DIRECTORY "${build_dir}" "${CURRENT_PACKAGES_DIR}" "${SCRATCH}/installed")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}\n${output}")
  endif()
endfunction()

# ---- vcpkg's functions -----------------------------------------------------------------------

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  run("${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${build_dir}" ${arg_OPTIONS}
      "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" -DCMAKE_BUILD_TYPE=Release
      -DBUILD_SHARED_LIBS=OFF "-DEigen3_DIR=${EIGEN3_DIR}")
endfunction()

function(vcpkg_cmake_install)
  run("${CMAKE_COMMAND}" --build "${build_dir}" --target install)
endfunction()

# The files move to share/<port>, two levels below the prefix, and are told so.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  set(to "${CURRENT_PACKAGES_DIR}/share/${PORT}")
  file(GLOB files "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*")
  file(COPY ${files} DESTINATION "${to}")
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}")
  get_filename_component(parent "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" DIRECTORY)
  if(parent MATCHES "/cmake$")
    file(REMOVE_RECURSE "${parent}")
  endif()
  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  file(GLOB files "${to}/*.cmake")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
    string(REGEX REPLACE "(PACKAGE_PREFIX_DIR \"[^\"]*LIST_DIR})[./]*\"" "\\1/../../\"" text
                         "${text}")
    file(WRITE "${file}" "${text}")
  endforeach()
endfunction()

function(vcpkg_fixup_pkgconfig)
  file(GLOB_RECURSE files "${CURRENT_PACKAGES_DIR}/*.pc")
  foreach(file IN LISTS files)
    if(NOT file MATCHES "/(lib|share)/pkgconfig/[^/]*$")
      message(FATAL_ERROR "${file} is not where vcpkg looks for it")
    endif()
    file(READ "${file}" text)
    string(REGEX REPLACE "(^|\n)prefix *=[^\n]*" "" text "${text}")
    file(WRITE "${file}" "prefix=\${pcfiledir}/../..${text}")
  endforeach()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(READ "${arg_FILE_LIST}" text)
  file(WRITE "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" "${text}")
endfunction()

# ---- The port --------------------------------------------------------------------------------

include("${port_file_dir}/portfile.cmake")

# ---- What vcpkg checks of a package ----------------------------------------------------------

function(require condition_text)
  if(NOT (${ARGN}))
    message(FATAL_ERROR "vcpkg would complain: ${condition_text}")
  endif()
endfunction()
require("there is no copyright" EXISTS "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright")
require("there is no usage" EXISTS "${CURRENT_PACKAGES_DIR}/share/${PORT}/usage")
foreach(folder IN ITEMS debug lib bin share/cmake share/doc)
  require("${folder} is left" NOT EXISTS "${CURRENT_PACKAGES_DIR}/${folder}")
endforeach()
file(GLOB_RECURSE files LIST_DIRECTORIES true "${CURRENT_PACKAGES_DIR}/*")
foreach(file IN LISTS files)
  if(IS_DIRECTORY "${file}")
    file(GLOB below "${file}/*")
    require("${file} is empty" below)
  else()
    file(READ "${file}" text)
    string(FIND "${text}" "${SCRATCH}" at)
    require("${file} names the folder it was built in" at EQUAL -1)
  endif()
endforeach()

file(READ "${port_file_dir}/vcpkg.json" manifest)
string(JSON manifest_version GET "${manifest}" version)
string(JSON manifest_name GET "${manifest}" name)
string(JSON needs GET "${manifest}" dependencies 0)
file(STRINGS "${build_dir}/CMakeCache.txt" line REGEX "^CMAKE_PROJECT_VERSION:")
require("vcpkg.json is of another version" line MATCHES "=${manifest_version}$")
require("vcpkg.json names another port" manifest_name STREQUAL PORT)
require("vcpkg.json does not name what the targets need"
        needs STREQUAL "eigen3")

# ---- A consumer, from where vcpkg puts the package -------------------------------------------

file(RENAME "${CURRENT_PACKAGES_DIR}" "${prefix}")
file(READ "${prefix}/share/headwise/usage" usage)
foreach(target IN ITEMS headwise::headwise headwise::io)
  require("the usage text does not name ${target}" usage MATCHES "${target}")
endforeach()
run("${CMAKE_COMMAND}" -S "${SOURCE}/tests/consumers/find_package" -B "${SCRATCH}/consumer"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DHEADWISE_WANTED=${manifest_version}"
    "-DEigen3_DIR=${EIGEN3_DIR}")
file(STRINGS "${SCRATCH}/consumer/CMakeCache.txt" found REGEX "^headwise_DIR:")
require("the consumer found another headwise: ${found}"
        found STREQUAL "headwise_DIR:PATH=${prefix}/share/headwise")
run("${CMAKE_COMMAND}" --build "${SCRATCH}/consumer" --target hello --target io)
run("${SCRATCH}/consumer/hello")
run("${SCRATCH}/consumer/io")
message(STATUS "the port's steps made a package that a consumer builds from")
