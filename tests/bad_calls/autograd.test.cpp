// The tape: variables of other tapes and steps, calls in the wrong order, shapes that do not fit.
#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/checkpoint.hpp"
#include "headwise/autograd/functions.hpp"
#include "support/refusal_rules.hpp"

namespace bad_calls_autograd {

using namespace headwise_tests;

namespace {

/// A tape with an input and a parameter on it.
struct Taped {
  Witness& m;
  Tape<double> tape{}, other{};
  Matrix value = m.tensor(4, 3), gradient = m.tensor(4, 3);
  Variable<double, 2> x = tape.input(value), w = tape.parameter(value, gradient);
  Variable<double, 2> elsewhere = other.input(value);

  /// After a backward that reaches no parameter.
  void sweep() { tape.backward(sum(x)); }
};

Refusal refused(std::string message, void (*call)(Taped&), bool of_shape = false) {
  const auto with = [call](Witness& memory) {
    Taped taped{memory};
    call(taped);
  };
  return of_shape ? shape_error(std::move(message), with)
                  : argument_error(std::move(message), with);
}
Refusal shape_refused(std::string message, void (*call)(Taped&)) {
  return refused(std::move(message), call, true);
}

struct Parameter {
  Witness& m;
  Tape<double> tape{};
  Matrix value = m.tensor(4, 3), gradient = m.tensor(4, 3);
  void call() { tape.parameter(value, gradient); }
};
struct Constant {
  Witness& m;
  Tape<double> tape{};
  Matrix value = m.tensor(4, 3);
  void call() { tape.constant(value); }
};
struct Input {
  Witness& m;
  Tape<double> tape{};
  Matrix value = m.tensor(4, 3);
  void call() { tape.input(value); }
};
struct Backward {
  Witness& m;
  Tape<double> tape{};
  Matrix value = m.tensor(4, 3), dy = m.tensor(4, 3);
  void call() { tape.backward(tape.input(value), dy); }
};

const std::string swept =
    "the tape has been swept by backward, expected clear() before the next step";
const std::string elsewhere = " is of another tape, expected one of this";
const std::string before_clear = " is of a step before clear(), expected one of this step";

const Refusals leaf_refusals(all_of({
    countable("Tape::constant: value", &Constant::value, {4, 3}),
    countable("Tape::input: value", &Input::value, {4, 3}),
    countable("Tape::parameter: value", &Parameter::value, {4, 3}),
    output("Tape::parameter", "gradient", &Parameter::gradient, {4, 3}, "the shape of value"),
    {overlapping("Tape::parameter: gradient", &Parameter::gradient, "value", &Parameter::value),
     shape_error("Tape::parameter: gradient holds one element at two indices, expected elements of "
                 "their own",
                 [](Witness& m) {
                   Parameter c{m};
                   c.value = m.repeated(4, 3);
                   c.gradient = m.repeated(4, 3);
                   c.call();
                 }),
     shape<Parameter>(
         "Tape::parameter: strides of gradient are [1, 4], expected those of value, [3, 1]",
         [](auto& c) { c.gradient = transpose(c.m.tensor(3, 4), 0, 1); }),
     argument_error("Tape: memory is null, expected a memory resource",
                    [](Witness&) { Tape<double> tape({.memory = nullptr}); }),
     refused("Tape::parameter: " + swept,
             [](Taped& t) {
               t.sweep();
               t.tape.parameter(t.value, t.gradient);
             }),
     refused("Tape::input: " + swept,
             [](Taped& t) {
               t.sweep();
               t.tape.input(t.value);
             })},
}));

const Refusals tape_refusals({
    refused("Tape::watch: x" + elsewhere, [](Taped& t) { t.tape.watch(t.elsewhere); }),
    refused("Tape::watch: x" + before_clear,
            [](Taped& t) {
              t.tape.clear();
              t.tape.watch(t.x);
            }),
    refused(
        "Tape::watch: x has no gradient, expected what is computed from a parameter or an input",
        [](Taped& t) { t.tape.watch(t.tape.constant(t.value)); }),
    refused("Tape::watch: " + swept,
            [](Taped& t) {
              t.sweep();
              t.tape.watch(t.x);
            }),
    refused("Tape::gradient: x" + elsewhere, [](Taped& t) { t.tape.gradient(t.elsewhere); }),
    refused("Tape::gradient: x" + before_clear,
            [](Taped& t) {
              t.sweep();
              t.tape.clear();
              t.tape.gradient(t.x);
            }),
    refused("Tape::gradient: backward has not come to its end, expected it before",
            [](Taped& t) { t.tape.gradient(t.x); }),
    refused("Tape::gradient: x was not watched, expected watch(x) before backward",
            [](Taped& t) {
              const auto y = scale(t.x, 2.0);
              t.tape.backward(sum(y));
              t.tape.gradient(y);
            }),
    refused("Tape::gradient: x was not watched, expected watch(x) before backward",
            [](Taped& t) {
              t.sweep();
              t.tape.gradient(t.tape.constant(t.value));
            }),
    refused("Tape::mutable_value: x" + elsewhere,
            [](Taped& t) { t.tape.mutable_value(t.elsewhere); }),
    refused("Tape::mutable_value: x" + before_clear,
            [](Taped& t) {
              t.tape.clear();
              t.tape.mutable_value(t.x);
            }),
    refused("Tape::mutable_value: x is the caller's memory, expected a value of the tape's (write "
            "there, and tell it by mark_written)",
            [](Taped& t) { t.tape.mutable_value(t.x); }),
    refused("Tape::mark_written: x" + elsewhere,
            [](Taped& t) { t.tape.mark_written(t.elsewhere); }),
    refused("Tape::mark_written: x" + before_clear,
            [](Taped& t) {
              t.tape.clear();
              t.tape.mark_written(t.x);
            }),
});

const Refusals backward_refusals(all_of({
    output("Tape::backward", "dy", &Backward::dy, {4, 3}, "the shape of y"),
    {shape_refused("Tape::backward: dy is [3, 3], expected [4, 3] (the shape of y)",
                   [](Taped& t) { t.tape.backward(t.w, t.m.tensor(3, 3)); }),
     refused("Tape::backward: loss is [4, 3], expected one element (or pass its gradient)",
             [](Taped& t) { t.tape.backward(t.w); }),
     refused("Tape::backward: loss" + elsewhere,
             [](Taped& t) { t.tape.backward(sum(t.elsewhere)); }),
     refused("Tape::backward: loss" + before_clear,
             [](Taped& t) {
               const auto loss = sum(t.w);
               t.tape.clear();
               t.tape.backward(loss);
             }),
     refused("Tape::backward: it has been called before, expected once until clear()",
             [](Taped& t) {
               const auto loss = sum(t.w);
               t.sweep();
               t.tape.backward(loss);
             }),
     refused("Tape::backward: loss has no gradient, expected what is computed from a parameter or "
             "an input",
             [](Taped& t) { t.tape.backward(sum(detach(t.w))); }),
     refused("Tape::backward: a value that softmax kept has been written to since, expected it as "
             "it was (copy it before)",
             [](Taped& t) {
               const auto p = softmax(t.w);
               t.tape.mutable_value(p)(0, 0) = 1;
               t.tape.backward(sum(p));
             })},
}));

const Refusals function_refusals({
    refused("linear: input 1 is of another tape, expected all of them of one",
            [](Taped& t) { linear(t.x, t.elsewhere); }),
    refused("softmax: input 0 is of a step before clear(), expected one of this step",
            [](Taped& t) {
              t.tape.clear();
              softmax(t.x);
            }),
    refused("softmax: " + swept,
            [](Taped& t) {
              t.sweep();
              softmax(t.x);
            }),
    refused("checkpoint: " + swept,
            [](Taped& t) {
              t.sweep();
              checkpoint([](const auto& a) { return a; }, t.tape.constant(t.value));
            }),
    argument_error("linear: no input is a variable, expected at least one",
                   [](Witness&) { linear(Variable<double, 2>(), Variable<double, 2>()); }),
    shape_refused("add: b is [3, 4], expected the shape of a [4, 3], or the last axes of one of "
                  "them as the other",
                  [](Taped& t) { add(t.x, transpose(t.x, 0, 1)); }),
    shape_refused("divide: b is [4], expected the shape of a [4, 3], or the last axes of one of "
                  "them as the other",
                  [](Taped& t) { divide(t.x, select(transpose(t.x, 0, 1), 0)); }),
    shape_refused("linear_forward: w is [4, 3], expected [3, 3] (3 from x [4, 3])",
                  [](Taped& t) { linear(t.x, t.w); }),
    shape_refused("reshape: shape is [5, 2], expected 12 elements (x is [4, 3])",
                  [](Taped& t) {
                    reshape(t.x, Shape{5, 2});
                  }),
    shape_refused("matmul: b is [4, 3], expected [3, 3] (leading axes and columns of a [4, 3])",
                  [](Taped& t) { matmul(t.x, t.w); }),
    shape_refused("concatenate: a part is [3, 4], expected [4, 4] (the first [4, 3])",
                  [](Taped& t) { concatenate(1, t.x, transpose(t.x, 0, 1)); }),
    refused("concatenate: axis is 2, expected 0 to 1", [](Taped& t) { concatenate(2, t.x); }),
    refused("mean: x has no elements, expected at least one",
            [](Taped& t) { mean(slice(t.x, 0, 1, 0)); }),
    refused("Tape: elements of a value are 1125899906842624, expected at most 2^48",
            [](Taped& t) {
              const auto nothing = [](auto...) {};
              apply(Shape{Index{1} << 25, Index{1} << 25}, nothing, nothing, t.x);
            }),
});

}  // namespace

TEST_CASE("constants, inputs and parameters refuse what makes no variable", "[bad_calls]") {
  leaf_refusals.check();
}

TEST_CASE("the tape refuses variables of another tape or step, and calls in the wrong order",
          "[bad_calls]") {
  tape_refusals.check();
}

TEST_CASE("Tape::backward refuses bad calls before a gradient is written", "[bad_calls]") {
  backward_refusals.check();
}

TEST_CASE("functions of the tape refuse bad calls before anything is recorded", "[bad_calls]") {
  function_refusals.check();
}

}  // namespace bad_calls_autograd
