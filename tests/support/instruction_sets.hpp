// The instruction sets that a test of kernels runs through: those that this processor has.
#pragma once

#include <vector>

#include "headwise/runtime/instruction_set.hpp"

namespace headwise_tests {

/// At least generic, which every processor runs.
inline std::vector<headwise::InstructionSet> supported_instruction_sets() {
  using headwise::InstructionSet;
  std::vector<InstructionSet> sets;
  for (const auto set : {InstructionSet::generic, InstructionSet::avx2, InstructionSet::avx512}) {
    if (headwise::is_supported(set)) sets.push_back(set);
  }
  return sets;
}

}  // namespace headwise_tests
