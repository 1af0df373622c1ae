// Linear, softmax, dropout and layer norm as functions of matrices: every argument wrong in every
// way that has a rule.
#include "support/refusal_rules.hpp"

namespace bad_calls_ops {

using namespace headwise_tests;

namespace {

// Each call struct holds what its function takes, all of it right.

struct LinearForward {
  Witness& m;
  Matrix x = m.tensor(2, 5), w = m.tensor(5, 3), y = m.tensor(2, 3);
  Vector b = m.tensor(3);
  void call() { linear_forward(x, w, b, y, m.context()); }
};
struct LinearBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3), x = m.tensor(2, 5), w = m.tensor(5, 3), dx = m.tensor(2, 5),
         dw = m.tensor(5, 3);
  Vector db = m.tensor(3);
  void call() { linear_backward(dy, x, w, dx, dw, db, m.context()); }
};
struct BiasBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3);
  Vector db = m.tensor(3);
  void call() { bias_backward(dy, db, m.context()); }
};
struct SoftmaxForward {
  Witness& m;
  Matrix x = m.tensor(2, 3), p = m.tensor(2, 3);
  void call() { softmax_forward(x, p, m.context()); }
};
struct SoftmaxBackward {
  Witness& m;
  Matrix dp = m.tensor(2, 3), p = m.tensor(2, 3), dx = m.tensor(2, 3);
  void call() { softmax_backward(dp, p, dx, m.context()); }
};
struct SoftmaxJacobian {
  Witness& m;
  Vector p = m.tensor(3);
  Matrix jacobian = m.tensor(3, 3);
  void call() { softmax_jacobian(p, jacobian); }
};
struct DropoutForward {
  Witness& m;
  Matrix x = m.tensor(2, 3), y = m.tensor(2, 3);
  Dropout dropout = {.rate = 0.5};
  void call() { dropout_forward(x, dropout, y, m.context()); }
};
struct DropoutBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3), dx = m.tensor(2, 3);
  Dropout dropout = {.rate = 0.5};
  void call() { dropout_backward(dy, dropout, dx, m.context()); }
};
struct LayerNormForward {
  Witness& m;
  Matrix x = m.tensor(2, 3), y = m.tensor(2, 3);
  Vector gamma = m.tensor(3), beta = m.tensor(3), mean = m.tensor(2), rstd = m.tensor(2);
  double epsilon = 1e-5;
  void call() { layer_norm_forward(x, {gamma, beta}, epsilon, y, {mean, rstd}, m.context()); }
};
struct LayerNormBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3), x = m.tensor(2, 3), dx = m.tensor(2, 3);
  Vector gamma = m.tensor(3), mean = m.tensor(2), rstd = m.tensor(2), dgamma = m.tensor(3),
         dbeta = m.tensor(3);
  void call() { layer_norm_backward(dy, x, gamma, {mean, rstd}, dx, {dgamma, dbeta}, m.context()); }
};

const Refusals linear_forward_refusals(all_of({
    countable("linear_forward: x", &LinearForward::x, {2, 5}),
    countable("linear_forward: w", &LinearForward::w, {5, 3}),
    output("linear_forward", "b", &LinearForward::b, {3}, "3 from w [5, 3]"),
    output("linear_forward", "y", &LinearForward::y, {2, 3}, "rows of x, columns of w"),
    {
        shape<LinearForward>("linear_forward: w is [4, 3], expected [5, 3] (5 from x [2, 5])",
                             [](auto& c) { c.w = c.m.tensor(4, 3); }),
        overlapping("linear_forward: y", &LinearForward::y, "x", &LinearForward::x),
        overlapping("linear_forward: y", &LinearForward::y, "w", &LinearForward::w),
        overlapping("linear_forward: y", &LinearForward::y, "b", &LinearForward::b),
        repeated("linear_forward: y", &LinearForward::y),
    },
}));

const Refusals linear_backward_refusals(all_of({
    countable("linear_backward: x", &LinearBackward::x, {2, 5}),
    countable("linear_backward: w", &LinearBackward::w, {5, 3}),
    output("linear_backward", "dy", &LinearBackward::dy, {2, 3}, "rows of x, columns of w"),
    output("linear_backward", "dx", &LinearBackward::dx, {2, 5}, "the shape of x"),
    output("linear_backward", "dw", &LinearBackward::dw, {5, 3}, "the shape of w"),
    output("linear_backward", "db", &LinearBackward::db, {3}, "columns of w"),
    {
        shape<LinearBackward>("linear_backward: w is [4, 3], expected [5, 3] (5 from x [2, 5])",
                              [](auto& c) { c.w = c.m.tensor(4, 3); }),
        overlapping("linear_backward: dx", &LinearBackward::dx, "dy", &LinearBackward::dy),
        overlapping("linear_backward: dx", &LinearBackward::dx, "x", &LinearBackward::x),
        overlapping("linear_backward: dx", &LinearBackward::dx, "w", &LinearBackward::w),
        repeated("linear_backward: dx", &LinearBackward::dx),
        overlapping("linear_backward: dw", &LinearBackward::dw, "dy", &LinearBackward::dy),
        overlapping("linear_backward: dw", &LinearBackward::dw, "x", &LinearBackward::x),
        overlapping("linear_backward: dw", &LinearBackward::dw, "w", &LinearBackward::w),
        overlapping("linear_backward: dw", &LinearBackward::dw, "dx", &LinearBackward::dx),
        repeated("linear_backward: dw", &LinearBackward::dw),
        overlapping("linear_backward: db", &LinearBackward::db, "dy", &LinearBackward::dy),
        overlapping("linear_backward: db", &LinearBackward::db, "x", &LinearBackward::x),
        overlapping("linear_backward: db", &LinearBackward::db, "w", &LinearBackward::w),
        overlapping("linear_backward: db", &LinearBackward::db, "dx", &LinearBackward::dx),
        overlapping("linear_backward: db", &LinearBackward::db, "dw", &LinearBackward::dw),
        repeated("linear_backward: db", &LinearBackward::db),
    },
}));

const Refusals bias_backward_refusals(all_of({
    countable("bias_backward: dy", &BiasBackward::dy, {2, 3}),
    output("bias_backward", "db", &BiasBackward::db, {3}, "columns of dy"),
    {overlapping("bias_backward: db", &BiasBackward::db, "dy", &BiasBackward::dy),
     repeated("bias_backward: db", &BiasBackward::db)},
}));

const Refusals softmax_refusals(all_of({
    countable("softmax_forward: x", &SoftmaxForward::x, {2, 3}),
    output("softmax_forward", "p", &SoftmaxForward::p, {2, 3}, "the shape of x"),
    {repeated("softmax_forward: p", &SoftmaxForward::p),
     shifted("softmax_forward", "p", &SoftmaxForward::p, "x", &SoftmaxForward::x)},
    countable("softmax_backward: dp", &SoftmaxBackward::dp, {2, 3}),
    output("softmax_backward", "p", &SoftmaxBackward::p, {2, 3}, "the shape of dp"),
    output("softmax_backward", "dx", &SoftmaxBackward::dx, {2, 3}, "the shape of dp"),
    {repeated("softmax_backward: dx", &SoftmaxBackward::dx),
     overlapping("softmax_backward: dx", &SoftmaxBackward::dx, "p", &SoftmaxBackward::p),
     shifted("softmax_backward", "dx", &SoftmaxBackward::dx, "dp", &SoftmaxBackward::dp)},
    countable("softmax_jacobian: p", &SoftmaxJacobian::p, {3}),
    output("softmax_jacobian", "jacobian", &SoftmaxJacobian::jacobian, {3, 3},
           "the length of p, twice"),
    {repeated("softmax_jacobian: jacobian", &SoftmaxJacobian::jacobian),
     overlapping("softmax_jacobian: jacobian", &SoftmaxJacobian::jacobian, "p",
                 &SoftmaxJacobian::p)},
}));

const Refusals dropout_refusals(all_of({
    countable("dropout_forward: x", &DropoutForward::x, {2, 3}),
    output("dropout_forward", "y", &DropoutForward::y, {2, 3}, "the shape of x"),
    {repeated("dropout_forward: y", &DropoutForward::y),
     shifted("dropout_forward", "y", &DropoutForward::y, "x", &DropoutForward::x),
     argument<DropoutForward>("dropout_forward: dropout rate is 1.5, expected 0 to 1",
                              [](auto& c) { c.dropout.rate = 1.5; }),
     argument<DropoutForward>("dropout_forward: dropout rate is -0.25, expected 0 to 1",
                              [](auto& c) { c.dropout.rate = -0.25; })},
    countable("dropout_backward: dy", &DropoutBackward::dy, {2, 3}),
    output("dropout_backward", "dx", &DropoutBackward::dx, {2, 3}, "the shape of dy"),
    {repeated("dropout_backward: dx", &DropoutBackward::dx),
     shifted("dropout_backward", "dx", &DropoutBackward::dx, "dy", &DropoutBackward::dy),
     argument<DropoutBackward>("dropout_backward: dropout rate is 2, expected 0 to 1",
                               [](auto& c) { c.dropout.rate = 2; })},
}));

std::string no_epsilon(const std::string& given) {
  return "layer_norm_forward: epsilon is " + given + ", expected a small number above 0 like 1e-5";
}
template <class Call, int R>
std::vector<Refusal> apart_from(const std::string& argument, View<R> Call::*member) {
  return {repeated(argument, member)};
}
template <class Call, int R, int Q, class... More>
std::vector<Refusal> apart_from(const std::string& argument, View<R> Call::*member,
                                const char* other, View<Q> Call::*other_member, More... more) {
  auto refusals = apart_from(argument, member, more...);
  refusals.push_back(overlapping(argument, member, other, other_member));
  return refusals;
}

using Forward = LayerNormForward;
const Refusals layer_norm_forward_refusals(all_of({
    countable("layer_norm_forward: x", &Forward::x, {2, 3}),
    output("layer_norm_forward", "gamma", &Forward::gamma, {3}, "3, the width of x"),
    output("layer_norm_forward", "beta", &Forward::beta, {3}, "3, the width of x"),
    output("layer_norm_forward", "y", &Forward::y, {2, 3}, "the shape of x"),
    output("layer_norm_forward", "mean", &Forward::mean, {2}, "rows of x"),
    output("layer_norm_forward", "rstd", &Forward::rstd, {2}, "rows of x"),
    {
        argument<Forward>(no_epsilon("0"), [](auto& c) { c.epsilon = 0; }),
        argument<Forward>(no_epsilon("-1"), [](auto& c) { c.epsilon = -1; }),
        argument<Forward>(no_epsilon("inf"),
                          [](auto& c) { c.epsilon = std::numeric_limits<double>::infinity(); }),
        argument<Forward>(no_epsilon("nan"),
                          [](auto& c) { c.epsilon = std::numeric_limits<double>::quiet_NaN(); }),
        shifted("layer_norm_forward", "y", &Forward::y, "x", &Forward::x),
    },
    apart_from("layer_norm_forward: y", &Forward::y, "gamma", &Forward::gamma, "beta",
               &Forward::beta),
    apart_from("layer_norm_forward: mean", &Forward::mean, "x", &Forward::x, "gamma",
               &Forward::gamma, "beta", &Forward::beta, "y", &Forward::y),
    apart_from("layer_norm_forward: rstd", &Forward::rstd, "x", &Forward::x, "gamma",
               &Forward::gamma, "beta", &Forward::beta, "y", &Forward::y, "mean", &Forward::mean),
}));

using Backward = LayerNormBackward;
const Refusals layer_norm_backward_refusals(all_of({
    countable("layer_norm_backward: x", &Backward::x, {2, 3}),
    output("layer_norm_backward", "gamma", &Backward::gamma, {3}, "3, the width of x"),
    output("layer_norm_backward", "dy", &Backward::dy, {2, 3}, "the shape of x"),
    output("layer_norm_backward", "mean", &Backward::mean, {2}, "rows of x"),
    output("layer_norm_backward", "rstd", &Backward::rstd, {2}, "rows of x"),
    output("layer_norm_backward", "dx", &Backward::dx, {2, 3}, "the shape of x"),
    output("layer_norm_backward", "dgamma", &Backward::dgamma, {3}, "the width of x"),
    output("layer_norm_backward", "dbeta", &Backward::dbeta, {3}, "the width of x"),
    {shifted("layer_norm_backward", "dx", &Backward::dx, "dy", &Backward::dy)},
    apart_from("layer_norm_backward: dx", &Backward::dx, "x", &Backward::x, "gamma",
               &Backward::gamma, "mean", &Backward::mean, "rstd", &Backward::rstd),
    apart_from("layer_norm_backward: dgamma", &Backward::dgamma, "dy", &Backward::dy, "x",
               &Backward::x, "gamma", &Backward::gamma, "mean", &Backward::mean, "rstd",
               &Backward::rstd, "dx", &Backward::dx),
    apart_from("layer_norm_backward: dbeta", &Backward::dbeta, "dy", &Backward::dy, "x",
               &Backward::x, "gamma", &Backward::gamma, "mean", &Backward::mean, "rstd",
               &Backward::rstd, "dx", &Backward::dx, "dgamma", &Backward::dgamma),
}));

}  // namespace

TEST_CASE("linear_forward refuses bad calls before anything is written", "[bad_calls]") {
  linear_forward_refusals.check();
}

TEST_CASE("linear_backward and bias_backward refuse bad calls before anything is written",
          "[bad_calls]") {
  linear_backward_refusals.check();
  bias_backward_refusals.check();
}

TEST_CASE("softmax refuses bad calls before anything is written", "[bad_calls]") {
  softmax_refusals.check();
}

TEST_CASE("dropout refuses bad calls before anything is written", "[bad_calls]") {
  dropout_refusals.check();
}

TEST_CASE("layer_norm_forward refuses bad calls before anything is written", "[bad_calls]") {
  layer_norm_forward_refusals.check();
}

TEST_CASE("layer_norm_backward refuses bad calls before anything is written", "[bad_calls]") {
  layer_norm_backward_refusals.check();
}

TEMPLATE_TEST_CASE("the calls that are spoilt are right before, and show when they write",
                   "[bad_calls]", LinearForward, LinearBackward, BiasBackward, SoftmaxForward,
                   SoftmaxBackward, SoftmaxJacobian, DropoutForward, DropoutBackward,
                   LayerNormForward, LayerNormBackward) {
  Witness memory;
  TestType call{memory};
  call.call();
  CHECK(memory.written() == "a tensor");
}

}  // namespace bad_calls_ops
