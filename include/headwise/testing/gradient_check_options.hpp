// What a gradient check may be told: tolerance, stencil, step, directions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "headwise/tensor/shape.hpp"
#include "headwise/testing/number.hpp"
#include "headwise/testing/stencil.hpp"

namespace headwise::inline v0_1 {

/// How gradients are differenced and what they are held against.
struct GradientCheckOptions {
  double tolerance = 1e-8;             // of GradientError::error
  Stencil stencil = Stencil::central;  // how a slope is formed
  double step = 0;                     // > 0, in units of the inputs; 0: default_step
  std::uint64_t seed = 1;              // of the random directions
  int directions = 8;                  // random directions for each input that is large
  Index full_below = 400;              // inputs of at most so many scalars: every element
  double max_dy = 1;                   // the largest |dy| of the upstream gradient
};

namespace detail {
inline namespace HEADWISE_CODE {

inline void require_valid(const GradientCheckOptions& options, std::string_view function) {
  const auto got = [](const char* option, auto value, const char* wanted) {
    return [=] {
      return std::string(option) + " is " + format_number(static_cast<long double>(value)) +
             ", expected " + wanted;
    };
  };
  const double tolerance = options.tolerance, step = options.step, max_dy = options.max_dy;
  require(is_finite_number(tolerance) && tolerance > 0, function,
          got("tolerance", tolerance, "a finite number above 0"));
  require(is_finite_number(step) && step >= 0, function,
          got("step", step, "a finite number above 0, or 0 for the default"));
  require(options.directions >= 1, function, got("directions", options.directions, "at least 1"));
  require(options.full_below >= 0, function, got("full_below", options.full_below, "at least 0"));
  require(is_finite_number(max_dy) && max_dy >= 0, function,
          got("max_dy", max_dy, "a finite number of at least 0"));
}

template <class T>
T chosen_step(const GradientCheckOptions& options) {
  return options.step > 0 ? static_cast<T>(options.step) : default_step<T>(options.stencil);
}

}  // namespace HEADWISE_CODE
}  // namespace detail
}  // namespace headwise::inline v0_1
