// Sum and mean of all elements on the tape.
#pragma once

#include "headwise/autograd/elementwise.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// The sum of all elements, [1]. Nothing is kept.
template <Scalar T, int R>
Variable<T, 1> sum(const Variable<T, R>& x) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"sum"}, rows);
  const Out<T, 1> total = call.output(Shape{1});
  sum_forward(rows.value(), total, call.context());
  const auto backward = [to = call.target(rows)](BackwardPass<T>& pass, In<T, 1> dy) {
    pass.assign([&](Out<T, 2> dx) { sum_backward(dy, dx, pass.context()); }, to);
  };
  return call.finish(In<T, 1>(total), backward);
}

/// The mean of all elements, [1]. Throws ArgumentError where there are none.
template <Scalar T, int R>
Variable<T, 1> mean(const Variable<T, R>& x) {
  require(x.size() != 0, "mean", "x has no elements, expected at least one");
  return scale(sum(x), T(1) / T(static_cast<double>(x.size())));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
