// What kernels are told by numbers: which scales may go behind differences of scores.
#include "headwise/kernels/arguments.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

namespace kernels_arguments {

using namespace headwise;

TEMPLATE_TEST_CASE(
    "scales that are powers of 2 from 2^-64 to 2^64 alone go behind differences of scores",
    "[kernels]", float, double) {
  using Limits = std::numeric_limits<TestType>;
  const TestType one = 1;
  for (int exponent = Limits::min_exponent - 1; exponent < Limits::max_exponent; ++exponent) {
    const TestType x = std::ldexp(one, exponent);
    CAPTURE(exponent);
    CHECK(kernels::may_scale_differences(x) == (exponent >= -64 && exponent <= 64));
    CHECK_FALSE(kernels::may_scale_differences(-x));
    CHECK_FALSE(kernels::may_scale_differences(std::nextafter(x, Limits::max())));
    CHECK_FALSE(kernels::may_scale_differences(std::nextafter(x, TestType(0))));
    CHECK_FALSE(kernels::may_scale_differences(x * TestType(1.5)));
  }
  for (const TestType x : {TestType(0), -TestType(0), Limits::denorm_min(), Limits::min() / 2,
                           Limits::max(), Limits::infinity(), Limits::quiet_NaN()}) {
    CAPTURE(x);
    CHECK_FALSE(kernels::may_scale_differences(x));
    CHECK_FALSE(kernels::may_scale_differences(-x));
  }
  CHECK_FALSE(kernels::may_scale_differences(0.5L));  // other types: not asked
}

}  // namespace kernels_arguments
