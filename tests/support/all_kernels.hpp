// The kernels of every instruction set that this processor has.
#pragma once

#include "headwise/kernels/kernels.hpp"
#include "support/catch.hpp"
#include "support/instruction_sets.hpp"

namespace headwise_tests {

/// f(kernels, type) for float and double of every instruction set. The test of a planted fault is
/// linked with one set's (tests/faults/kernels.cpp): the tables of the others are empty there.
template <class F>
void for_all_kernels(F&& f) {
  int sets = 0;
  for (const auto set : supported_instruction_sets()) {
    CAPTURE(static_cast<int>(set));
    const auto& of_float = headwise::kernels::kernels_of<float>(set);
    if (of_float.gemm == nullptr) continue;
    f(of_float, float{});
    f(headwise::kernels::kernels_of<double>(set), double{});
    ++sets;
  }
  CHECK(sets > 0);
}

/// The same of what a model has around attention.
template <class F>
void for_all_model_kernels(F&& f) {
  int sets = 0;
  for (const auto set : supported_instruction_sets()) {
    CAPTURE(static_cast<int>(set));
    const auto& of_float = headwise::kernels::model_kernels_of<float>(set);
    if (of_float.combine_rows == nullptr) continue;
    f(of_float, float{});
    f(headwise::kernels::model_kernels_of<double>(set), double{});
    ++sets;
  }
  CHECK(sets > 0);
}

}  // namespace headwise_tests
