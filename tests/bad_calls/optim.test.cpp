// Lists of parameters, optimisers and schedules: what they refuse.
#include <limits>

#include "bad_calls/layer.hpp"

namespace bad_calls_optim {

using namespace headwise_tests;

namespace {

struct Add {
  Witness& m;
  Matrix value = m.tensor(2, 3), gradient = m.tensor(2, 3);
  Matrix other = m.tensor(4, 3), other_gradient = m.tensor(4, 3);
  std::string name = "w";
  void call() {
    ParameterList<double> list;
    list.add("other", other, other_gradient);
    try {
      list.add(name, value, gradient);
    } catch (...) {
      if (list.size() != 1 || list.elements() != 12) throw std::logic_error("the list has changed");
      throw;
    }
  }
};

const Refusals list_refusals(all_of({
    countable("ParameterList::add: value", &Add::value, {2, 3}),
    output("ParameterList::add", "gradient", &Add::gradient, {2, 3}, "the shape of value"),
    {
        overlapping("ParameterList::add: value", &Add::value, "gradient", &Add::gradient),
        overlapping("ParameterList::add: value", &Add::value, "an earlier value", &Add::other),
        overlapping("ParameterList::add: value", &Add::value, "an earlier gradient",
                    &Add::other_gradient),
        overlapping("ParameterList::add: gradient", &Add::gradient, "an earlier value",
                    &Add::other),
        overlapping("ParameterList::add: gradient", &Add::gradient, "an earlier gradient",
                    &Add::other_gradient),
        repeated("ParameterList::add: value", &Add::value),
        repeated("ParameterList::add: gradient", &Add::gradient),
        argument<Add>("ParameterList::add: name is empty, expected one like W_Q",
                      [](Add& c) { c.name = ""; }),
        argument<Add>("ParameterList::add: name other was added before",
                      [](Add& c) { c.name = "other"; }),
    },
}));

Refusal collecting(std::string message, bool shapes, LinearParameters<double> (*gradients)()) {
  const auto call = [gradients](Witness& memory) {
    Linear<double>& linear = memory.make<Linear<double>>(3, 2);
    auto& wrong = memory.make<LinearParameters<double>>(gradients());
    ParameterList<double> list;
    memory.keep(linear);
    memory.keep(wrong);
    collect(list, "a.", linear.parameters(), wrong);
  };
  return shapes ? shape_error(std::move(message), call) : argument_error(std::move(message), call);
}

const Refusals collect_refusals({
    collecting("collect: gradients hold 1 tensors, expected 2 (parameters)", false,
               [] { return Linear<double>(3, 2, false).zero_gradients(); }),
    collecting("collect: the gradient of a.W is [3, 4], expected [3, 2] (zero_gradients())", true,
               [] { return Linear<double>(3, 4).zero_gradients(); }),
});

constexpr double infinite = std::numeric_limits<double>::infinity();

/// An optimiser over a layer, which has to be as it was after a call that is refused.
template <class Optimizer, class Options>
Refusal optimizer_call(std::string message, void (*call)(Optimizer&), const Options& options = {}) {
  return argument_error(std::move(message), [=](Witness& memory) {
    Layer<>& layer = memory.make<Layer<>>();
    Optimizer& optimizer = memory.make<Optimizer>(layer.list, options);
    memory.keep(layer.linear);
    memory.keep(layer.gradients);
    try {
      call(optimizer);
    } catch (...) {
      if (optimizer.steps() != 0) throw std::logic_error("a step was counted");
      throw;
    }
  });
}

/// Each rule of options, told by the constructor and by the step.
template <class Optimizer, class Options, class T = double>
std::vector<Refusal> option_rules(const std::string& name,
                                  const std::vector<std::pair<std::string, Options>>& rules) {
  std::vector<Refusal> refusals;
  for (const auto& [rule, options] : rules) {
    const Options wrong = options;
    refusals.push_back(argument_error("Optimizer::add_group: " + rule, [wrong](Witness& memory) {
      Layer<T>& layer = memory.make<Layer<T>>();
      memory.keep(layer.linear);
      Optimizer(layer.list, wrong);
    }));
    refusals.push_back(argument_error(name + "::step: " + rule, [wrong](Witness& memory) {
      Layer<T>& layer = memory.make<Layer<T>>();
      Optimizer& optimizer = memory.make<Optimizer>(layer.list);
      memory.keep(layer.linear);
      optimizer.groups()[0].options = wrong;
      optimizer.step();
    }));
  }
  return refusals;
}

const std::string from_0 = ", expected a finite number of 0 or more";
const std::string held_from_0 = ", expected 0 or more, finite in the parameters' type";
const std::string finite = ", expected a number that is finite in the parameters' type";
const std::string below_1 = ", expected 0 or more and below 1";

const Refusals adamw_options(option_rules<AdamW<double>, AdamWOptions>(
    "AdamW", {{"learning_rate is -1" + held_from_0, {.learning_rate = -1}},
              {"learning_rate is inf" + held_from_0, {.learning_rate = infinite}},
              {"beta1 is 1" + below_1, {.beta1 = 1}},
              {"beta2 is -0.5" + below_1, {.beta2 = -0.5}},
              {"epsilon is -1" + held_from_0, {.epsilon = -1}},
              {"weight_decay is -1" + held_from_0, {.weight_decay = -1}}}));

const Refusals adamw_of_float(option_rules<AdamW<float>, AdamWOptions, float>(
    "AdamW", {{"epsilon is 1e-60 and rounds to 0 in the parameters' type, expected a greater "
               "one, or 0",
               {.epsilon = 1e-60}},
              {"learning_rate is 1e+300" + held_from_0, {.learning_rate = 1e300}}}));

const Refusals sgd_options(option_rules<Sgd<double>, SgdOptions>(
    "Sgd",
    {{"learning_rate is -1" + held_from_0, {.learning_rate = -1}},
     {"momentum is -1" + held_from_0, {.momentum = -1}},
     {"dampening is inf" + finite, {.dampening = infinite}},
     {"nesterov is set, expected a momentum above 0 and no dampening with it", {.nesterov = true}},
     {"nesterov is set, expected a momentum above 0 and no dampening with it",
      {.momentum = 0.5, .dampening = 0.5, .nesterov = true}},
     {"weight_decay is -1" + held_from_0, {.weight_decay = -1}}}));

const Refusals optimizer_refusals({
    optimizer_call<AdamW<double>, AdamWOptions>("AdamW::step: gradient_scale is inf" + finite,
                                                [](auto& o) { o.step(infinite); }),
    optimizer_call<Sgd<double>, SgdOptions>("Sgd::step: gradient_scale is inf" + finite,
                                            [](auto& o) { o.step(infinite); }),
    optimizer_call<Sgd<double>, SgdOptions>(
        "Sgd::step: momentum is 0 where it was not when the group was added, or the other way "
        "round",
        [](auto& o) {
          o.groups()[0].options.momentum = 0.5;
          o.step();
        }),
    optimizer_call<AdamW<double>, AdamWOptions>(
        "Optimizer::set_steps: steps is -1, expected 0 to 2^53", [](auto& o) { o.set_steps(-1); }),
    optimizer_call<AdamW<double>, AdamWOptions>(
        "Optimizer::add_group: parameter W is in a group already",
        [](auto& o) { o.add_group(o.groups()[0].parameters.matrices(), {}); }),
    optimizer_call<AdamW<double>, AdamWOptions>(
        "Optimizer::add_group: parameter again shares elements with W, which is in a group "
        "already: expected each once",
        [](auto& o) {
          Parameter<double> again = o.groups()[0].parameters[0];
          again.name = "again";
          ParameterList<double> list;
          list.add(again);
          o.add_group(list, {});
        }),
    optimizer_call<AdamW<double>, AdamWOptions>(
        "Optimizer::add_group: parameter dW shares elements with W, which is in a group already: "
        "expected each once",
        [](auto& o) {
          Tensor<double, 2> gradient({3, 2});
          ParameterList<double> list;
          list.add("dW", Out<double, 2>(o.groups()[0].parameters[0].gradient.data(), {3, 2}),
                   gradient);
          o.add_group(list, {});
        }),
    argument_error("AdamW::step: there are no parameters, expected a group of them",
                   [](Witness&) { AdamW<double>().step(); }),
    argument_error("Sgd::step: there are no parameters, expected a group of them",
                   [](Witness&) { Sgd<float>().step(); }),
    argument_error("AdamW::step: there are no parameters, expected a group of them",
                   [](Witness&) { AdamW<double>(ParameterList<double>()).step(); }),
    argument_error("Optimizer::add_group: 1 steps were taken, expected all groups before the first",
                   [](Witness& memory) {
                     Layer<>& layer = memory.make<Layer<>>();
                     auto& optimizer = memory.make<AdamW<double>>(memory.make<Layer<>>().list);
                     optimizer.step();
                     memory.keep(layer.linear);
                     optimizer.add_group(layer.list, {});
                   }),
    argument_error("clip_grad_norm: max_norm is 0, expected a finite number above 0",
                   [](Witness& memory) {
                     Layer<>& layer = memory.make<Layer<>>();
                     memory.keep(layer.gradients);
                     clip_grad_norm(layer.list, 0);
                   }),
    argument_error("clip_factor: max_norm is -1, expected a finite number above 0",
                   [](Witness&) { clip_factor(1.0, -1); }),
});

template <class Schedule>
Refusal scheduled(std::string message, const Schedule& schedule, std::int64_t step = 0) {
  return argument_error(std::move(message), [=](Witness&) { schedule(step); });
}

const Refusals schedule_refusals({
    scheduled("ConstantSchedule: rate is -1" + from_0, ConstantSchedule{.rate = -1}),
    scheduled("ConstantSchedule: step is -1, expected >= 0", ConstantSchedule{}, -1),
    scheduled("CosineSchedule: peak is -1" + from_0, CosineSchedule{.peak = -1}),
    scheduled("CosineSchedule: floor is inf" + from_0, CosineSchedule{.floor = infinite}),
    scheduled("CosineSchedule: warmup_steps is -1, expected >= 0",
              CosineSchedule{.warmup_steps = -1}),
    scheduled("CosineSchedule: total_steps is 1, expected at least warmup_steps, 2",
              CosineSchedule{.warmup_steps = 2, .total_steps = 1}),
    scheduled("CosineSchedule: total_steps is -1, expected at least warmup_steps, 0",
              CosineSchedule{}),
    scheduled("CosineSchedule: step is -1, expected >= 0", CosineSchedule{.total_steps = 1}, -1),
    scheduled("LinearSchedule: peak is -1" + from_0, LinearSchedule{.peak = -1}),
    scheduled("LinearSchedule: floor is inf" + from_0, LinearSchedule{.floor = infinite}),
    scheduled("LinearSchedule: warmup_steps is -1, expected >= 0",
              LinearSchedule{.warmup_steps = -1}),
    scheduled("LinearSchedule: total_steps is 1, expected at least warmup_steps, 2",
              LinearSchedule{.warmup_steps = 2, .total_steps = 1}),
    scheduled("LinearSchedule: total_steps is -1, expected at least warmup_steps, 0",
              LinearSchedule{}),
    scheduled("LinearSchedule: step is -1, expected >= 0", LinearSchedule{.total_steps = 1}, -1),
    scheduled("StepSchedule: initial is -1" + from_0, StepSchedule{.initial = -1}),
    scheduled("StepSchedule: factor is -1" + from_0, StepSchedule{.factor = -1}),
    scheduled("StepSchedule: every is 0, expected >= 1", StepSchedule{.every = 0}),
    scheduled("StepSchedule: step is -1, expected >= 0", StepSchedule{}, -1),
});

}  // namespace

TEST_CASE("a list of parameters refuses what it cannot walk, and stays as it was", "[bad_calls]") {
  list_refusals.check();
  collect_refusals.check();
}

TEST_CASE("an optimiser refuses options out of range before anything is written", "[bad_calls]") {
  adamw_options.check();
  adamw_of_float.check();
  sgd_options.check();
  optimizer_refusals.check();
}

TEST_CASE("a schedule refuses what has no rate", "[bad_calls]") { schedule_refusals.check(); }

}  // namespace bad_calls_optim
