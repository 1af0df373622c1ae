// What kernels are told by numbers: which of them are powers of 2.
#include "headwise/kernels/arguments.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace kernels_arguments {

using namespace headwise;

TEMPLATE_TEST_CASE("of numbers positive normal powers of 2 alone are powers of two", "[kernels]",
                   float, double) {
  using Limits = std::numeric_limits<TestType>;
  const TestType one = 1;
  for (int exponent = Limits::min_exponent - 1; exponent < Limits::max_exponent; ++exponent) {
    const TestType x = std::ldexp(one, exponent);
    CAPTURE(exponent);
    CHECK(kernels::is_power_of_two(x));
    CHECK_FALSE(kernels::is_power_of_two(-x));
    CHECK_FALSE(kernels::is_power_of_two(std::nextafter(x, Limits::max())));
    CHECK_FALSE(kernels::is_power_of_two(std::nextafter(x, TestType(0))));
    CHECK_FALSE(kernels::is_power_of_two(x * TestType(1.5)));
  }
  for (const TestType x : {TestType(0), -TestType(0), Limits::denorm_min(), Limits::min() / 2,
                           Limits::max(), Limits::infinity(), Limits::quiet_NaN()}) {
    CAPTURE(x);
    CHECK_FALSE(kernels::is_power_of_two(x));
    CHECK_FALSE(kernels::is_power_of_two(-x));
  }
  CHECK_FALSE(kernels::is_power_of_two(0.5L));  // other types: not asked
}

}  // namespace kernels_arguments
