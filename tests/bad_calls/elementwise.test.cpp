// Elementwise operations and sums: every argument wrong in every way that has a rule.
#include "headwise/ops/elementwise.hpp"

#include "headwise/ops/accumulate.hpp"
#include "support/refusal_rules.hpp"

namespace bad_calls_elementwise {

using namespace headwise_tests;

namespace {

// Each call struct holds what its function takes, all of it right.

enum Operation { addition, subtraction, multiplication, division };
const std::string names[] = {"add", "subtract", "multiply", "divide"};

template <Operation op>
struct Forward {
  Witness& m;
  Matrix a = m.tensor(4, 3), b = m.tensor(4, 3), y = m.tensor(4, 3);
  void call() {
    if (op == addition) add_forward(a, b, y, m.context());
    if (op == subtraction) subtract_forward(a, b, y, m.context());
    if (op == multiplication) multiply_forward(a, b, y, m.context());
    if (op == division) divide_forward(a, b, y, m.context());
  }
};
template <Operation op>
struct SumBackward {
  Witness& m;
  Matrix dy = m.tensor(4, 3), da = m.tensor(4, 3), db = m.tensor(4, 3);
  void call() {
    if (op == addition) add_backward(dy, da, db, m.context());
    if (op == subtraction) subtract_backward(dy, da, db, m.context());
  }
};
struct MultiplyBackward {
  Witness& m;
  Matrix dy = m.tensor(4, 3), a = m.tensor(4, 3), b = m.tensor(4, 3), da = m.tensor(4, 3),
         db = m.tensor(4, 3);
  void call() { multiply_backward(dy, a, b, da, db, m.context()); }
};
struct DivideBackward {
  Witness& m;
  Matrix dy = m.tensor(4, 3), b = m.tensor(4, 3), y = m.tensor(4, 3), da = m.tensor(4, 3),
         db = m.tensor(4, 3);
  void call() { divide_backward(dy, b, y, da, db, m.context()); }
};
struct ScaleForward {
  Witness& m;
  Matrix x = m.tensor(4, 3), y = m.tensor(4, 3);
  double alpha = 2;
  void call() { scale_forward(x, alpha, y, m.context()); }
};
struct ScaleBackward {
  Witness& m;
  Matrix dy = m.tensor(4, 3), dx = m.tensor(4, 3);
  double alpha = 2;
  void call() { scale_backward(dy, alpha, dx, m.context()); }
};
struct Accumulate {
  Witness& m;
  Matrix x = m.tensor(4, 3), sum = m.tensor(4, 3);
  void call() { accumulate(x, sum, m.context()); }
};
struct SumForward {
  Witness& m;
  Matrix x = m.tensor(4, 3);
  Vector total = m.tensor(1);
  void call() { sum_forward(x, total, m.context()); }
};
struct TotalBackward {
  Witness& m;
  Vector d_total = m.tensor(1);
  Matrix dx = m.tensor(4, 3);
  void call() { sum_backward(d_total, dx, m.context()); }
};

template <Operation op>
std::vector<Refusal> of_forward() {
  using F = Forward<op>;
  const std::string name = names[op] + "_forward";
  const std::string b_is = name + ": b is ",
                    expected = ", expected the shape of a [4, 3], or one row of it";
  return all_of({
      countable(name + ": a", &F::a, {4, 3}),
      countable(name + ": b", &F::b, {4, 3}),
      output(name, "y", &F::y, {4, 3}, "rows of a and b"),
      {shape<F>(b_is + "[4, 2]" + expected, [](auto& c) { c.b = c.m.tensor(4, 2); }),
       shape<F>(b_is + "[2, 3]" + expected, [](auto& c) { c.b = c.m.tensor(2, 3); }),
       repeated(name + ": y", &F::y), shifted(name, "y", &F::y, "a", &F::a),
       shifted(name, "y", &F::y, "b", &F::b)},
  });
}

template <Operation op>
std::vector<Refusal> of_sum_backward() {
  using B = SumBackward<op>;
  const std::string name = names[op] + "_backward";
  return all_of({
      countable(name + ": dy", &B::dy, {4, 3}),
      output(name, "da", &B::da, {4, 3}, "the shape of dy, or one row"),
      output(name, "db", &B::db, {4, 3}, "the shape of dy, or one row"),
      {repeated(name + ": da", &B::da), shifted(name, "da", &B::da, "dy", &B::dy),
       repeated(name + ": db", &B::db), overlapping(name + ": db", &B::db, "da", &B::da),
       shifted(name, "db", &B::db, "dy", &B::dy)},
  });
}

const Refusals forward_refusals(all_of({of_forward<addition>(), of_forward<subtraction>(),
                                        of_forward<multiplication>(), of_forward<division>()}));

const Refusals sum_backward_refusals(all_of({of_sum_backward<addition>(),
                                             of_sum_backward<subtraction>()}));

using Multiply = MultiplyBackward;
const Refusals multiply_backward_refusals(all_of({
    countable("multiply_backward: dy", &Multiply::dy, {4, 3}),
    output("multiply_backward", "a", &Multiply::a, {4, 3}, "the shape of dy, or one row"),
    output("multiply_backward", "b", &Multiply::b, {4, 3}, "the shape of dy, or one row"),
    output("multiply_backward", "da", &Multiply::da, {4, 3}, "the shape of a"),
    output("multiply_backward", "db", &Multiply::db, {4, 3}, "the shape of b"),
    {argument<Multiply>("multiply_backward: dy has 4 rows, expected 1 (a and b have one row each)",
                        [](Multiply& c) {
                          c.a = c.m.tensor(1, 3);
                          c.b = c.m.tensor(1, 3);
                        }),
     repeated("multiply_backward: da", &Multiply::da),
     overlapping("multiply_backward: da", &Multiply::da, "dy", &Multiply::dy),
     overlapping("multiply_backward: da", &Multiply::da, "a", &Multiply::a),
     overlapping("multiply_backward: da", &Multiply::da, "b", &Multiply::b),
     repeated("multiply_backward: db", &Multiply::db),
     overlapping("multiply_backward: db", &Multiply::db, "dy", &Multiply::dy),
     overlapping("multiply_backward: db", &Multiply::db, "a", &Multiply::a),
     overlapping("multiply_backward: db", &Multiply::db, "b", &Multiply::b),
     overlapping("multiply_backward: db", &Multiply::db, "da", &Multiply::da)},
}));

using Divide = DivideBackward;
const Refusals divide_backward_refusals(all_of({
    countable("divide_backward: dy", &Divide::dy, {4, 3}),
    output("divide_backward", "b", &Divide::b, {4, 3}, "the shape of dy, or one row"),
    output("divide_backward", "y", &Divide::y, {4, 3}, "the shape of dy"),
    output("divide_backward", "da", &Divide::da, {4, 3}, "the shape of dy, or one row"),
    output("divide_backward", "db", &Divide::db, {4, 3}, "the shape of b"),
    {repeated("divide_backward: da", &Divide::da),
     overlapping("divide_backward: da", &Divide::da, "dy", &Divide::dy),
     overlapping("divide_backward: da", &Divide::da, "b", &Divide::b),
     overlapping("divide_backward: da", &Divide::da, "y", &Divide::y),
     repeated("divide_backward: db", &Divide::db),
     overlapping("divide_backward: db", &Divide::db, "dy", &Divide::dy),
     overlapping("divide_backward: db", &Divide::db, "b", &Divide::b),
     overlapping("divide_backward: db", &Divide::db, "y", &Divide::y),
     overlapping("divide_backward: db", &Divide::db, "da", &Divide::da)},
}));

const Refusals scale_refusals(all_of({
    countable("scale_forward: x", &ScaleForward::x, {4, 3}),
    output("scale_forward", "y", &ScaleForward::y, {4, 3}, "the shape of x"),
    {repeated("scale_forward: y", &ScaleForward::y),
     shifted("scale_forward", "y", &ScaleForward::y, "x", &ScaleForward::x),
     argument<ScaleForward>("scale_forward: alpha is inf, expected a finite number",
                            [](auto& c) { c.alpha = std::numeric_limits<double>::infinity(); }),
     argument<ScaleForward>("scale_forward: alpha is nan, expected a finite number",
                            [](auto& c) { c.alpha = std::numeric_limits<double>::quiet_NaN(); })},
    countable("scale_backward: dy", &ScaleBackward::dy, {4, 3}),
    output("scale_backward", "dx", &ScaleBackward::dx, {4, 3}, "the shape of dy"),
    {repeated("scale_backward: dx", &ScaleBackward::dx),
     shifted("scale_backward", "dx", &ScaleBackward::dx, "dy", &ScaleBackward::dy),
     argument<ScaleBackward>("scale_backward: alpha is inf, expected a finite number",
                             [](auto& c) { c.alpha = std::numeric_limits<double>::infinity(); })},
}));

const Refusals accumulate_refusals(all_of({
    countable("accumulate: x", &Accumulate::x, {4, 3}),
    output("accumulate", "sum", &Accumulate::sum, {4, 3}, "the shape of x"),
    {repeated("accumulate: sum", &Accumulate::sum),
     shifted("accumulate", "sum", &Accumulate::sum, "x", &Accumulate::x)},
}));

const Refusals sum_refusals(all_of({
    countable("sum_forward: x", &SumForward::x, {4, 3}),
    output("sum_forward", "total", &SumForward::total, {1}, "one number"),
    {overlapping("sum_forward: total", &SumForward::total, "x", &SumForward::x),
     shape_error("sum_forward: total holds one element at two indices, expected elements of their "
                 "own",
                 [](Witness& m) {
                   SumForward c{m};
                   c.total = m.repeated(2);
                   c.call();
                 })},
    output("sum_backward", "d_total", &TotalBackward::d_total, {1}, "one number"),
    countable("sum_backward: dx", &TotalBackward::dx, {4, 3}),
    {repeated("sum_backward: dx", &TotalBackward::dx),
     overlapping("sum_backward: dx", &TotalBackward::dx, "d_total", &TotalBackward::d_total)},
}));

}  // namespace

TEST_CASE("elementwise operations refuse bad calls before anything is written", "[bad_calls]") {
  forward_refusals.check();
  scale_refusals.check();
}

TEST_CASE("elementwise gradients refuse bad calls before anything is written", "[bad_calls]") {
  sum_backward_refusals.check();
  multiply_backward_refusals.check();
  divide_backward_refusals.check();
}

TEST_CASE("accumulate and sum refuse bad calls before anything is written", "[bad_calls]") {
  accumulate_refusals.check();
  sum_refusals.check();
}

TEMPLATE_TEST_CASE(
    "the elementwise calls that are spoilt are right before, and show when they write",
    "[bad_calls]", Forward<addition>, Forward<division>, SumBackward<subtraction>, MultiplyBackward,
    DivideBackward, ScaleForward, Accumulate, SumForward, TotalBackward) {
  Witness memory;
  TestType call{memory};
  call.call();
  CHECK(memory.written() == "a tensor");
}

}  // namespace bad_calls_elementwise
