#!/bin/sh
# A program built with single_include/ alone; then one of two files that takes headwise in both
# ways; then all of single_include/ in one file. HEADWISE is a checkout, EIGEN the folder of
# Eigen's headers.
set -eu
here=$(dirname "$0")
compile() {
  # shellcheck disable=SC2086
  ${CXX:-c++} -std=c++20 ${CXXFLAGS-} -isystem "$EIGEN" "$@"
}
compile -I "$HEADWISE/single_include" "$here/../hello.cpp" -o hello

compile -I "$HEADWISE/single_include" -c "$here/main.cpp" -o main.o
compile -I "$HEADWISE/include" -c "$here/other.cpp" -o other.o
compile main.o other.o -o both_ways

compile -I "$HEADWISE/single_include" -fsyntax-only "$here/everything.cpp"
