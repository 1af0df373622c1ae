// Learning rates as functions of the step.
#include <cmath>
#include <numbers>

#include "headwise/optim/schedules.hpp"
#include "support/catch.hpp"

namespace optim_schedules {

using namespace headwise;

TEST_CASE("a constant schedule is constant", "[optim]") {
  for (const std::int64_t step : {0, 1, 1000}) CHECK(ConstantSchedule{.rate = 0.5}(step) == 0.5);
}

TEST_CASE("a cosine schedule climbs in equal steps, is at the peak, and ends on the floor",
          "[optim]") {
  const CosineSchedule rate{.peak = 1e-3, .floor = 1e-4, .warmup_steps = 100, .total_steps = 500};
  CHECK(rate(0) == Approx(1e-5));
  CHECK(rate(49) == Approx(5e-4));
  CHECK(rate(99) == Approx(1e-3));
  CHECK(rate(100) == Approx(1e-3));
  CHECK(rate(300) == Approx(5.5e-4));
  CHECK(rate(500) == 1e-4);
  CHECK(rate(10000) == 1e-4);
  for (std::int64_t step = 100; step < 500; ++step) {
    CHECK(rate(step + 1) < rate(step));
    const double expected =
        1e-4 +
        0.5 * 9e-4 * (1 + std::cos(std::numbers::pi * static_cast<double>(step - 100) / 400));
    CHECK(std::abs(rate(step) - expected) < 1e-18);
  }
}

TEST_CASE("a linear schedule climbs, falls in equal steps and stays on the floor", "[optim]") {
  const LinearSchedule rate{.peak = 1, .floor = 0.2, .warmup_steps = 4, .total_steps = 12};
  CHECK(rate(0) == 0.25);
  CHECK(rate(3) == 1);
  CHECK(rate(4) == 1);
  CHECK(rate(8) == Approx(0.6));
  CHECK(rate(12) == Approx(0.2));
  CHECK(rate(13) == rate(12));
}

TEST_CASE("a step schedule falls by its factor every so many steps", "[optim]") {
  const StepSchedule rate{.initial = 0.5, .factor = 0.5, .every = 3};
  CHECK(rate(2) == 0.5);
  CHECK(rate(3) == 0.25);
  CHECK(rate(8) == 0.125);
}

TEST_CASE("a schedule without steps, or all of warm-up, has no rate that is not a number",
          "[optim]") {
  CHECK(CosineSchedule{.peak = 1, .floor = 0.5, .total_steps = 0}(0) == 0.5);
  CHECK(CosineSchedule{.peak = 1, .floor = 0.5, .warmup_steps = 2, .total_steps = 2}(1) == 1);
  CHECK(CosineSchedule{.peak = 1, .floor = 0.5, .warmup_steps = 2, .total_steps = 2}(2) == 0.5);
  CHECK(LinearSchedule{.peak = 1, .floor = 0.5, .total_steps = 0}(0) == 0.5);
}

}  // namespace optim_schedules
