# An overlay port: it packages the checkout that it lies in.
#   vcpkg install headwise --overlay-ports=<checkout>/packaging/vcpkg/ports
# A port outside the checkout differs in the next line alone: there vcpkg_from_git() or
# vcpkg_from_github() sets SOURCE_PATH.
cmake_path(ABSOLUTE_PATH CMAKE_CURRENT_LIST_DIR NORMALIZE OUTPUT_VARIABLE port_dir)
cmake_path(SET SOURCE_PATH NORMALIZE "${port_dir}/../../../..")

set(VCPKG_BUILD_TYPE release) # header-only

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DHEADWISE_BUILD_TESTS=OFF
          -DHEADWISE_BUILD_BENCHMARKS=OFF
          -DHEADWISE_BUILD_EXAMPLES=OFF
          -DHEADWISE_INSTALL=ON)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/headwise)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
