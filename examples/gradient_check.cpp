// Is the backward of an op of your own right? Here y = x sigmoid(x), and the same with a sign
// forgotten: the report names the element of the Jacobian that is wrong.
#include <cmath>
#include <iostream>

#include "headwise/testing/check_op.hpp"

using headwise::Shape;
using headwise::Tensor2;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// dx = dy s(x) (1 + sign x (1 - s(x))), with sign = 1.
Tensor2<double> swish_backward(const Tensor2<double>& dy, const Tensor2<double>& x, double sign) {
  Tensor2<double> dx(x.shape());
  for_each_index(x.shape(), [&](const Shape<2>& i) {
    dx(i) = dy(i) * sigmoid(x(i)) * (1 + sign * x(i) * (1 - sigmoid(x(i))));
  });
  return dx;
}

int main() {
  const Tensor2<double> x(Shape{2, 3}, {-2.0, -0.5, 0.0, 0.3, 1.0, 4.0});

  const auto forward = [](const Tensor2<double>& at) {
    Tensor2<double> y(at.shape());
    for_each_index(at.shape(), [&](const Shape<2>& i) { y(i) = at(i) * sigmoid(at(i)); });
    return y;
  };
  const auto right = [&](const Tensor2<double>& dy) { return swish_backward(dy, x, 1); };
  const auto wrong = [&](const Tensor2<double>& dy) { return swish_backward(dy, x, -1); };

  const auto good = headwise::check_op(forward, right, x);
  const auto caught = headwise::check_op(forward, wrong, x);
  std::cout << "right: " << good << "\nwrong: " << caught << '\n';
  return good && !caught ? 0 : 1;
}
