// What a gradient check found, and how it says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "headwise/testing/number.hpp"

namespace headwise::inline v0_1 {

/// One input: how far its analytic gradient is from differences, and where it is furthest.
///
///   error = max|analytic - numeric| / (max|numeric| + 1e-3 max|dy|)
///
/// The maxima go over the elements of the input, or over the random directions. The second term
/// keeps the rule from blowing up where the true gradient is 0.
struct GradientError {
  std::string input;          // its name
  std::vector<Index> index;   // of the worst element; empty where only a direction is known
  std::vector<Index> output;  // of a whole Jacobian: the element of y that is differentiated
  int direction = -1;         // the worst random direction; -1 where every element was differenced
  long double analytic = 0;   // at that element, or along that direction
  long double numeric = 0;    // likewise
  double error = 0;           // the largest double where a value is NaN or infinite
  Index compared = 0;         // elements or directions

  /// `dx[1, 0, 3]`, `dx[1, 0, 3] of y[2]`, `dx along random direction 5`
  std::string where() const {
    std::string text = "d" + input;
    if (!index.empty()) text += format_extents(index);
    if (!output.empty()) text += " of y" + format_extents(output);
    if (direction >= 0) {
      text += (index.empty() ? " along random direction " : " found in random direction ") +
              std::to_string(direction);
    }
    return text;
  }
};

/// All inputs of a check. Converts to bool where a condition is expected; prints as its message.
struct GradientReport {
  std::vector<GradientError> inputs;  // in the order in which they were added
  double tolerance = 0;               // what ok() holds errors against
  std::uint64_t seed = 0;             // of the random directions

  /// The input with the largest error. Throws ArgumentError where nothing was checked.
  const GradientError& worst() const {
    require(!inputs.empty(), "GradientReport",
            "inputs are 0, expected at least one that was checked");
    return *std::max_element(inputs.begin(), inputs.end(),
                             [](const auto& a, const auto& b) { return a.error < b.error; });
  }

  /// Whether no input is further off. Throws ArgumentError where nothing was checked.
  bool ok(double within) const { return worst().error <= within; }
  /// The same within `tolerance`.
  bool ok() const { return ok(tolerance); }
  /// ok().
  explicit operator bool() const { return ok(); }

  /// `dx[1, 0, 3]: analytic 0.123, numeric 0.124, error 0.003 > 1e-09 (seed 7); dw error 2e-11`
  std::string message(double within) const {
    const GradientError& first = worst();
    const auto values = detail::format_apart(first.analytic, first.numeric);
    std::string text = first.compared == 0
                           ? "d" + first.input + ": no elements"
                           : first.where() + ": analytic " + values[0] + ", numeric " + values[1];
    text += ", error " + detail::format_error(first.error) + (ok(within) ? " <= " : " > ") +
            detail::format_number(within) + " (seed " + std::to_string(seed) + ")";
    for (const GradientError& other : inputs) {
      if (&other == &first) continue;
      text += "; d" + other.input + " error " + detail::format_error(other.error);
    }
    return text;
  }
  /// The same within `tolerance`.
  std::string message() const { return message(tolerance); }

  friend std::ostream& operator<<(std::ostream& out, const GradientReport& report) {
    return out << report.message();
  }
};

}  // namespace headwise::inline v0_1
