// An operation of one's own on the tape: y = log(1 + e^x), as a pair of functions, in a small
// network beside the library's own. Its gradients are then held against finite differences.
#include <cmath>
#include <iostream>

#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/functions.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/testing/gradient_check.hpp"

using namespace headwise;

Variable<double, 2> softplus(const Variable<double, 2>& x) {
  const auto forward = [](In<double, 2> in, Out<double, 2> y) {
    for_each_index(in.shape(), [&](const Shape<2>& i) { y(i) = std::log1p(std::exp(in(i))); });
  };
  const auto backward = [](In<double, 2> dy, In<double, 2> in, Out<double, 2> dx) {
    for_each_index(in.shape(), [&](const Shape<2>& i) { dx(i) = dy(i) / (1 + std::exp(-in(i))); });
  };
  return apply(x.shape(), forward, backward, x);
}

/// The mean of softplus(x w)^2.
Variable<double, 1> loss(const Variable<double, 2>& x, const Variable<double, 2>& w) {
  const auto y = softplus(linear(x, w));
  return mean(y * y);
}

int main() {
  Tensor2<double> x({3, 4}), w({4, 2}), dw({4, 2});
  for (Index n = 0; n < x.size(); ++n) x.data()[n] = 0.3 * static_cast<double>(n % 5) - 0.5;
  for (Index n = 0; n < w.size(); ++n) w.data()[n] = 0.7 - 0.2 * static_cast<double>(n);

  Tape<double> tape;
  const auto input = tape.input(x);  // its gradient is kept, that of w is added to dw
  const auto value = loss(input, tape.parameter(w, dw));
  tape.backward(value);
  std::cout << "loss " << value.value()(0) << ", dw[0, 0] " << dw(0, 0) << '\n';

  GradientCheck<double> check({.stencil = Stencil::five_point});
  check.input("x", x, tape.gradient(input));
  check.input("w", w, dw);
  const auto report = check.run([&] {
    Tape<double> values;
    return loss(values.constant(x), values.constant(w)).value()(0);
  });
  std::cout << report << '\n';
  return report ? 0 : 1;
}
