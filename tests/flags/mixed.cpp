// One program of translation units that were compiled with different flags: each gets the same
// results from the library. HEADWISE_TOURS is the list of their tours, as calls, the plain one
// first: -DHEADWISE_TOURS='tour_plain(), tour_avx2()'.
#include <cstdio>

#include "tour/compare.hpp"

namespace headwise_tests {

std::vector<Named> HEADWISE_TOURS;  // declares each of them

}  // namespace headwise_tests

int main() {
  using namespace headwise_tests;
  const std::vector<Named> tours[] = {HEADWISE_TOURS};
  int failures = 0;
  for (const std::vector<Named>& tour : tours) {
    const Comparison comparison = compare(tours[0], tour);
    for (const std::string& difference : comparison.differences) {
      std::printf("%s: tour %td: %s\n", "FAILED", &tour - tours, difference.c_str());
      ++failures;
    }
    if (comparison.finite < 100000 || comparison.not_finite < 10000) ++failures;
  }
  return failures == 0 ? 0 : 1;
}
