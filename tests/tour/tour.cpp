// The tour as a function that another file can call: HEADWISE_TOUR is its name.
#include "tour/tour.hpp"

namespace headwise_tests {

std::vector<Named> HEADWISE_TOUR();
std::vector<Named> HEADWISE_TOUR() { return tour(); }

}  // namespace headwise_tests
