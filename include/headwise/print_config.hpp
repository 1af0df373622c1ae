// What a report of a fault should begin with: versions, flags, vectors, processor. It says what
// this translation unit was compiled with, which may differ from others of the program.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>

#include "headwise/runtime/instruction_set.hpp"
#include "headwise/runtime/processor.hpp"
#include "headwise/tensor/tensor.hpp"
#include "headwise/version.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// One line a fact, a word and what it is: "headwise    0.1.0".
inline std::string format_config() {
  const auto dotted = [](int first, int second, int third) {
    return std::to_string(first) + "." + std::to_string(second) + "." + std::to_string(third);
  };
  const auto line = [](std::string word, const std::string& text) {
    word.resize(12, ' ');
    return word + text + "\n";
  };
  const auto yes_or_no = [](bool yes) { return std::string(yes ? "yes" : "no"); };
  std::string text;
  text += line("headwise",
               dotted(HEADWISE_VERSION_MAJOR, HEADWISE_VERSION_MINOR, HEADWISE_VERSION_PATCH));
  text += line("compiler", std::string(HEADWISE_COMPILER) + " " + __VERSION__ + ", C++ " +
                               std::to_string(__cplusplus));
#if defined(EIGEN_PATCH_VERSION)  // from 5 on; the "world" stays 3 for ever
  text += line("Eigen", dotted(EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION, EIGEN_PATCH_VERSION));
#else
  text += line("Eigen", dotted(EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION));
#endif
  text += line("flags", HEADWISE_CODE_NAME);
  text += line("kernels", std::string(name_of(instruction_set_here())));
  // Not the kernels' own lanes: to name them here has them compiled wherever this is included.
  const auto bytes = static_cast<std::size_t>(vector_bytes(instruction_set_here()));
  text += line("vectors", std::to_string(bytes / sizeof(float)) + " float, " +
                              std::to_string(bytes / sizeof(double)) + " double");
  text += line("alignment", std::to_string(storage_alignment) + " bytes");
  text += line("processor", processor_features());
  text += line("threads", std::to_string(std::thread::hardware_concurrency()) + " in hardware");
  text += line("exceptions", yes_or_no(HEADWISE_HAS_EXCEPTIONS));
  text += line("compiled", yes_or_no(HEADWISE_USES_COMPILED));
  return text;
}

/// Prints format_config() to stdout.
inline void print_config() { std::fputs(format_config().c_str(), stdout); }

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
