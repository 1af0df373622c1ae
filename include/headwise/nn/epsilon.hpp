// What norms add to a variance, as an option in double of modules that compute in T.
#pragma once

#include <string_view>

#include "headwise/tensor/error.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Throws ArgumentError `function: option is ...` unless epsilon is a finite number above 0 as a T,
/// too: 1e-50 is 0 as a float.
template <Scalar T>
void require_epsilon(std::string_view function, std::string_view option, double epsilon) {
  require(is_finite_option(epsilon) && epsilon > 0, function, option, " is ", epsilon,
          ", expected a finite number above 0");
  const T as_computed = T(epsilon);
  require(is_finite_option(as_computed) && T(0) < as_computed, function, option, " is ", epsilon,
          ", expected a number that the module's type tells from 0 and infinity");
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
