// Tensors in files, by name: the safetensors format, read and written.
#pragma once

#include "headwise/io/safetensors_reader.hpp"  // IWYU pragma: export
#include "headwise/io/safetensors_writer.hpp"  // IWYU pragma: export
