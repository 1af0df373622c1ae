// Whether two tours came home with the same: NaN where the other has NaN, the same infinities, and
// finite numbers that differ by rounding only. Never compiled with -ffast-math, which would fold
// the questions.
#pragma once

#if defined(__FAST_MATH__)
#error "the comparison must be compiled without -ffast-math"
#endif

#include <algorithm>
#include <cmath>

#include "tour/named.hpp"

namespace headwise_tests {

struct Comparison {
  std::vector<std::string> differences;
  long finite = 0, not_finite = 0;
  double worst_float = 0, worst_double = 0;  // of |x - y| / the greatest |x| of the result
};

/// Rounding in units of epsilon, relative to a result's greatest number: sums of up to 200 terms,
/// two of them in a row, and exp; differently fused or ordered, they differ by a few tens.
inline double allowed_rounding(const std::string& name) {
  const bool single = name.starts_with("float");
  return 100 * (single ? 0x1p-23 : 0x1p-52);
}

inline void compare_one(const Named& x, const Named& y, Comparison& comparison) {
  double greatest = 0;
  for (const double value : x.values) {
    if (std::isfinite(value)) greatest = std::max(greatest, std::abs(value));
  }
  double& worst = x.name.starts_with("float") ? comparison.worst_float : comparison.worst_double;
  const double allowed = x.exact ? 0 : allowed_rounding(x.name) * greatest;
  bool same = x.values.size() == y.values.size();
  for (std::size_t n = 0; same && n < x.values.size(); ++n) {
    const double a = x.values[n], b = y.values[n];
    if (std::isfinite(a)) {
      ++comparison.finite;
      same = std::abs(a - b) <= allowed;
      if (greatest > 0 && std::isfinite(b)) worst = std::max(worst, std::abs(a - b) / greatest);
    } else {
      ++comparison.not_finite;
      same = std::isnan(a) ? std::isnan(b) : a == b;
    }
    if (same) continue;
    comparison.differences.push_back(x.name + ": element " + std::to_string(n) + " is " +
                                     std::to_string(b) + ", expected " + std::to_string(a));
    return;
  }
  if (!same) comparison.differences.push_back(x.name + " has another size");
}

inline Comparison compare(const std::vector<Named>& expected, const std::vector<Named>& got) {
  Comparison comparison;
  if (expected.size() != got.size()) {
    comparison.differences.push_back("another number of results");
    return comparison;
  }
  for (std::size_t n = 0; n < expected.size(); ++n) {
    if (expected[n].name != got[n].name) {
      comparison.differences.push_back(got[n].name + " where " + expected[n].name + " belongs");
    } else {
      compare_one(expected[n], got[n], comparison);
    }
  }
  return comparison;
}

}  // namespace headwise_tests
