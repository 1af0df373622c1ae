// Linear layer, layer norm, softmax and dropout on the tape, each over the last axis. They call
// their pairs of ops/, to the same bits, and keep what those read in backward.
#pragma once

#include "headwise/autograd/elementwise.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/ops/softmax.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// x w + b over the last axis of x.
///
/// x   [..., K]
/// w   [K, O]
/// b   [O]       or {} for none
///
/// The gradients of w and b are added where they are kept, without a sum of their own in between. x
/// is kept where w has a gradient, w where x has one. Throws as linear_forward.
template <Scalar T, int R>
Variable<T, R> linear(const Variable<T, R>& x, const Variable<T, 2>& w,
                      const Variable<T, 1>& b = {}) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"linear"}, rows, w, b);
  const Out<T, 2> y = call.output(Shape{rows.extent(0), w.extent(1)});
  linear_forward(rows.value(), w.value(), b.value(), y, call.context());
  const auto to_x = call.optional_target(rows);
  const auto to_w = call.added_target(w);
  const auto to_b = call.added_target(b);
  const auto kept_x = detail::save_if<T>(w.has_gradient(), call, rows, y);
  const auto kept_w = detail::save_if<T>(rows.has_gradient(), call, w, y);
  const auto backward = [to_x, to_w, to_b, kept_x, kept_w](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> dx, InOut<T, 2> dw, InOut<T, 1> db) {
      linear_backward(dy, kept_x.read(dy), kept_w.read(dy), dx, dw, db, pass.context());
    };
    pass.assign(into, to_x, to_w, to_b);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// Layer normalisation over the last axis.
///
/// x       [..., D]
/// gamma   [D]        or {} for 1
/// beta    [D]        or {} for 0
///
/// Keeps x, gamma and two numbers a row. Throws as layer_norm_forward.
template <Scalar T, int R>
Variable<T, R> layer_norm(const Variable<T, R>& x, const Variable<T, 1>& gamma = {},
                          const Variable<T, 1>& beta = {},
                          const std::type_identity_t<T>& epsilon = T(1e-5)) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"layer_norm"}, rows, gamma, beta);
  const Out<T, 2> y = call.output(rows.shape());
  const auto mean = call.kept(Shape{rows.extent(0)}), rstd = call.kept(Shape{rows.extent(0)});
  layer_norm_forward(rows.value(), {gamma.value(), beta.value()}, epsilon, y, {mean, rstd},
                     call.context());
  const auto to_x = call.target(rows);
  const auto to_gamma = call.added_target(gamma), to_beta = call.added_target(beta);
  const In<T, 2> kept_x = call.save(rows);
  const In<T, 1> kept_gamma = call.save(gamma), kept_mean = mean, kept_rstd = rstd;
  const auto backward = [=](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> dx, InOut<T, 1> dgamma, InOut<T, 1> dbeta) {
      layer_norm_backward(dy, kept_x, kept_gamma, {kept_mean, kept_rstd}, dx, {dgamma, dbeta},
                          pass.context());
    };
    pass.assign(into, to_x, to_gamma, to_beta);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// Softmax over the last axis of x [..., M]; what it gives is kept. Throws as softmax_forward.
template <Scalar T, int R>
Variable<T, R> softmax(const Variable<T, R>& x) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"softmax"}, rows);
  const Out<T, 2> p = call.output(rows.shape());
  softmax_forward(rows.value(), p, call.context());
  call.save_output();
  const auto backward = [to = call.target(rows), p](BackwardPass<T>& pass, In<T, 2> dp) {
    pass.assign([&](Out<T, 2> dx) { softmax_backward(dp, p, dx, pass.context()); }, to);
  };
  return like_rows_of(x.shape(), call.finish(p, backward));
}

/// Dropout of x [..., M]: its rows in order draw as rows n of dropout_forward. Nothing is kept;
/// rate 0 is x itself. Give each dropout of a step a seed of its own. Throws as dropout_forward.
template <Scalar T, int R>
Variable<T, R> dropout(const Variable<T, R>& x, const Dropout& options) {
  if (options.rate == 0.0) return x;
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"dropout"}, rows);
  const Out<T, 2> y = call.output(rows.shape());
  dropout_forward(rows.value(), options, y, call.context());
  const auto backward = [to = call.target(rows), options](BackwardPass<T>& pass, In<T, 2> dy) {
    pass.assign([&](Out<T, 2> dx) { dropout_backward(dy, options, dx, pass.context()); }, to);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
