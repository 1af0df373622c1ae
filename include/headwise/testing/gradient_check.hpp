// Checks hand-derived gradients against finite differences, for anybody's function and under any
// test framework or none. Float is refused: its differences are good to two digits. Check the
// formulas in double or long double, then hold float results against double ones.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/testing/gradient_check_options.hpp"
#include "headwise/testing/gradient_report.hpp"

namespace headwise::inline v0_1 {

namespace detail {
inline namespace HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// |value|, or the largest finite value for what is not a number to compute with.
template <class T>
T magnitude(const T& value) {
  return is_finite_number(value) ? std::abs(value) : (std::numeric_limits<T>::max)();
}

/// Finds the worst of many comparisons.
template <class T>
class WorstGradient {
 public:
  void add(const T& analytic, const T& numeric, std::size_t where) {
    const T difference = magnitude<T>(analytic - numeric);
    if (is_finite_number(numeric)) largest_ = std::max<T>(largest_, std::abs(numeric));
    if (compared_++ == 0 || difference > difference_) {
      difference_ = difference;
      analytic_ = analytic;
      numeric_ = numeric;
      where_ = where;
    }
  }

  std::size_t where() const { return where_; }

  GradientError report(std::string input, double max_dy) const {
    GradientError result;
    result.input = std::move(input);
    result.analytic = analytic_;
    result.numeric = numeric_;
    result.compared = compared_;
    const T scale = largest_ + static_cast<T>(1e-3) * static_cast<T>(max_dy);
    if (difference_ == (std::numeric_limits<T>::max)()) {
      result.error = no_error_bound;
    } else if (difference_ > 0) {
      result.error = static_cast<double>(std::min<T>(no_error_bound, difference_ / scale));
    }
    return result;
  }

 private:
  T largest_ = 0, difference_ = 0, analytic_ = 0, numeric_ = 0;
  std::size_t where_ = 0;
  Index compared_ = 0;
};

template <class T>
T signed_sum(std::span<const T> values, std::span<const signed char> signs) {
  T sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += static_cast<T>(signs[i]) * values[i];
  return sum;
}

HEADWISE_STRICT_MATH_END

/// +1 or -1 for each element. Signs, not normal numbers: each direction sees each element in full.
inline std::vector<signed char> random_signs(std::size_t count, std::uint64_t seed,
                                             std::size_t input, int direction) {
  const auto key = philox_key(seed, static_cast<std::uint32_t>(direction), input);
  std::vector<signed char> signs(count);
  std::array<std::uint32_t, 4> words{};  // 128 signs
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 128 == 0) {
      const std::uint64_t block = i / 128;
      words =
          philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32)}, key);
    }
    const std::uint32_t bit = words[i / 32 % 4] >> (i % 32) & 1u;
    signs[i] = static_cast<signed char>(bit == 0u ? -1 : 1);
  }
  return signs;
}

/// The index of the element at a place in row-major order.
inline std::vector<Index> unflatten(const std::vector<Index>& shape, std::size_t place) {
  std::vector<Index> index(shape.size());
  auto rest = static_cast<Index>(place);
  for (std::size_t r = shape.size(); r-- > 0;) {
    index[r] = rest % shape[r];
    rest /= shape[r];
  }
  return index;
}

}  // namespace HEADWISE_CODE
}  // namespace detail

inline namespace HEADWISE_CODE {

/// sum(dy y): the loss whose gradient is the vector-Jacobian product of dy. Summed in T. Throws
/// ShapeError unless dy has the shape of y.
template <class D, class T, int R>
T weighted_sum(const In<D, R>& dy, const In<T, R>& y) {
  require_shape("weighted_sum", "dy", dy, y.shape(), "the shape of y");
  T sum = 0;
  for_each_index(y.shape(),
                 [&](const Shape<R>& index) { sum += static_cast<T>(dy(index)) * y(index); });
  return sum;
}

/// Holds analytic gradients of a loss against its differences, input by input.
///
///   GradientCheck<double> check({.stencil = Stencil::five_point});
///   check.input("x", x, dx);
///   check.input("w", w, dw);
///   GradientReport report = check.run([&] { return weighted_sum(dy, forward(x, w)); });
///   if (!report) std::cout << report << '\n';
///
/// Inputs of up to full_below scalars are differenced element by element. Larger ones along random
/// directions of signs u, <dx, u> against the slope of the loss; a direction that disagrees is
/// halved until it names an element. NaN or infinity on either side is a failure.
///
/// Work   2 losses (central) or 4 (five_point) an element or direction.
template <class T = double>
class GradientCheck {
  static_assert(differences_are_exact_enough<T>,
                "finite differences are for double or wider: check the formula in double, and hold "
                "float results against double ones");

 public:
  /// Throws ArgumentError for options out of range.
  explicit GradientCheck(const GradientCheckOptions& options = {}) : options_(options) {
    detail::require_valid(options, "GradientCheck");
  }

  /// Adds an input under its name.
  ///
  /// x   [...]   moved in place by run, and put back to the same bits, also if the loss throws;
  ///             viewed, so it must outlive run; no two elements in one place
  /// dx  [...]   the analytic gradient, copied; of any scalar type
  ///
  /// Throws ShapeError unless the shapes agree.
  template <class X, class A, int R>
  void input(std::string name, Out<X, R> x, const In<A, R>& dx) {
    static_assert(std::is_same_v<X, T>,
                  "GradientCheck<T> moves inputs of type T: name the type of this input there");
    require_countable("GradientCheck", name, x);
    require_distinct("GradientCheck", {name, x});
    require_shape("GradientCheck", "d" + name, dx, x.shape(), "the shape of " + name);
    Input added{std::move(name), detail::index_of(x.shape()), {}, {}};
    for_each_index(x.shape(), [&](const Shape<R>& index) {
      added.elements.push_back(&x(index));
      added.gradient.push_back(static_cast<T>(dx(index)));
    });
    inputs_.push_back(std::move(added));
  }

  /// Differences the loss, a function of no arguments that reads the inputs and returns a T.
  /// Throws ArgumentError where there is no input; what the loss throws passes through.
  template <class Loss>
  GradientReport run(Loss&& loss) const {
    static_assert(std::is_same_v<std::invoke_result_t<Loss&>, T>,
                  "the loss of GradientCheck<T> returns a T: sum it in the type of its inputs");
    require(!inputs_.empty(), "GradientCheck", "inputs are 0, expected at least one before run");
    return report_of([&loss] { return std::vector<T>{loss()}; });
  }

 private:
  using Losses = std::function<std::vector<T>()>;

  struct Input {
    std::string name;
    std::vector<Index> shape;
    std::vector<T*> elements;
    std::vector<T> gradient;
  };

  GradientReport report_of(const Losses& losses) const {
    GradientReport report{{}, options_.tolerance, options_.seed};
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const bool full = static_cast<Index>(inputs_[i].elements.size()) <= options_.full_below;
      report.inputs.push_back(full ? by_element(inputs_[i], losses)
                                   : by_direction(inputs_[i], i, losses));
    }
    return report;
  }

  T slope(const Input& input, std::size_t begin, std::size_t count,
          std::span<const signed char> signs, const Losses& losses) const {
    return detail::derivative<T>(options_.stencil, detail::chosen_step<T>(options_),
                                 std::span(input.elements).subspan(begin, count), signs, losses)[0];
  }
  T slope(const Input& input, std::size_t element, const Losses& losses) const {
    const signed char forward = 1;
    return slope(input, element, 1, {&forward, 1}, losses);
  }

  GradientError by_element(const Input& input, const Losses& losses) const {
    detail::WorstGradient<T> worst;
    for (std::size_t i = 0; i < input.elements.size(); ++i) {
      worst.add(input.gradient[i], slope(input, i, losses), i);
    }
    GradientError error = worst.report(input.name, options_.max_dy);
    if (error.compared > 0) error.index = detail::unflatten(input.shape, worst.where());
    return error;
  }

  GradientError by_direction(const Input& input, std::size_t number, const Losses& losses) const {
    const std::span<const T> gradient(input.gradient);
    detail::WorstGradient<T> worst;
    for (int d = 0; d < options_.directions; ++d) {
      const auto signs = detail::random_signs(gradient.size(), options_.seed, number, d);
      worst.add(detail::signed_sum<T>(gradient, signs),
                slope(input, 0, gradient.size(), signs, losses), static_cast<std::size_t>(d));
    }
    GradientError error = worst.report(input.name, options_.max_dy);
    error.direction = static_cast<int>(worst.where());
    if (error.error <= options_.tolerance) return error;

    const auto signs =
        detail::random_signs(gradient.size(), options_.seed, number, error.direction);
    const std::size_t element = locate(input, signs, losses);
    error.index = detail::unflatten(input.shape, element);
    error.analytic = gradient[element];
    error.numeric = slope(input, element, losses);
    return error;
  }

  /// An element that is to blame for a direction: the half that disagrees more, again and again.
  std::size_t locate(const Input& input, std::span<const signed char> signs,
                     const Losses& losses) const {
    const auto disagreement = [&](std::size_t begin, std::size_t count) {
      const auto part = signs.subspan(begin, count);
      const T analytic =
          detail::signed_sum<T>(std::span(input.gradient).subspan(begin, count), part);
      return detail::magnitude<T>(analytic - slope(input, begin, count, part, losses));
    };
    std::size_t begin = 0, count = input.elements.size();
    while (count > 1) {
      const std::size_t half = count / 2;
      const bool first = disagreement(begin, half) >= disagreement(begin + half, count - half);
      begin += first ? 0 : half;
      count = first ? half : count - half;
    }
    return begin;
  }

  GradientCheckOptions options_;
  std::vector<Input> inputs_;
};

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
