// A translation unit that is compiled with -ffast-math gets the same kinds of numbers, NaN,
// infinity, 0 and finite, and the same values to rounding, as one that is not.
#include <algorithm>
#include <cmath>

#include "attention_cases.hpp"
#include "support/catch.hpp"

#if defined(__FAST_MATH__)
#error "the comparison must be compiled without -ffast-math"
#endif

namespace headwise_tests {

std::vector<Named> run_without() { return run_all(); }

}  // namespace headwise_tests

using namespace headwise_tests;

TEST_CASE("masks, dead rows, NaN and infinities come out the same under -ffast-math",
          "[fast_math]") {
  const std::vector<Named> strict = run_without(), fast = run_with_fast_math();
  REQUIRE(strict.size() == fast.size());
  long not_finite = 0;
  for (std::size_t n = 0; n < strict.size(); ++n) {
    CAPTURE(strict[n].name);
    REQUIRE(strict[n].name == fast[n].name);
    REQUIRE(strict[n].values.size() == fast[n].values.size());
    double greatest = 0;
    for (const double x : strict[n].values) {
      if (std::isfinite(x)) greatest = std::max(greatest, std::abs(x));
    }
    const double rounding = strict[n].name.starts_with("float") ? 1e-5 : 1e-13;
    for (std::size_t i = 0; i < strict[n].values.size(); ++i) {
      const double x = strict[n].values[i], y = fast[n].values[i];
      CAPTURE(i, x, y);
      if (std::isfinite(x)) {
        CHECK(std::abs(x - y) <= rounding * greatest);
      } else {
        ++not_finite;
        CHECK((std::isnan(x) ? std::isnan(y) : x == y));
      }
    }
  }
  CHECK(not_finite > 100);  // there was something to lose
}
