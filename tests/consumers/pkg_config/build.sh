#!/bin/sh
# A program built with what pkg-config says; CXX, CXXFLAGS and PKG_CONFIG_PATH as usual.
set -eu
# shellcheck disable=SC2046,SC2086
${CXX:-c++} -std=c++20 ${CXXFLAGS-} "$(dirname "$0")/../hello.cpp" -o hello \
  $(pkg-config --cflags --libs headwise)
