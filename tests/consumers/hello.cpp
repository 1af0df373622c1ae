// What every consumer builds: attention forward and backward, held against numbers that a person
// can work out. W_Q = W_K = 0 makes all scores 0, so a causal query sees the mean of the keys up to
// its own; W_V = W_O = 1 hands it on:
//   y_i = (x_0 + ... + x_i) / (i + 1)      dx_j = sum over i >= j of 1 / (i + 1) for dy = 1
#include <algorithm>
#include <cmath>
#include <headwise/headwise.hpp>
#include <iostream>

using namespace headwise;

int main() {
  constexpr Index length = 10, width = 8;
  MultiHeadAttention<double> attention({.d_model = width, .num_heads = 2});
  auto& parameters = attention.parameters();
  for_each_index(Shape{width, width}, [&](const Shape<2>& at) {
    const double one = at[0] == at[1] ? 1 : 0;
    parameters.W_Q()(at) = parameters.W_K()(at) = 0;
    parameters.W_V()(at) = parameters.w_o(at) = one;
  });

  Tensor3<double> x({1, length, width}), dy({1, length, width});  // [B, L, D]
  for_each_index(x.shape(), [&](const Shape<3>& at) {
    x(at) = static_cast<double>(at[1] + 1);
    dy(at) = 1;
  });

  MultiHeadAttention<double>::Cache cache;
  const Tensor3<double> y = attention.forward(x, {.mask = causal}, cache);
  auto gradients = attention.zero_gradients();
  const Tensor3<double> dx = attention.backward(dy, cache, gradients);

  double worst = 0;
  for (Index j = 0; j < length; ++j) {
    double dx_j = 0;
    for (Index i = j; i < length; ++i) dx_j += 1 / static_cast<double>(i + 1);
    for (Index c = 0; c < width; ++c) {
      worst = std::max(worst, std::abs(y(0, j, c) - static_cast<double>(j + 2) / 2));
      worst = std::max(worst, std::abs(dx(0, j, c) - dx_j));
    }
  }
  std::cout << "y[9] = " << y(0, 9, 0) << ", dx[0] = " << dx(0, 0, 0) << ", headwise "
            << HEADWISE_VERSION_MAJOR << '.' << HEADWISE_VERSION_MINOR << '.'
            << HEADWISE_VERSION_PATCH << '\n';
  if (worst <= 1e-12) return 0;
  std::cerr << "a number is off by " << worst << '\n';
  return 1;
}
