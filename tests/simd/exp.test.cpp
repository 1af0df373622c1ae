#include "headwise/simd/exp.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"

using namespace headwise;

namespace {

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

/// exp of one number, in each of the lanes in turn; a NaN if the lanes do not agree.
template <class T>
T exp_of(T x) {
  using S = simd::Simd<T, simd::Best>;
  T results[S::width];
  S::store(simd::exp<T, simd::Best>(S::broadcast(x)), results);
  for (int lane = 1; lane < S::width; ++lane) {
    if (std::bit_cast<BitsOf<T>>(results[lane]) != std::bit_cast<BitsOf<T>>(results[0])) {
      return std::numeric_limits<T>::quiet_NaN();
    }
  }
  return results[0];
}

/// The distance of neighbouring numbers of type T where `exact` lies.
template <class T>
long double unit_in_last_place(long double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  using Limits = std::numeric_limits<T>;
  return std::ldexp(1.0L, std::max(exponent, Limits::min_exponent) - Limits::digits);
}

template <class T>
bool is_nan_by_bits(T x) {
  const BitsOf<T> magnitude = std::bit_cast<BitsOf<T>>(x) << 1 >> 1;
  return magnitude > std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::infinity());
}

/// Calls check(x) over the whole range in which e^x is neither 0 nor infinite, and around the
/// points where its parts are joined.
template <class T, class F>
void sweep(int points, F&& check) {
  const bool narrow = sizeof(T) == 4;
  const double low = narrow ? -103.97 : -745.13, high = narrow ? 88.72 : 709.78;
  for (int n = 0; n <= points; ++n) check(static_cast<T>(low + (high - low) * n / points));
  for (int n = -1100; n <= 1030; ++n) {
    T x = static_cast<T>((n + 0.5) * 0.693147180559945309);  // where n changes
    if (x < static_cast<T>(low) || x > static_cast<T>(high)) continue;
    for (int step = -3; step <= 3; ++step) {
      T near = x;
      for (int s = 0; s < std::abs(step); ++s) near = std::nextafter(near, T(step) * 1000);
      check(near);
    }
  }
  for (int e = -160; e < 0; ++e) {
    check(static_cast<T>(std::ldexp(1.0, e)));
    check(static_cast<T>(-std::ldexp(1.0, e)));
  }
}

template <class T>
void check_accuracy() {
  long double worst = 0;
  T worst_at = 0;
  sweep<T>(200000, [&](T x) {
    const long double exact = std::exp(static_cast<long double>(x));
    const long double error =
        std::abs(static_cast<long double>(exp_of(x)) - exact) / unit_in_last_place<T>(exact);
    if (!(error <= worst)) {
      worst = error;
      worst_at = x;
    }
  });
  CAPTURE(sizeof(T), worst_at, worst);
  CHECK(worst <= 2);
}

template <class T>
void check_special_values() {
  using Limits = std::numeric_limits<T>;
  const T infinity = Limits::infinity();
  CAPTURE(sizeof(T));
  CHECK(exp_of(T(0)) == T(1));
  CHECK(exp_of(-T(0)) == T(1));
  CHECK(exp_of(Limits::denorm_min()) == T(1));
  CHECK(exp_of(-infinity) == T(0));
  CHECK(exp_of(infinity) == infinity);
  CHECK(exp_of(Limits::lowest()) == T(0));
  CHECK(exp_of(Limits::max()) == infinity);
  CHECK(exp_of(T(-1e6)) == T(0));
  CHECK_FALSE(std::signbit(exp_of(-infinity)));
  CHECK(is_nan_by_bits(exp_of(Limits::quiet_NaN())));
  CHECK(is_nan_by_bits(exp_of(-Limits::quiet_NaN())));
}

template <class T>
void check_ends() {
  using Limits = std::numeric_limits<T>;
  const long double largest = std::log(static_cast<long double>(Limits::max()));
  const long double smallest = std::log(static_cast<long double>(Limits::denorm_min()));
  CAPTURE(sizeof(T));
  CHECK(exp_of(static_cast<T>(largest - 1e-4L)) < Limits::infinity());
  CHECK(exp_of(static_cast<T>(largest - 1e-4L)) > Limits::max() * T(0.999));
  CHECK(exp_of(static_cast<T>(largest + 1e-4L)) == Limits::infinity());
  CHECK(exp_of(static_cast<T>(smallest + 0.1L)) == Limits::denorm_min());
  CHECK(exp_of(static_cast<T>(smallest - 1.0L)) == T(0));
  const T denormal = exp_of(static_cast<T>(smallest + 5.0L));
  CHECK(denormal > T(0));
  CHECK(denormal < Limits::min());
}

template <class T>
void check_monotone() {
  T previous_x = std::numeric_limits<T>::lowest(), previous = 0;
  const double low = sizeof(T) == 4 ? -103.9 : -745.0, high = sizeof(T) == 4 ? 88.7 : 709.7;
  int falls = 0;
  for (int n = 0; n <= 300000; ++n) {
    const T x = static_cast<T>(low + (high - low) * n / 300000);
    const T y = exp_of(x);
    if (x > previous_x && y < std::nextafter(previous, T(0))) ++falls;
    previous_x = x;
    previous = y;
  }
  CAPTURE(sizeof(T));
  CHECK(falls == 0);
}

}  // namespace

TEST_CASE("exp is within 2 units in the last place over its whole range", "[simd]") {
  check_accuracy<float>();
  check_accuracy<double>();
}

TEST_CASE("exp of 0 is exactly 1, of -inf 0, of inf inf, and NaN stays NaN", "[simd]") {
  check_special_values<float>();
  check_special_values<double>();
}

TEST_CASE("exp passes through denormal numbers to 0 and through the largest to infinity",
          "[simd]") {
  check_ends<float>();
  check_ends<double>();
}

TEST_CASE("exp never falls by more than a unit in the last place as x grows", "[simd]") {
  check_monotone<float>();
  check_monotone<double>();
}

TEST_CASE("exp never exceeds 1 for x below 0", "[simd]") {
  const auto check = [](auto type) {
    using T = decltype(type);
    bool at_most_one = true;
    T x = 0;
    for (int n = 0; n < 1000; ++n) {
      x = std::nextafter(x, T(-1));
      at_most_one = at_most_one && exp_of(x) <= T(1);
    }
    for (int n = 1; n < 10000; ++n) {
      at_most_one = at_most_one && exp_of(static_cast<T>(-n * 1e-5)) <= T(1);
    }
    CHECK(at_most_one);
  };
  check(float{});
  check(double{});
}

TEST_CASE("each lane has the exp of its own number", "[simd]") {
  using S = simd::Simd<float, simd::Best>;
  float x[S::width], y[S::width];
  for (int lane = 0; lane < S::width; ++lane) x[lane] = static_cast<float>(lane * lane) - 5.3f;
  S::store(simd::exp<float, simd::Best>(S::load(x)), y);
  for (int lane = 0; lane < S::width; ++lane) CHECK(y[lane] == exp_of(x[lane]));
}

TEST_CASE("exp of long double is the standard one", "[simd]") {
  for (long double x : {-11355.0L, -1.0L, 0.0L, 0.1L, 11356.0L}) {
    CHECK((simd::exp<long double, simd::Best>(x)) == std::exp(x));
  }
}
