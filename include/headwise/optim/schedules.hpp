// Learning rates as pure functions of the step, which is counted from 0: nothing to save, nothing
// to advance. A schedule is called with the steps that were taken before.
//   optimizer.set_learning_rate(schedule(optimizer.steps()));
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

#include "headwise/tensor/error.hpp"
#include "headwise/tensor/scalar.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

inline void require_step(std::string_view schedule, std::int64_t step) {
  require(step >= 0, schedule, "step is ", step, ", expected >= 0");
}

inline void require_rate(std::string_view schedule, std::string_view name, double rate) {
  require(is_finite_option(rate) && rate >= 0, schedule, name, " is ", rate,
          ", expected a finite number of 0 or more");
}

inline void require_span(std::string_view schedule, std::int64_t warmup, std::int64_t total) {
  require(warmup >= 0, schedule, "warmup_steps is ", warmup, ", expected >= 0");
  require(total >= warmup, schedule, "total_steps is ", total, ", expected at least warmup_steps, ",
          warmup);
}

HEADWISE_STRICT_MATH_BEGIN

/// Where between the end of the warm-up, 0, and the last step, 1.
inline double progress(std::int64_t step, std::int64_t warmup, std::int64_t total) {
  if (step >= total) return 1;
  return static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// The same rate for ever.
struct ConstantSchedule {
  double rate = 1e-3;  // >= 0

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("ConstantSchedule", "rate", rate);
    detail::require_step("ConstantSchedule", step);
    return rate;
  }
};

/// Up to the peak in equal steps, then down to the floor along half a cosine:
///   peak (step + 1) / warmup_steps                            while step < warmup_steps,
///   floor + (peak - floor) (1 + cos(pi progress)) / 2         then; the floor from total_steps on.
/// Source: Loshchilov, Hutter, "SGDR", 2017, arXiv 1608.03983, equation 5, without restarts.
struct CosineSchedule {
  double peak = 1e-3;             // >= 0
  double floor = 0;               // >= 0
  std::int64_t warmup_steps = 0;  // >= 0
  std::int64_t total_steps = -1;  // >= warmup_steps; no default: it has to be given

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("CosineSchedule", "peak", peak);
    detail::require_rate("CosineSchedule", "floor", floor);
    detail::require_span("CosineSchedule", warmup_steps, total_steps);
    detail::require_step("CosineSchedule", step);
    if (step < warmup_steps) {
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    }
    const double progress = detail::progress(step, warmup_steps, total_steps);
    return floor + 0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
  }
};

/// Up to the peak as CosineSchedule, then down to the floor along a straight line.
struct LinearSchedule {
  double peak = 1e-3;             // >= 0
  double floor = 0;               // >= 0
  std::int64_t warmup_steps = 0;  // >= 0
  std::int64_t total_steps = -1;  // >= warmup_steps; no default: it has to be given

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("LinearSchedule", "peak", peak);
    detail::require_rate("LinearSchedule", "floor", floor);
    detail::require_span("LinearSchedule", warmup_steps, total_steps);
    detail::require_step("LinearSchedule", step);
    if (step < warmup_steps) {
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    }
    return peak + (floor - peak) * detail::progress(step, warmup_steps, total_steps);
  }
};

/// initial factor^(step / every), the quotient rounded down.
struct StepSchedule {
  double initial = 1e-3;   // >= 0
  double factor = 0.1;     // >= 0
  std::int64_t every = 1;  // >= 1

  /// The rate of a step. Throws ArgumentError.
  double operator()(std::int64_t step) const {
    detail::require_rate("StepSchedule", "initial", initial);
    detail::require_rate("StepSchedule", "factor", factor);
    require(every >= 1, "StepSchedule", "every is ", every, ", expected >= 1");
    detail::require_step("StepSchedule", step);
    const std::int64_t steps_down = step / every;
    return initial * std::pow(factor, static_cast<double>(steps_down));
  }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
