#!/bin/sh
# A program built with -I alone: HEADWISE is a checkout, EIGEN the folder of Eigen's headers.
set -eu
# shellcheck disable=SC2086
${CXX:-c++} -std=c++20 ${CXXFLAGS-} -I "$HEADWISE/include" -isystem "$EIGEN" \
  "$(dirname "$0")/../hello.cpp" -o hello
