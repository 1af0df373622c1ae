// A translation unit that is compiled with -ffast-math gets the same kinds of numbers, NaN,
// infinity, 0 and finite, and the same values to rounding, as one that is not.
#include <cstring>

#include "support/catch.hpp"
#include "tour/compare.hpp"
#include "tour/tour.hpp"

namespace headwise_tests {

std::vector<Named> tour_with_fast_math();

}  // namespace headwise_tests

using namespace headwise_tests;

TEST_CASE("ops, kernels and modules give the same under -ffast-math", "[fast_math]") {
  const Comparison comparison = compare(tour(), tour_with_fast_math());
  for (const std::string& difference : comparison.differences) FAIL_CHECK(difference);
  CAPTURE(comparison.worst_float, comparison.worst_double);
  CHECK(comparison.differences.empty());
  CHECK(comparison.finite > 100000);
  CHECK(comparison.not_finite > 10000);  // there was something to lose
}

TEST_CASE("the comparison sees a lost NaN, a lost infinity, a wrong digit and a missing result",
          "[fast_math]") {
  const double nan = from_bits<double>(nan_bits), infinity = from_bits<double>(infinity_bits);
  const std::vector<Named> expected = {{"double, x", {1, nan, infinity, -2}}, {"count", {5}, true}};
  CHECK(compare(expected, expected).differences.empty());
  const auto changed = [&](std::size_t result, std::size_t place, double value) {
    std::vector<Named> got = expected;
    got[result].values[place] = value;
    return compare(expected, got).differences.size();
  };
  CHECK(changed(0, 0, 1 + 0x1p-52) == 0);
  CHECK(changed(0, 0, 1 + 0x1p-40) == 1);
  CHECK(changed(0, 0, nan) == 1);
  CHECK(changed(0, 1, 0) == 1);
  CHECK(changed(0, 2, -infinity) == 1);
  CHECK(changed(0, 2, nan) == 1);
  CHECK(changed(1, 0, 5 + 0x1p-50) == 1);
  CHECK(compare(expected, {expected[0]}).differences.size() == 1);
  CHECK(compare(expected, {expected[0], {"count", {}, true}}).differences.size() == 1);
  CHECK(compare(expected, {expected[0], {"another", {5}, true}}).differences.size() == 1);
}
