// Floats that are rounded to 16 bits by the conversion of single numbers, and how far that leads.
#pragma once

#include <cmath>

#include "headwise/runtime/saved.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise_tests {

/// x becomes the nearest numbers of U.
template <headwise::NarrowFloat U, int R>
void round_all(headwise::Out<float, R> x) {
  using headwise::convert_float;
  headwise::for_each_index(x.shape(), [&](const headwise::Shape<R>& at) {
    x(at) = convert_float<float>(convert_float<U>(x(at)));
  });
}
/// The same of a tensor that owns its elements.
template <headwise::NarrowFloat U, int R>
void round_all(headwise::Tensor<float, R>& x) {
  round_all<U>(headwise::Out<float, R>(x));
}

/// The root of the squares of what is missed, in that of the squares of what is expected.
template <class Numbers>
double root_mean_square_error(const Numbers& got, const Numbers& expected) {
  double missed = 0, all = 0;
  auto number = got.begin();
  for (const float wanted : expected) {
    const double error = double{*number++} - double{wanted};
    missed += error * error;
    all += double{wanted} * double{wanted};
  }
  return std::sqrt(missed / all);
}

}  // namespace headwise_tests
