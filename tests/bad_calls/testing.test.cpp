// The tools that users prove their own kernels with: options and shapes that prove nothing.
#include "headwise/testing/check_op.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/laws.hpp"
#include "support/refusal_rules.hpp"

namespace bad_calls_testing {

using namespace headwise_tests;

namespace {

const double infinity = std::numeric_limits<double>::infinity(),
             nan = std::numeric_limits<double>::quiet_NaN();

Refusal close(const std::string& message, double tolerance, double floor) {
  return argument_error("close_to: " + message, [=](Witness& m) {
    const auto x = m.tensor(2);
    (void)close_to(In<double, 1>(x), In<double, 1>(x), tolerance, {.floor = floor});
  });
}

const Refusals comparisons({
    shape_error("close_to: actual is [2, 3], expected [3, 2] (the shape of expected)",
                [](Witness& m) {
                  (void)close_to(In<double, 2>(m.tensor(2, 3)), In<double, 2>(m.tensor(3, 2)), 1);
                }),
    close("tolerance is -1, expected a finite number >= 0", -1, 0),
    close("tolerance is inf, expected a finite number >= 0", infinity, 0),
    close("tolerance is nan, expected a finite number >= 0", nan, 0),
    close("floor is -1, expected a finite number >= 0", 0, -1),
    close("floor is nan, expected a finite number >= 0", 0, nan),
    shape_error("bitwise_equal: actual is [2], expected [3] (the shape of expected)",
                [](Witness& m) {
                  (void)bitwise_equal(In<double, 1>(m.tensor(2)), In<double, 1>(m.tensor(3)));
                }),
});

struct Options {
  std::string message;
  GradientCheckOptions options;
};
std::vector<Refusal> of_options() {
  std::vector<Refusal> refusals;
  for (const Options& bad : std::vector<Options>{
           {"tolerance is 0, expected a finite number above 0", {.tolerance = 0}},
           {"tolerance is -1, expected a finite number above 0", {.tolerance = -1}},
           {"tolerance is inf, expected a finite number above 0", {.tolerance = infinity}},
           {"tolerance is nan, expected a finite number above 0", {.tolerance = nan}},
           {"step is -1, expected a finite number above 0, or 0 for the default", {.step = -1}},
           {"step is inf, expected a finite number above 0, or 0 for the default",
            {.step = infinity}},
           {"directions is 0, expected at least 1", {.directions = 0}},
           {"full_below is -1, expected at least 0", {.full_below = -1}},
           {"max_dy is -1, expected a finite number of at least 0", {.max_dy = -1}},
           {"max_dy is nan, expected a finite number of at least 0", {.max_dy = nan}},
       }) {
    refusals.push_back(argument_error("GradientCheck: " + bad.message, [bad](Witness&) {
      GradientCheck<double> check(bad.options);
    }));
    refusals.push_back(argument_error("check_op: " + bad.message, [bad](Witness& m) {
      const auto same = [](const auto& x) { return x; };
      (void)check_op(same, same, In<double, 1>(m.tensor(3)), bad.options);
    }));
  }
  return refusals;
}

void check_input(const View<1>& x, const In<double, 1>& dx) {
  GradientCheck<double> check;
  check.input("x", x, dx);
}

const Refusals gradients(all_of({
    of_options(),
    {
        shape_error("GradientCheck: dx is [2], expected [3] (the shape of x)",
                    [](Witness& m) { check_input(m.tensor(3), m.tensor(2)); }),
        shape_error("GradientCheck: x is [3] at a null address, expected its elements",
                    [](Witness& m) { check_input(m.null(3), m.tensor(3)); }),
        shape_error("GradientCheck: x holds one element at two indices, expected elements of their "
                    "own",
                    [](Witness& m) { check_input(m.repeated(3), m.tensor(3)); }),
        argument_error("GradientCheck: inputs are 0, expected at least one before run",
                       [](Witness&) { (void)GradientCheck<double>().run([] { return 0.0; }); }),
        argument_error("GradientReport: inputs are 0, expected at least one that was checked",
                       [](Witness&) { (void)GradientReport().ok(); }),
        shape_error("weighted_sum: dy is [2], expected [3] (the shape of y)",
                    [](Witness& m) {
                      (void)weighted_sum(In<double, 1>(m.tensor(2)), In<double, 1>(m.tensor(3)));
                    }),
        shape_error("check_op: dx from backward is [2], expected [3] (the shape of x)",
                    [](Witness& m) {
                      (void)check_op([](const auto& x) { return x; },
                                     [](const auto&) { return Tensor1<double>(2); },
                                     In<double, 1>(m.tensor(3)));
                    }),
    },
}));

/// A kernel that is not called: what is wrong is found before.
AttentionKernel<double> kernel() {
  AttentionKernel<double> never{"never", {}};
  never.forward = [](const auto&, const auto&) { FAIL("the kernel was called"); };
  return never;
}
Refusal shape_of_law(const std::string& shape, const LawShape& given) {
  return argument_error(
      "run_laws: shape is " + shape + ", expected extents >= 1 and G a divisor of H",
      [=](Witness&) {
        (void)run_laws(kernel(), {.shapes = {LawShape{}, given}});
      });
}
Refusal slack(const std::string& got, double given) {
  return argument_error("run_laws: slack is " + got + ", expected a finite number above 0",
                        [=](Witness&) { (void)run_laws(kernel(), {.slack = given}); });
}
Refusal dense(const std::string& argument, void (*spoil)(AttentionProblem<double>&)) {
  return shape_error(
      "attention_arrays: " + argument + ", expected a dense tensor", [=](Witness& m) {
        AttentionProblem<double> problem{m.tensor(1, 1, 2, 3),       m.tensor(1, 1, 2, 3),
                                         m.tensor(1, 1, 2, 3),       false,
                                         m.bools(Shape{1, 1, 2, 2}), 1};
        spoil(problem);
        (void)attention_arrays(problem);
      });
}

const Refusals laws({
    argument_error("run_laws: kernel.forward is empty, expected a function",
                   [](Witness&) { (void)run_laws(AttentionKernel<double>{}); }),
    argument_error("run_laws: shapes are 0, expected at least one",
                   [](Witness&) { (void)run_laws(kernel(), {.shapes = {}}); }),
    argument_error("run_laws: laws are 0, expected at least one",
                   [](Witness&) { (void)run_laws(kernel(), {}, {}); }),
    slack("0", 0),
    slack("-1", -1),
    slack("inf", infinity),
    slack("nan", nan),
    shape_of_law("B0 H1 G1 L1 S1 d1 dv1", {.B = 0}),
    shape_of_law("B1 H0 G1 L1 S1 d1 dv1", {.H = 0}),
    shape_of_law("B1 H1 G0 L1 S1 d1 dv1", {.G = 0}),
    shape_of_law("B1 H1 G1 L-1 S1 d1 dv1", {.L = -1}),
    shape_of_law("B1 H1 G1 L1 S0 d1 dv1", {.S = 0}),
    shape_of_law("B1 H1 G1 L1 S1 d0 dv1", {.d = 0}),
    shape_of_law("B1 H1 G1 L1 S1 d1 dv0", {.dv = 0}),
    shape_of_law("B1 H3 G2 L1 S1 d1 dv1", {.H = 3, .G = 2}),
    argument_error("ScoreCard: law is no such law, expected one of its rows",
                   [](Witness&) { (void)ScoreCard()["no such law"]; }),
    argument_error("attention_kernel: forward is null, expected a function",
                   [](Witness&) { (void)attention_kernel<double>("none", nullptr); }),
    dense("q has strides [6, 6, 4, 1]",
          [](auto& x) {
            x.q = In<double, 4>(x.q.data(), {1, 1, 2, 3}, {6, 6, 4, 1});
          }),
    dense("k has strides [6, 6, 1, 2]",
          [](auto& x) {
            x.k = In<double, 4>(x.k.data(), {1, 1, 2, 3}, {6, 6, 1, 2});
          }),
    dense("v has strides [6, 6, 0, 1]",
          [](auto& x) {
            x.v = In<double, 4>(x.v.data(), {1, 1, 2, 3}, {6, 6, 0, 1});
          }),
    dense("keep has strides [0, 0, 0, 1]",
          [](auto& x) {
            x.keep = In<bool, 4>(x.keep.data(), {1, 1, 2, 2}, {0, 0, 0, 1});
          }),
});

}  // namespace

TEST_CASE("comparisons refuse shapes that differ and tolerances out of range", "[bad_calls]") {
  comparisons.check();
}

TEST_CASE("gradient checks refuse what would prove nothing", "[bad_calls]") { gradients.check(); }

TEST_CASE("laws refuse kernels, shapes and slacks that prove nothing", "[bad_calls]") {
  laws.check();
}

}  // namespace bad_calls_testing
