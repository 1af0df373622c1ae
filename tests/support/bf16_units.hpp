// What multiplies numbers of bf16 on this processor, and numbers as products round them.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "headwise/kernels/bf16_kernels.hpp"

namespace headwise_tests {

using namespace headwise;

/// x as a product of bf16 reads it: the nearest multiple of what its eighth binary digit is worth,
/// of two the even one.
inline float bf16_factor(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  constexpr int least = -125;  // of frexp, of the smallest number of 8 digits
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, least) - 8);
  return static_cast<float>(std::nearbyint(x / unit) * unit);
}

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
