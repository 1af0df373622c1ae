// The natural logarithm by the vectors of every instruction set of this processor, against the
// standard library in long double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "support/catch.hpp"
#include "support/float_bits.hpp"
#include "support/instruction_sets.hpp"

namespace simd_log {

using namespace headwise;
using headwise_tests::BitsOf;
using headwise_tests::is_nan;
using headwise_tests::supported_instruction_sets;
using headwise_tests::unit_in_last_place;

namespace {

template <class T>
std::vector<T> logs_of(InstructionSet set, const std::vector<T>& x) {
  std::vector<T> y(x.size());
  kernels::vector_functions_of<T>(set).logs_of(x.data(), static_cast<Index>(x.size()), y.data());
  return y;
}

template <class T>
T log_of(InstructionSet set, T x) {
  return logs_of<T>(set, {x}).front();
}

/// The three numbers on either side of `middle`, and itself.
template <class T>
void append_around(T middle, std::vector<T>& x) {
  T above = middle, below = middle;
  x.push_back(middle);
  for (int step = 0; step < 3; ++step) {
    x.push_back(above = std::nextafter(above, std::numeric_limits<T>::max()));
    x.push_back(below = std::nextafter(below, T(0)));
  }
}

/// Sums of a softmax, all magnitudes that are normal, and around powers of 2, the numbers where
/// exponents are joined, and 1.
template <class T>
std::vector<T> normal_range() {
  using Limits = std::numeric_limits<T>;
  constexpr int points = 100000;
  std::vector<T> x;
  for (int n = 0; n <= points; ++n) {
    const double part = static_cast<double>(n) / points;
    x.push_back(static_cast<T>(std::exp2(-1 + 2 * part)));  // around 1
    x.push_back(static_cast<T>(1 + 65536 * part * part));   // sums
    x.push_back(static_cast<T>(std::exp2((Limits::max_exponent - 0.01) * (2 * part - 1) + 1)));
  }
  for (int e = Limits::min_exponent + 1; e < Limits::max_exponent; ++e) {
    append_around(std::ldexp(T(1), e), x);
    append_around(static_cast<T>(std::ldexp(std::sqrt(0.5), e)), x);
  }
  for (int e = 1; e < Limits::digits; ++e) {
    append_around(1 + std::ldexp(T(1), -e), x);
    append_around(1 - std::ldexp(T(1), -e), x);
  }
  std::erase_if(x, [](T number) { return !(number >= Limits::min() && number <= Limits::max()); });
  return x;
}

template <class T>
void check_accuracy() {
  const std::vector<T> x = normal_range<T>();
  for (const auto set : supported_instruction_sets()) {
    const std::vector<T> y = logs_of(set, x);
    long double worst = 0;
    T worst_at = 0;
    for (std::size_t n = 0; n < x.size(); ++n) {
      const long double exact = std::log(static_cast<long double>(x[n]));
      const long double error =
          std::abs(static_cast<long double>(y[n]) - exact) / unit_in_last_place<T>(exact);
      if (!(error <= worst)) {
        worst = error;
        worst_at = x[n];
      }
    }
    CAPTURE(name_of(set), sizeof(T), worst_at, worst);
    CHECK(worst <= 1.0L);
  }
}

template <class T>
void check_special_values(InstructionSet set) {
  using Limits = std::numeric_limits<T>;
  CAPTURE(name_of(set), sizeof(T));
  CHECK(std::bit_cast<BitsOf<T>>(log_of(set, T(1))) == 0);  // not -0
  const auto bits = [](T x) { return std::bit_cast<BitsOf<T>>(x); };
  CHECK(bits(log_of(set, Limits::infinity())) == bits(Limits::infinity()));
  CHECK(bits(log_of(set, T(0))) == bits(-Limits::infinity()));
  CHECK(is_nan(log_of(set, Limits::quiet_NaN())));
  CHECK(is_nan(log_of(set, -Limits::quiet_NaN())));
}

/// However many stand beside it, and wherever.
template <class T>
void check_lanes(InstructionSet set) {
  std::vector<T> x;
  for (int n = 0; n < 40; ++n) x.push_back(1 + static_cast<T>(n * n) / 7);
  for (std::size_t count = 0; count <= x.size(); ++count) {
    const std::vector<T> y =
        logs_of(set, std::vector<T>(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(count)));
    CAPTURE(name_of(set), sizeof(T), count);
    bool same = true;
    for (std::size_t n = 0; n < count; ++n) same = same && y[n] == log_of(set, x[n]);
    CHECK(same);
  }
}

}  // namespace

TEST_CASE("simd: log lies within one unit in the last place of the exact value") {
  check_accuracy<float>();
  check_accuracy<double>();
}

TEST_CASE("simd: log is exactly 0 at 1, infinite at 0 and infinity, and hands NaN on") {
  for (const auto set : supported_instruction_sets()) {
    check_special_values<float>(set);
    check_special_values<double>(set);
  }
}

TEST_CASE("simd: log gives a number the same bits in every lane") {
  for (const auto set : supported_instruction_sets()) {
    check_lanes<float>(set);
    check_lanes<double>(set);
  }
}

}  // namespace simd_log
