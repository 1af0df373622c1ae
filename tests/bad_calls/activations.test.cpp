// Activations and rms norm as functions of matrices: every argument wrong in every way that
// has a rule.
#include "support/refusal_rules.hpp"

namespace bad_calls_activations {

using namespace headwise_tests;

namespace {

// Each call struct holds what its function takes, all of it right.

struct ActivationForward {
  Witness& m;
  Matrix x = m.tensor(2, 3), y = m.tensor(2, 3);
  void call() { activation_forward(Activation::gelu, x, y, m.context()); }
};
struct ActivationBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3), x = m.tensor(2, 3), dx = m.tensor(2, 3);
  void call() { activation_backward(Activation::gelu, dy, x, dx, m.context()); }
};
struct SwigluForward {
  Witness& m;
  Matrix gate = m.tensor(2, 3), up = m.tensor(2, 3), y = m.tensor(2, 3);
  void call() { swiglu_forward(gate, up, y, m.context()); }
};
struct SwigluBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3), gate = m.tensor(2, 3), up = m.tensor(2, 3), d_gate = m.tensor(2, 3),
         d_up = m.tensor(2, 3);
  void call() { swiglu_backward(dy, gate, up, d_gate, d_up, m.context()); }
};
struct RmsNormForward {
  Witness& m;
  Matrix x = m.tensor(2, 3), y = m.tensor(2, 3);
  Vector gamma = m.tensor(3), rstd = m.tensor(2);
  double epsilon = 1e-5;
  void call() { rms_norm_forward(x, gamma, epsilon, y, rstd, m.context()); }
};
struct RmsNormBackward {
  Witness& m;
  Matrix dy = m.tensor(2, 3), x = m.tensor(2, 3), dx = m.tensor(2, 3);
  Vector gamma = m.tensor(3), rstd = m.tensor(2), dgamma = m.tensor(3);
  void call() { rms_norm_backward(dy, x, gamma, rstd, dx, dgamma, m.context()); }
};

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

using Act = ActivationForward;
using ActBack = ActivationBackward;
const Refusals activation_refusals(all_of({
    countable("activation_forward: x", &Act::x, {2, 3}),
    output("activation_forward", "y", &Act::y, {2, 3}, "the shape of x"),
    {repeated("activation_forward: y", &Act::y),
     shifted("activation_forward", "y", &Act::y, "x", &Act::x)},
    countable("activation_backward: dy", &ActBack::dy, {2, 3}),
    output("activation_backward", "x", &ActBack::x, {2, 3}, "the shape of dy"),
    output("activation_backward", "dx", &ActBack::dx, {2, 3}, "the shape of dy"),
    apart_from("activation_backward: dx", &ActBack::dx, "x", &ActBack::x),
    {shifted("activation_backward", "dx", &ActBack::dx, "dy", &ActBack::dy)},
}));

using Glu = SwigluForward;
using GluBack = SwigluBackward;
const Refusals swiglu_refusals(all_of({
    countable("swiglu_forward: gate", &Glu::gate, {2, 3}),
    output("swiglu_forward", "up", &Glu::up, {2, 3}, "the shape of gate"),
    output("swiglu_forward", "y", &Glu::y, {2, 3}, "the shape of gate"),
    {repeated("swiglu_forward: y", &Glu::y),
     shifted("swiglu_forward", "y", &Glu::y, "gate", &Glu::gate),
     shifted("swiglu_forward", "y", &Glu::y, "up", &Glu::up)},
    countable("swiglu_backward: dy", &GluBack::dy, {2, 3}),
    output("swiglu_backward", "gate", &GluBack::gate, {2, 3}, "the shape of dy"),
    output("swiglu_backward", "up", &GluBack::up, {2, 3}, "the shape of dy"),
    output("swiglu_backward", "d_gate", &GluBack::d_gate, {2, 3}, "the shape of dy"),
    output("swiglu_backward", "d_up", &GluBack::d_up, {2, 3}, "the shape of dy"),
    apart_from("swiglu_backward: d_gate", &GluBack::d_gate, "gate", &GluBack::gate, "up",
               &GluBack::up),
    {shifted("swiglu_backward", "d_gate", &GluBack::d_gate, "dy", &GluBack::dy)},
    apart_from("swiglu_backward: d_up", &GluBack::d_up, "dy", &GluBack::dy, "gate", &GluBack::gate,
               "up", &GluBack::up, "d_gate", &GluBack::d_gate),
}));

std::string no_epsilon(const std::string& given) {
  return "rms_norm_forward: epsilon is " + given + ", expected a small number above 0 like 1e-6";
}
using Rms = RmsNormForward;
using RmsBack = RmsNormBackward;
const Refusals rms_norm_refusals(all_of({
    countable("rms_norm_forward: x", &Rms::x, {2, 3}),
    output("rms_norm_forward", "gamma", &Rms::gamma, {3}, "the width of x"),
    output("rms_norm_forward", "y", &Rms::y, {2, 3}, "the shape of x"),
    output("rms_norm_forward", "rstd", &Rms::rstd, {2}, "rows of x"),
    {
        argument<Rms>(no_epsilon("0"), [](auto& c) { c.epsilon = 0; }),
        argument<Rms>(no_epsilon("-1"), [](auto& c) { c.epsilon = -1; }),
        argument<Rms>(no_epsilon("inf"),
                      [](auto& c) { c.epsilon = std::numeric_limits<double>::infinity(); }),
        argument<Rms>(no_epsilon("nan"),
                      [](auto& c) { c.epsilon = std::numeric_limits<double>::quiet_NaN(); }),
        shifted("rms_norm_forward", "y", &Rms::y, "x", &Rms::x),
    },
    apart_from("rms_norm_forward: y", &Rms::y, "gamma", &Rms::gamma),
    apart_from("rms_norm_forward: rstd", &Rms::rstd, "x", &Rms::x, "gamma", &Rms::gamma, "y",
               &Rms::y),
    countable("rms_norm_backward: x", &RmsBack::x, {2, 3}),
    output("rms_norm_backward", "gamma", &RmsBack::gamma, {3}, "the width of x"),
    output("rms_norm_backward", "dy", &RmsBack::dy, {2, 3}, "the shape of x"),
    output("rms_norm_backward", "rstd", &RmsBack::rstd, {2}, "rows of x"),
    output("rms_norm_backward", "dx", &RmsBack::dx, {2, 3}, "the shape of x"),
    output("rms_norm_backward", "dgamma", &RmsBack::dgamma, {3}, "the width of x"),
    {shifted("rms_norm_backward", "dx", &RmsBack::dx, "dy", &RmsBack::dy)},
    apart_from("rms_norm_backward: dx", &RmsBack::dx, "x", &RmsBack::x, "gamma", &RmsBack::gamma,
               "rstd", &RmsBack::rstd),
    apart_from("rms_norm_backward: dgamma", &RmsBack::dgamma, "dy", &RmsBack::dy, "x", &RmsBack::x,
               "gamma", &RmsBack::gamma, "rstd", &RmsBack::rstd, "dx", &RmsBack::dx),
}));

}  // namespace

TEST_CASE("activations and swiglu refuse bad calls before anything is written", "[bad_calls]") {
  activation_refusals.check();
  swiglu_refusals.check();
}

TEST_CASE("rms norm refuses bad calls before anything is written", "[bad_calls]") {
  rms_norm_refusals.check();
}

TEMPLATE_TEST_CASE("the calls of activations and norms that are spoilt are right before",
                   "[bad_calls]", ActivationForward, ActivationBackward, SwigluForward,
                   SwigluBackward, RmsNormForward, RmsNormBackward) {
  Witness memory;
  TestType{memory}.call();
  CHECK(memory.written() == "a tensor");
}

}  // namespace bad_calls_activations
