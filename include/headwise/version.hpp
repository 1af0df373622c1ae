// The one place of the version: CMake reads it from here. While MAJOR is 0, another MINOR may
// change the interface; the namespace headwise::v0_1 names both.
#pragma once

#if defined(HEADWISE_VERSION_MAJOR)
#error "two copies of headwise meet in one translation unit: look for two include paths to it"
#endif

#define HEADWISE_VERSION_MAJOR 0
#define HEADWISE_VERSION_MINOR 1
#define HEADWISE_VERSION_PATCH 0

/// #if HEADWISE_VERSION_AT_LEAST(0, 1, 0)
#define HEADWISE_VERSION_AT_LEAST(major, minor, patch) \
  (HEADWISE_VERSION >= (major)*10000 + (minor)*100 + (patch))
#define HEADWISE_VERSION \
  (HEADWISE_VERSION_MAJOR * 10000 + HEADWISE_VERSION_MINOR * 100 + HEADWISE_VERSION_PATCH)
