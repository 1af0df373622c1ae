// Compiled with -O3 -ffast-math: what a user's translation unit may be.
#include "attention_cases.hpp"

namespace headwise_tests {

std::vector<Named> run_with_fast_math() { return run_all(); }

}  // namespace headwise_tests
