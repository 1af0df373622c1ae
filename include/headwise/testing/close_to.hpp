// Holds one tensor against another and says where they differ most. Truthful in programs that are
// compiled with -ffast-math: a NaN is seen by its bits, the arithmetic stays strict.
#pragma once

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "headwise/tensor/dual.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/testing/number.hpp"

namespace headwise::inline v0_1 {

/// What close_to is asked for besides its tolerance.
struct CloseToOptions {
  double floor = 0;  // max|expected| counts as at least this: for tensors that may be all zero
};

/// What close_to and bitwise_equal found. Converts to bool where a condition is expected; prints
/// as its message.
struct Closeness {
  bool ok = true;            // whether every element passes
  std::vector<Index> index;  // of the worst element; empty where there are no elements
  long double actual = 0;    // there
  long double expected = 0;  // there
  double error = 0;          // there; the largest double where no difference can be formed
  double tolerance = 0;      // what the error was held against
  Index failures = 0;        // elements that fail
  Index count = 0;           // elements compared

  /// ok.
  explicit operator bool() const { return ok; }

  /// `[1, 2] is 0.5, expected 0.25, error 0.1 > 1e-06; 3 of 24 elements fail`; of bits
  /// `[1, 2] is 0.5, expected 0.25, of other bits; 3 of 24 elements fail`
  std::string message() const {
    if (count == 0) return "no elements, nothing differs";
    const auto values = detail::format_apart(actual, expected);
    const bool numbers = detail::is_finite_number(actual) && detail::is_finite_number(expected);
    const std::string held = numbers && error == detail::no_error_bound
                                 ? "of other bits"
                                 : "error " + detail::format_error(error) + (ok ? " <= " : " > ") +
                                       detail::format_number(tolerance);
    return format_extents(index) + " is " + values[0] + ", expected " + values[1] + ", " + held +
           "; " + std::to_string(failures) + " of " + std::to_string(count) + " elements fail";
  }

  friend std::ostream& operator<<(std::ostream& out, const Closeness& closeness) {
    return out << closeness.message();
  }
};

inline namespace HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Whether two tensors are equal up to a share of the largest expected value:
///
///   |actual - expected| <= tolerance max(max|expected|, floor)      for every element
///
/// actual     [...]   any scalar type
/// expected   [...]   any scalar type; NaN equals NaN, infinities equal those of their sign, and
///                    neither counts in max|expected|
/// tolerance  >= 0; with 0 the values have to be equal (0 equals -0)
///
/// Differences are formed in long double. Empty tensors are close.
/// Throws ShapeError unless the shapes agree, ArgumentError for a tolerance or floor below 0.
template <class A, class E, int R>
[[nodiscard]] Closeness close_to(const In<A, R>& actual, const In<E, R>& expected, double tolerance,
                                 const CloseToOptions& options = {}) {
  static_assert(!is_dual<A> && !is_dual<E>,
                "close_to compares numbers: of dual ones, pass values(x) and derivatives(x)");
  require_shape("close_to", "actual", actual, expected.shape(), "the shape of expected");
  require(detail::is_finite_number(tolerance) && tolerance >= 0, "close_to", [&] {
    return "tolerance is " + detail::format_number(tolerance) + ", expected a finite number >= 0";
  });
  require(detail::is_finite_number(options.floor) && options.floor >= 0, "close_to", [&] {
    return "floor is " + detail::format_number(options.floor) + ", expected a finite number >= 0";
  });

  long double scale = options.floor;
  for_each_index(expected.shape(), [&](const Shape<R>& index) {
    const E& e = expected(index);
    if (detail::is_finite_number(e))
      scale = std::max<long double>(scale, std::abs(static_cast<long double>(e)));
  });

  Closeness result;
  result.tolerance = tolerance;
  result.count = actual.size();
  long double worst = -1;
  for_each_index(actual.shape(), [&](const Shape<R>& index) {
    const A& a = actual(index);
    const E& e = expected(index);
    const detail::NumberKind kind = detail::number_kind(a);
    const auto wide_a = static_cast<long double>(a);
    const auto wide_e = static_cast<long double>(e);

    long double error = detail::no_error_bound;
    if (kind == detail::number_kind(e)) {
      if (kind == detail::NumberKind::nan) {
        error = 0;
      } else if (kind == detail::NumberKind::infinite) {
        if (std::signbit(wide_a) == std::signbit(wide_e)) error = 0;
      } else if (wide_a == wide_e) {
        error = 0;
      } else if (scale > 0) {
        error = std::min<long double>(error, std::abs(wide_a - wide_e) / scale);
      }
    }
    if (error > static_cast<long double>(tolerance)) ++result.failures;
    if (error > worst) {
      worst = error;
      result.index = detail::index_of(index);
      result.actual = wide_a;
      result.expected = wide_e;
      result.error = static_cast<double>(error);
    }
  });
  result.ok = result.failures == 0;
  return result;
}

HEADWISE_STRICT_MATH_END

/// Whether two tensors hold the same bits: 0 differs from -0, and one NaN from another.
/// Names the first element that differs. Throws ShapeError unless the shapes agree.
template <class T, int R>
[[nodiscard]] Closeness bitwise_equal(const In<T, R>& actual, const In<T, R>& expected) {
  require_shape("bitwise_equal", "actual", actual, expected.shape(), "the shape of expected");
  Closeness result;
  result.count = actual.size();
  for_each_index(actual.shape(), [&](const Shape<R>& index) {
    const bool equal = detail::same_bits(actual(index), expected(index));
    if (result.index.empty() || (!equal && result.failures == 0)) {
      result.index = detail::index_of(index);
      result.actual = detail::widest(actual(index));
      result.expected = detail::widest(expected(index));
    }
    if (!equal) ++result.failures;
  });
  result.ok = result.failures == 0;
  if (!result.ok) result.error = detail::no_error_bound;
  return result;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
