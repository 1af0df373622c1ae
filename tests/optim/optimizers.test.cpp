// What holds of every optimiser: its bits, its state, its tallies, and what it does not touch.
#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/optimizer_problem.hpp"
#include "support/counting.hpp"

namespace optim_optimizers {

using namespace headwise_tests;

namespace {

constexpr Layout layouts[] = {Layout::dense, Layout::columns, Layout::transposed};

const AdamWOptions adamw{.learning_rate = 0.01, .beta2 = 0.99, .weight_decay = 0.1};
const SgdOptions sgd{.learning_rate = 0.01, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1};

/// The values after three steps.
template <class T, class Optimizer, class Options>
std::vector<T> stepped(const Options& options, Layout values, Layout gradients,
                       const Context& context = {}) {
  OptimizerProblem<T> problem(parameter_shapes(), values, gradients);
  Optimizer optimizer(problem.list, options);
  for (std::uint64_t step = 0; step < 3; ++step) {
    problem.set_gradients(100 * (step + 1));
    optimizer.step(0.5, context);
  }
  CHECK(problem.rest_untouched());
  return problem.values();
}

template <class T>
void check_bits() {
  ThreadPool two(2), five(5);
  const auto of_adamw = stepped<T, AdamW<T>>(adamw, Layout::dense, Layout::dense);
  const auto of_sgd = stepped<T, Sgd<T>>(sgd, Layout::dense, Layout::dense);
  for (const Layout values : layouts) {
    for (const Layout gradients : layouts) {
      CAPTURE(sizeof(T), static_cast<int>(values), static_cast<int>(gradients));
      CHECK((stepped<T, AdamW<T>>(adamw, values, gradients) == of_adamw));
      CHECK((stepped<T, AdamW<T>>(adamw, values, gradients, {.executor = two}) == of_adamw));
      CHECK((stepped<T, Sgd<T>>(sgd, values, gradients) == of_sgd));
      CHECK((stepped<T, Sgd<T>>(sgd, values, gradients, {.executor = five}) == of_sgd));
    }
  }
}

}  // namespace

TEST_CASE("a step has the same bits for any strides and number of threads", "[optim]") {
  check_bits<float>();
  check_bits<double>();
  check_bits<long double>();
}

TEST_CASE("a step whose executor throws is not counted", "[optim]") {
  struct Failing {
    void run(Index, TaskRef) { throw std::bad_alloc(); }
    Index concurrency() const { return 1; }
  } failing;
  OptimizerProblem<double> problem({{3, 7}}, Layout::dense);
  const auto before = problem.values();
  AdamW<double> of_adamw(problem.list, adamw);
  Sgd<double> of_sgd(problem.list, sgd);
  CHECK_THROWS_AS(of_adamw.step({.executor = failing}), std::bad_alloc);
  CHECK_THROWS_AS(of_sgd.step({.executor = failing}), std::bad_alloc);
  CHECK(of_adamw.steps() == 0);
  CHECK(of_sgd.steps() == 0);
  CHECK(problem.values() == before);
}

TEST_CASE("a gradient_scale of 1 / n is the step along the mean of n gradients", "[optim]") {
  OptimizerProblem<double> sum({{3, 7}}, Layout::dense), mean({{3, 7}}, Layout::dense);
  AdamW<double> one(sum.list, adamw), other(mean.list, adamw);
  for (std::uint64_t step = 0; step < 3; ++step) {
    sum.set_gradients(step);
    mean.set_gradients(step);
    scale_gradients(mean.list, 0.25);
    one.step(0.25);
    other.step();
    CHECK(sum.values() == mean.values());
  }
}

TEST_CASE("gradients stay as they are, and NaN in one reaches its own value alone", "[optim]") {
  OptimizerProblem<double> problem({{3, 7}}, Layout::dense), clean({{3, 7}}, Layout::dense);
  problem.list[0].gradient.data()[4] = std::numeric_limits<double>::quiet_NaN();
  clean.list[0].gradient.data()[4] = 0;
  AdamW<double> one(problem.list, adamw), other(clean.list, adamw);
  const auto before = clean.gradients();
  one.step();
  other.step();
  CHECK(clean.gradients() == before);
  const auto dirty = problem.values(), expected = clean.values();
  for (std::size_t n = 0; n < dirty.size(); ++n) {
    CHECK((n == 4 ? dirty[n] != dirty[n] : dirty[n] == expected[n]));
  }
}

TEST_CASE("the first step of AdamW is the learning rate against the sign of the gradient",
          "[optim]") {
  OptimizerProblem<double> problem({{3, 7}}, Layout::dense);
  const auto before = problem.values(), slopes = problem.gradients();
  AdamW<double> optimizer(problem.list, {.learning_rate = 0.25, .epsilon = 0, .weight_decay = 0});
  for (int step = 0; step < 2; ++step) optimizer.step();  // the same gradient: the same step
  const auto after = problem.values();
  for (std::size_t n = 0; n < after.size(); ++n) {
    const double way = slopes[n] < 0 ? 0.5 : -0.5;
    CHECK(std::abs(after[n] - before[n] - way) < 1e-14);
  }
}

TEST_CASE("AdamW without an epsilon goes by the sign of gradients however small", "[optim]") {
  for (const double epsilon : {0.0, 1e-30}) {
    Tensor<float, 1> value(Shape<1>{1}), gradient(Shape<1>{1});
    value(0) = 1, gradient(0) = 1e-20f;
    ParameterList<float> list;
    list.add("x", value, gradient);
    AdamW<float> optimizer(list, {.learning_rate = 0.1, .epsilon = epsilon, .weight_decay = 0});
    for (int n = 0; n < 3; ++n) optimizer.step();
    CHECK(std::abs(value(0) - 0.7f) < 0.01f);  // of the mean of squares few digits are left
  }
}

TEST_CASE("an optimiser goes on from any number of steps that a double tells from the next",
          "[optim]") {
  OptimizerProblem<double> problem({{3, 7}}, Layout::dense);
  AdamW<double> optimizer(problem.list, {});
  constexpr std::int64_t most = std::int64_t{1} << 53;
  for (const std::int64_t steps : {std::int64_t{0}, most}) {
    optimizer.set_steps(steps);
    CHECK(optimizer.steps() == steps);
  }
  CHECK_THROWS_AS(optimizer.set_steps(most + 1), ArgumentError);
  CHECK(optimizer.steps() == most);
}

TEST_CASE("the first velocity of Sgd is the gradient, whatever the dampening", "[optim]") {
  OptimizerProblem<double> problem({{3, 7}}, Layout::dense);
  Sgd<double> optimizer(problem.list, {.momentum = 0.5, .dampening = 0.75});
  optimizer.step();
  optimizer.for_each_state([&](const NamedTensor<double>& velocity) {
    CHECK(std::equal(velocity.view.data(), velocity.view.data() + 21,
                     problem.list[0].gradient.data()));
  });
}

TEST_CASE("groups have options of their own: decay of 0 leaves a vector that has no gradient",
          "[optim]") {
  Tensor2<double> w({2, 3}), dw({2, 3});
  Tensor1<double> b(3), db(3);
  fill(w, 1.0);
  fill(b, 1.0);
  ParameterList<double> list;
  list.add("w", w, dw);
  list.add("b", b, db);
  AdamW<double> optimizer;
  optimizer.add_group(list.matrices(), {.learning_rate = 0.5, .weight_decay = 0.25});
  optimizer.add_group(list.vectors(), {.learning_rate = 0.5, .weight_decay = 0});
  REQUIRE(optimizer.groups().size() == 2);
  optimizer.step();
  for (const double x : w) CHECK(x == 1 - 0.5 * 0.25);
  for (const double x : b) CHECK(x == 1);
  optimizer.set_learning_rate(1);
  optimizer.step();
  for (const double x : w) CHECK(x == (1 - 0.5 * 0.25) * 0.75);
  CHECK(optimizer.steps() == 2);
}

TEST_CASE("state is walked by name in the parameters' shapes", "[optim]") {
  OptimizerProblem<float> problem({{3, 7}, {2, 2}}, Layout::columns);
  AdamW<float> optimizer(problem.list);
  optimizer.step();
  std::vector<std::string> names;
  optimizer.for_each_state([&](const NamedTensor<float>& tensor) {
    names.push_back(tensor.name + " " + format_extents(tensor.extents()));
    CHECK(tensor.view(Shape<8>(0, 0, 0, 0, 0, 0, 1, 1)) != 0);
  });
  CHECK(names ==
        std::vector<std::string>{"m.p0 [3, 7]", "m.p1 [2, 2]", "v.p0 [3, 7]", "v.p1 [2, 2]"});
  Sgd<float> plain(problem.list), moved(problem.list, {.momentum = 0.5});
  plain.for_each_state([](const auto&) { CHECK(false); });
  int tensors = 0;
  moved.for_each_state(
      [&](const auto& tensor) { CHECK(tensor.name == "velocity.p" + std::to_string(tensors++)); });
  CHECK(tensors == 2);
}

TEST_CASE("a copy of an optimiser has state of its own and goes on with the same bits", "[optim]") {
  OptimizerProblem<double> problem({{3, 7}}, Layout::dense);
  AdamW<double> optimizer(problem.list, adamw);
  optimizer.step();
  const auto before = problem.values();
  AdamW<double> copy = optimizer;
  optimizer.step();
  const auto after = problem.values();
  for_each_index(Shape{3, 7}, [&](const Shape<2>& at) {
    problem.list[0].view.data()[at[0] * 7 + at[1]] =
        before[static_cast<std::size_t>(at[0] * 7 + at[1])];
  });
  copy.step();
  CHECK(problem.values() == after);
}

TEST_CASE("the tallies of a step, a norm and a clip are what they compute", "[optim]") {
  OptimizerProblem<Counting> problem({{3, 7}, {1, 2}}, Layout::columns);
  const auto check = [&](auto&& call) {
    FlopTally tally;
    const auto counted = count_operations([&] { call(Context{.flops = &tally}); });
    CHECK(tally.useful == tally.executed);
    return counted.total() - tally.useful;
  };
  AdamW<Counting> of_adamw(problem.list, adamw);
  AdamW<Counting> near(problem.list, {.beta1 = 0.25});
  for (int step = 0; step < 2; ++step) {
    CHECK(check([&](const Context& c) { of_adamw.step(c); }) == 0);
    CHECK(check([&](const Context& c) { near.step(c); }) == 0);
  }
  for (const SgdOptions& o :
       {SgdOptions{}, SgdOptions{.weight_decay = 0.1}, SgdOptions{.momentum = 0.5},
        SgdOptions{.momentum = 0.5, .nesterov = true}, sgd}) {
    Sgd<Counting> optimizer(problem.list, o);
    CHECK(check([&](const Context& c) { optimizer.step(c); }) == 0);
    CHECK(check([&](const Context& c) { optimizer.step(c); }) == 0);
  }
  CHECK(check([&](const Context& c) { scale_gradients(problem.list, Counting(2), c); }) == 0);
  // One addition a task, one for each of its parts, and the root.
  CHECK(check([&](const Context& c) { gradient_norm(problem.list, c); }) == 2 + 2 + 1);
}

}  // namespace optim_optimizers
