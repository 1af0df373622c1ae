// The weights of a softmax, 2^x for x <= 0, by the vectors of every instruction set of this
// processor, against the standard library in long double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "support/catch.hpp"
#include "support/float_bits.hpp"
#include "support/instruction_sets.hpp"

namespace simd_exp {

using namespace headwise;
using headwise_tests::BitsOf;
using headwise_tests::is_nan;
using headwise_tests::supported_instruction_sets;
using headwise_tests::unit_in_last_place;

namespace {

template <class T>
std::vector<T> weights_of(InstructionSet set, const std::vector<T>& x) {
  std::vector<T> y(x.size());
  kernels::vector_functions_of<T>(set).weights_of(x.data(), static_cast<Index>(x.size()), y.data());
  return y;
}

template <class T>
T weight_of(InstructionSet set, T x) {
  return weights_of<T>(set, {x}).front();
}

/// The least x whose 2^x is not denormal.
template <class T>
constexpr T lowest = static_cast<T>(std::numeric_limits<T>::min_exponent - 1);

/// The whole range in which 2^x is neither 0 nor denormal, and around the points where the parts
/// of the polynomial are joined, from either side.
template <class T>
std::vector<T> normal_range() {
  constexpr int points = 100000;
  std::vector<T> x;
  for (int n = 0; n <= points; ++n) {
    x.push_back(static_cast<T>(static_cast<double>(lowest<T>) * n / points));
  }
  for (T join = lowest<T>; join <= T(0); join += T(0.5)) {
    T above = join, below = join;
    for (int step = 0; step < 3; ++step) {
      if (above <= T(0)) x.push_back(above);
      if (below >= lowest<T>) x.push_back(below);
      above = std::nextafter(above, T(1));
      below = std::nextafter(below, std::numeric_limits<T>::lowest());
    }
  }
  for (int e = -160; e < 0; ++e) x.push_back(static_cast<T>(-std::ldexp(1.0, e)));
  std::sort(x.begin(), x.end());
  return x;
}

/// Half a unit for the last sum, the rest for the one before it and the coefficients; without fused
/// multiply-add for the product before the last sum, too.
template <class T>
void check_accuracy() {
  const std::vector<T> x = normal_range<T>();
  std::vector<long double> exact(x.size());
  std::transform(x.begin(), x.end(), exact.begin(),
                 [](T number) { return std::exp2(static_cast<long double>(number)); });
  for (const auto set : supported_instruction_sets()) {
    const std::vector<T> y = weights_of(set, x);
    long double worst = 0;
    T worst_at = 0;
    for (std::size_t n = 0; n < x.size(); ++n) {
      const long double error =
          std::abs(static_cast<long double>(y[n]) - exact[n]) / unit_in_last_place<T>(exact[n]);
      if (!(error <= worst)) {
        worst = error;
        worst_at = x[n];
      }
    }
    CAPTURE(name_of(set), sizeof(T), worst_at, worst);
    CHECK(worst <= (set == InstructionSet::generic ? 1.1L : 1.0L));
  }
}

template <class T>
void check_special_values(InstructionSet set) {
  using Limits = std::numeric_limits<T>;
  CAPTURE(name_of(set), sizeof(T));
  CHECK(weight_of(set, T(0)) == T(1));
  CHECK(weight_of(set, -T(0)) == T(1));
  CHECK(weight_of(set, -Limits::denorm_min()) == T(1));
  for (T x : {-Limits::infinity(), Limits::lowest(), T(-1e30), T(-1e6), 2 * lowest<T>}) {
    CAPTURE(x);
    CHECK(std::bit_cast<BitsOf<T>>(weight_of(set, x)) == 0);  // not -0
  }
  CHECK(is_nan(weight_of(set, Limits::quiet_NaN())));
  CHECK(is_nan(weight_of(set, -Limits::quiet_NaN())));
  CHECK(weight_of(set, lowest<T>) == Limits::min());
}

/// All that a NaN can carry in its lowest bits, where integers are taken from numbers.
template <class T>
void check_nan_payloads(InstructionSet set) {
  const auto quiet = std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::quiet_NaN());
  std::vector<T> x;
  for (unsigned payload = 0; payload < 8192; ++payload) {
    x.push_back(std::bit_cast<T>(static_cast<BitsOf<T>>(quiet + payload)));
  }
  const std::vector<T> y = weights_of(set, x);
  CAPTURE(name_of(set), sizeof(T));
  CHECK(std::count_if(y.begin(), y.end(), [](T weight) { return !is_nan(weight); }) == 0);
}

/// Below the normal numbers: 0, or the number that a denormal can be, within one of its steps.
template <class T>
void check_below_normal(InstructionSet set) {
  using Limits = std::numeric_limits<T>;
  for (int n = 1; n <= 4 * Limits::digits; ++n) {
    const T x = lowest<T> - static_cast<T>(n) / 3;
    const long double exact = std::exp2(static_cast<long double>(x));
    const T weight = weight_of(set, x);
    const long double error = std::abs(static_cast<long double>(weight) - exact);
    CAPTURE(name_of(set), sizeof(T), x, weight);
    const bool zero_or_near =
        weight == T(0) || error <= static_cast<long double>(Limits::denorm_min());
    CHECK(zero_or_near);
  }
}

template <class T>
void check_order(InstructionSet set) {
  const std::vector<T> x = normal_range<T>(), y = weights_of(set, x);
  int falls = 0, above_one = 0;
  for (std::size_t n = 0; n < x.size(); ++n) {
    if (n > 0 && y[n] < std::nextafter(y[n - 1], T(0))) ++falls;
    if (x[n] < T(0) && y[n] > T(1)) ++above_one;
  }
  CAPTURE(name_of(set), sizeof(T));
  CHECK(falls == 0);
  CHECK(above_one == 0);
}

template <class T>
void check_just_below_0(InstructionSet set) {
  std::vector<T> x;
  for (T near = 0; x.size() < 1000; x.push_back(near)) near = std::nextafter(near, T(-1));
  for (int n = 1; n < 10000; ++n) x.push_back(static_cast<T>(-n * 1e-5));
  const std::vector<T> y = weights_of(set, x);
  CAPTURE(name_of(set), sizeof(T));
  CHECK(*std::max_element(y.begin(), y.end()) <= T(1));
}

/// Every length up to two vectors and one number more, each number another; what lies behind the
/// last stays.
template <class T>
void check_lengths(InstructionSet set) {
  const auto& run = kernels::vector_functions_of<T>(set);
  constexpr Index lanes = 64 / static_cast<Index>(sizeof(T));  // most of any set
  for (Index count = 0; count <= 2 * lanes + 1; ++count) {
    std::vector<T> x(static_cast<std::size_t>(count)), y(static_cast<std::size_t>(count) + 3, T(7));
    for (std::size_t n = 0; n < x.size(); ++n) x[n] = T(-0.3) * static_cast<T>(n * n);
    run.weights_of(x.data(), count, y.data() + 1);
    CAPTURE(name_of(set), sizeof(T), count);
    CHECK(y.front() == T(7));
    CHECK(y[y.size() - 2] == T(7));
    CHECK(y.back() == T(7));
    bool own = true;
    for (std::size_t n = 0; n < x.size(); ++n) own = own && y[n + 1] == weight_of(set, x[n]);
    CHECK(own);
  }
}

/// check(0.0f, set) and check(0.0, set) for each instruction set.
template <class F>
void for_each_vectorised(F&& check) {
  for (const auto set : supported_instruction_sets()) {
    check(float{}, set);
    check(double{}, set);
  }
}

}  // namespace

TEST_CASE(
    "a weight is within a unit in the last place of 2^x, 1.1 units without fused multiply-add",
    "[simd]") {
  check_accuracy<float>();
  check_accuracy<double>();
}

TEST_CASE("the weight of 0 is exactly 1, that of -inf and far below 0, and NaN stays NaN",
          "[simd]") {
  for_each_vectorised([](auto t, auto set) { check_special_values<decltype(t)>(set); });
}

TEST_CASE("the weight of a NaN is NaN whatever the NaN carries", "[simd]") {
  for_each_vectorised([](auto t, auto set) { check_nan_payloads<decltype(t)>(set); });
}

TEST_CASE("a weight below the normal numbers is 0 or the denormal number", "[simd]") {
  for_each_vectorised([](auto t, auto set) { check_below_normal<decltype(t)>(set); });
}

TEST_CASE("a weight never falls by more than a unit in the last place as x grows, nor exceeds 1",
          "[simd]") {
  for_each_vectorised([](auto t, auto set) { check_order<decltype(t)>(set); });
}

TEST_CASE("a weight just below 0 is at most 1", "[simd]") {
  for_each_vectorised([](auto t, auto set) { check_just_below_0<decltype(t)>(set); });
}

TEST_CASE("each of any number of lanes has the weight of its own number", "[simd]") {
  for_each_vectorised([](auto t, auto set) { check_lengths<decltype(t)>(set); });
}

TEST_CASE("the unit of a weight makes it a power of e", "[simd]") {
  // log2(e) rounded to float is off by at most half a unit, 2^-24.
  CHECK(std::abs(static_cast<double>(simd::generic::weight_unit<float>()) - 1.4426950408889634) <=
        std::ldexp(1.0, -24));
  CHECK(simd::generic::weight_unit<double>() == 1.4426950408889634);
  CHECK(simd::generic::weight_unit<long double>() == 1.0L);
}

TEST_CASE("a weight of long double is the standard library's e^x", "[simd]") {
  const std::vector<long double> x = {-11355.0L, -1.0L, -0.1L, 0.0L};
  const std::vector<long double> y = weights_of(InstructionSet::generic, x);
  for (std::size_t n = 0; n < x.size(); ++n) CHECK(y[n] == std::exp(x[n]));
}

}  // namespace simd_exp
