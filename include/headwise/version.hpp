// The one place of the version: CMake reads it from here.
#pragma once

#define HEADWISE_VERSION_MAJOR 0
#define HEADWISE_VERSION_MINOR 1
#define HEADWISE_VERSION_PATCH 0
