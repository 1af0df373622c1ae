// Checks an op that is a pair of functions, forward and backward, without a loss of its own: the
// whole Jacobian where it is small, random vector-Jacobian products where it is large.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/gradient_check.hpp"

namespace headwise::inline v0_1 {

namespace detail {
inline namespace HEADWISE_CODE {

template <class T, class U, int R>
std::vector<T> flatten(const In<U, R>& tensor) {
  std::vector<T> values;
  for_each_index(tensor.shape(),
                 [&](const Shape<R>& index) { values.push_back(static_cast<T>(tensor(index))); });
  return values;
}

/// A zeroed tensor of a tensor's type and shape.
template <class T, int R>
Tensor<T, R> zeros_like(const In<T, R>& tensor) {
  return Tensor<T, R>(tensor.shape());
}

/// dx = backward(dy), of the shape of x.
template <class Backward, class Dy, class T, int R>
auto checked_backward(Backward& backward, const Dy& dy, const In<T, R>& x) {
  auto dx = backward(dy);
  require_shape("check_op", "dx from backward", dx, x.shape(), "the shape of x");
  return dx;
}

/// Every dy[i] / dx[j]: rows from backward of unit vectors, columns from differences.
template <class T, int R, class Forward, class Backward, class Y>
GradientError whole_jacobian(Forward& forward, Backward& backward, Tensor<T, R>& x, const Y& y,
                             const GradientCheckOptions& options) {
  auto dy = zeros_like(y);
  const auto outputs = static_cast<std::size_t>(y.size());
  const auto inputs = static_cast<std::size_t>(x.size());

  std::vector<T> analytic;  // [outputs, inputs]
  for (T& unit : dy) {
    unit = 1;
    const auto row = flatten<T>(checked_backward(backward, dy, x));
    analytic.insert(analytic.end(), row.begin(), row.end());
    unit = 0;
  }

  WorstGradient<T> worst;
  const auto values = [&] { return flatten<T>(forward(std::as_const(x))); };
  const signed char up = 1;
  for (std::size_t j = 0; j < inputs; ++j) {
    T* element = x.data() + j;
    const auto column =
        derivative<T>(options.stencil, chosen_step<T>(options), {&element, 1}, {&up, 1}, values);
    for (std::size_t i = 0; i < outputs; ++i) {
      worst.add(analytic[i * inputs + j], column[i], i * inputs + j);
    }
  }
  GradientError error = worst.report("x", 1);
  if (error.compared > 0) {
    error.index = unflatten(index_of(x.shape()), worst.where() % inputs);
    error.output = unflatten(index_of(y.shape()), worst.where() / inputs);
  }
  return error;
}

}  // namespace HEADWISE_CODE
}  // namespace detail

inline namespace HEADWISE_CODE {

/// Holds backward against the differences of forward at x.
///
/// forward   y  = forward(x)     a Tensor of T; called with perturbed copies of x
/// backward  dx = backward(dy)   the vector-Jacobian product at x, which it knows by itself;
///                               called before forward is perturbed, after one forward of x
/// x         [...]               read
///
/// Where x and y have at most full_below scalars each, every element of the Jacobian is compared;
/// else backward of one random dy of signs is checked as GradientCheck does it. max_dy is 1.
///
/// Throws ShapeError unless dx has the shape of x.
template <class Forward, class Backward, class T, int R>
GradientReport check_op(Forward&& forward, Backward&& backward, const In<T, R>& x,
                        GradientCheckOptions options = {}) {
  static_assert(differences_are_exact_enough<T>,
                "finite differences are for double or wider: check the op in double, and hold "
                "float results against double ones");
  detail::require_valid(options, "check_op");
  options.max_dy = 1;
  Tensor<T, R> moved = contiguous(x);
  const auto y = forward(std::as_const(moved));
  static_assert(std::is_same_v<typename decltype(y)::value_type, T>,
                "forward returns a tensor of the type of x");

  if (std::max<Index>(x.size(), y.size()) <= options.full_below) {
    return {{detail::whole_jacobian(forward, backward, moved, y, options)},
            options.tolerance,
            options.seed};
  }
  auto dy = detail::zeros_like(y);
  const auto signs = detail::random_signs(static_cast<std::size_t>(y.size()), options.seed, 0, -1);
  std::copy(signs.begin(), signs.end(), dy.begin());
  const auto dx = detail::checked_backward(backward, std::as_const(dy), moved);
  GradientCheck<T> check(options);
  check.input("x", moved, dx);
  return check.run([&] { return weighted_sum(dy, forward(std::as_const(moved))); });
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
