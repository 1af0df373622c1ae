// What multiplies numbers of bf16 on this processor, and numbers as products round them.
#pragma once

#include <string>
#include <vector>

#include "headwise/kernels/bf16_kernels.hpp"
#include "headwise/tensor/float16.hpp"

namespace headwise_tests {

using namespace headwise;

/// x as a product of bf16 reads it.
inline float bf16_factor(float x) { return convert_float<float>(convert_float<BFloat16>(x)); }

/// At least multiply_add, which every processor has.
inline std::vector<Bf16Unit> supported_bf16_units() {
  std::vector<Bf16Unit> units;
  for (const auto unit : {Bf16Unit::multiply_add, Bf16Unit::avx512, Bf16Unit::amx}) {
    if (is_supported(unit)) units.push_back(unit);
  }
  return units;
}

/// Kernels of bf16, by the name that a failure shows.
struct Bf16Kernels {
  std::string name;
  const kernels::Kernels<float>* run;
  bool keeps_subnormals;  // others may take them for 0
};

/// Those of every unit that this processor has, of multiply_add for each instruction set.
inline std::vector<Bf16Kernels> supported_bf16_kernels() {
  using enum InstructionSet;
  std::vector<Bf16Kernels> all;
  for (const Bf16Unit unit : supported_bf16_units()) {
    const bool plain = unit == Bf16Unit::multiply_add;
    const InstructionSet widest = plain ? avx2 : InstructionSet::avx512;
    if (plain) {
      all.push_back(
          {"multiply_add generic", &kernels::bf16_kernels_of<float>(unit, generic), true});
    }
    if (!is_supported(widest)) continue;
    all.push_back({std::string(name_of(unit)) + " " + std::string(name_of(widest)),
                   &kernels::bf16_kernels_of<float>(unit, widest), plain});
  }
  return all;
}

}  // namespace headwise_tests
