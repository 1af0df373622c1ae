// Softmax, dropout, norms, activations, linear, and the small modules, with NaN where a rule says
// what it may reach. Part of the tour (tour.hpp).
#pragma once

#include "headwise/nn/layer_norm.hpp"
#include "headwise/nn/linear.hpp"
#include "headwise/nn/rms_norm.hpp"
#include "headwise/ops/activation.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/elementwise.hpp"
#include "headwise/ops/softmax.hpp"
#include "tour/attention.hpp"

namespace headwise_tests {
namespace {

template <class T>
void visit_softmax(const std::string& type, const Context& context, std::vector<Named>& results) {
  auto x = noise<T>(Shape{5, 13}, 11);
  const auto dp = noise<T>(Shape{5, 13}, 12);
  for (Index j = 0; j < 13; ++j) x(1, j) = T(j % 2 == 0 ? 1e4 : -1e4);
  x(2, 4) = from_bits<T>(nan_bits);
  x(3, 5) = from_bits<T>(minus_infinity_bits);
  Tensor2<T> p(x.shape()), dx(x.shape()), jacobian({13, 13});
  softmax_forward(x, p, context);
  softmax_backward(dp, p, dx, context);
  softmax_jacobian(select(p, 0), jacobian);
  keep(results, type + "softmax, p", p);
  keep(results, type + "softmax, dx", dx);
  keep(results, type + "softmax, jacobian", jacobian);
}

template <class T>
void visit_dropout(const std::string& type, const Context& context, std::vector<Named>& results) {
  auto x = noise<T>(Shape{3, 70}, 13);
  for (Index n = 0; n < 70; ++n) x(1, n) = from_bits<T>(n % 2 == 0 ? nan_bits : infinity_bits);
  for (const double rate : {0.0, 0.4, 1.0}) {
    Tensor2<T> y(x.shape()), dx(x.shape());
    dropout_forward(x, {rate, 6, 7}, y, context);
    dropout_backward(y, {rate, 6, 7}, dx, context);
    keep(results, type + "dropout op, y at " + std::to_string(rate), y);
    keep(results, type + "dropout op, dx at " + std::to_string(rate), dx);
  }
}

template <class T>
void visit_layer_norm(const std::string& type, const Context& context,
                      std::vector<Named>& results) {
  auto x = noise<T>(Shape{5, 9}, 14), dy = noise<T>(Shape{5, 9}, 15);
  for (Index j = 0; j < 9; ++j) {
    x(1, j) = from_bits<T>(nan_bits);  // and its gradient is not 0
    x(3, j) = from_bits<T>(infinity_bits);
    dy(3, j) = T(0);
    x(4, j) = T(2);  // no variance at all
  }
  for (const bool affine : {true, false}) {
    const std::string name = type + (affine ? "layer_norm, " : "layer_norm without affine, ");
    LayerNorm<T> norm(9, affine);
    if (affine) norm.parameters().gamma(4) = T(-0.3), norm.parameters().beta(5) = T(0.25);
    typename LayerNorm<T>::Cache cache;
    auto gradients = norm.zero_gradients();
    keep(results, name + "y", norm.forward(x, cache, context));
    keep(results, name + "inference", norm.forward(x, context));
    keep(results, name + "dx", norm.backward(dy, cache, gradients, context));
    keep(results, name + "mean", cache.mean);
    keep(results, name + "rstd", cache.rstd);
    keep(results, name + "dgamma", gradients.gamma);
    keep(results, name + "dbeta", gradients.beta);
  }
}

template <class T>
void visit_rms_norm(const std::string& type, const Context& context, std::vector<Named>& results) {
  auto x = noise<T>(Shape{5, 9}, 18), dy = noise<T>(Shape{5, 9}, 19);
  for (Index j = 0; j < 9; ++j) {
    x(1, j) = from_bits<T>(nan_bits);  // and its gradient is not 0
    x(3, j) = from_bits<T>(infinity_bits);
    dy(3, j) = T(0);
    x(4, j) = T(0);
  }
  RMSNorm<T> norm(9);
  norm.parameters().gamma(4) = T(-0.3);
  typename RMSNorm<T>::Cache cache;
  auto gradients = norm.zero_gradients();
  keep(results, type + "rms_norm, y", norm.forward(x, cache, context));
  keep(results, type + "rms_norm, dx", norm.backward(dy, cache, gradients, context));
  keep(results, type + "rms_norm, rstd", cache.rstd);
  keep(results, type + "rms_norm, dgamma", gradients.gamma);
}

template <class T>
void visit_activations(const std::string& type, const Context& context,
                       std::vector<Named>& results) {
  auto x = noise<T>(Shape{5, 71}, 27), up = noise<T>(Shape{5, 71}, 28), dy = up;
  for (Index j = 0; j < 71; ++j) {
    x(0, j) = T(j) / 2 - 18;
    x(1, j) = from_bits<T>(j % 2 == 0 ? nan_bits : infinity_bits);
    x(2, j) = from_bits<T>(minus_infinity_bits);
    x(3, j) = up(3, j) = from_bits<T>(nan_bits);
    dy(3, j) = T(0);
  }
  Tensor2<T> y(x.shape()), dx(x.shape()), d_up(x.shape());
  for (const Activation activation :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    const std::string name = type + "activation " + std::to_string(static_cast<int>(activation));
    activation_forward(activation, x, y, context);
    activation_backward(activation, dy, x, dx, context);
    keep(results, name + ", y", y);
    keep(results, name + ", dx", dx);
  }
  swiglu_forward(x, up, y, context);
  swiglu_backward(dy, x, up, dx, d_up, context);
  keep(results, type + "swiglu, y", y);
  keep(results, type + "swiglu, d_gate", dx);
  keep(results, type + "swiglu, d_up", d_up);
  add_forward(x, up, y, context);
  keep(results, type + "add, y", y);
}

template <class T>
void visit_linear(const std::string& type, const Context& context, std::vector<Named>& results) {
  // Beyond a task of 192 rows, and rows, columns and inner lengths that no vector divides.
  auto x = noise<T>(Shape{197, 67}, 16), dy = noise<T>(Shape{197, 19}, 17);
  for (Index i = 0; i < 67; ++i) x(5, i) = from_bits<T>(nan_bits);
  for (Index o = 0; o < 19; ++o) dy(5, o) = T(0);
  for (const bool bias : {true, false}) {
    const std::string name = type + (bias ? "linear, " : "linear without bias, ");
    Linear<T> linear(67, 19, bias, Init::xavier_normal, 3);
    if (bias) linear.parameters().b(3) = T(0.5);
    typename Linear<T>::Cache cache;
    auto gradients = linear.zero_gradients();
    keep(results, name + "y", linear.forward(x, cache, context));
    keep(results, name + "dx", linear.backward(dy, cache, gradients, context));
    keep(results, name + "dw", gradients.w);
    keep(results, name + "db", gradients.b);
  }
}

}  // namespace
}  // namespace headwise_tests
