// Compiled with -O3 -ffast-math: what a user's translation unit may be.
#include "tour/tour.hpp"

namespace headwise_tests {

std::vector<Named> tour_with_fast_math();
std::vector<Named> tour_with_fast_math() { return tour(); }

}  // namespace headwise_tests
