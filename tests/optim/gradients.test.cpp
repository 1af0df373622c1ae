// Norms of gradients, clipping by them, and setting them to 0.
#include <cmath>
#include <limits>

#include "optim/optimizer_problem.hpp"

namespace optim_gradients {

using namespace headwise_tests;

namespace {

constexpr Layout layouts[] = {Layout::dense, Layout::columns, Layout::transposed};

template <class T>
long double norm_of(const std::vector<T>& gradients) {
  long double sum = 0;
  for (const T g : gradients) sum += static_cast<long double>(g) * static_cast<long double>(g);
  return std::sqrt(sum);
}

template <class T>
void check_norm() {
  ThreadPool pool(3);
  const OptimizerProblem<T> dense(parameter_shapes(), Layout::dense);
  const auto norm = gradient_norm(dense.list);
  const long double expected = norm_of(dense.gradients());
  // Of float too: chains of double, not of float, whose error would be thousands of times this.
  CHECK(std::abs(static_cast<long double>(norm) - expected) < 1e-14L * expected);
  for (const Layout layout : layouts) {
    const OptimizerProblem<T> same(parameter_shapes(), layout);
    CAPTURE(sizeof(T), static_cast<int>(layout));
    CHECK(gradient_norm(same.list) == norm);
    CHECK(gradient_norm(same.list, {.executor = pool}) == norm);
  }
}

}  // namespace

TEST_CASE("gradient_norm is the root of the sum of squares, the same bits for any strides",
          "[optim]") {
  check_norm<float>();
  check_norm<double>();
  check_norm<long double>();
}

TEST_CASE("clipped gradients have the norm that is asked for, and short ones stay", "[optim]") {
  for (const Layout layout : layouts) {
    OptimizerProblem<double> problem(parameter_shapes(), layout);
    const auto before = problem.gradients();
    const double norm = gradient_norm(problem.list);
    CHECK(clip_grad_norm(problem.list, norm + 1) == norm);
    CHECK(problem.gradients() == before);
    CHECK(clip_grad_norm(problem.list, 0.5) == norm);
    CHECK(std::abs(gradient_norm(problem.list) - 0.5) < 1e-6 * 0.5 / norm + 1e-14);
    const auto after = problem.gradients();
    bool right = true;
    for (std::size_t n = 0; n < after.size(); ++n) {
      right = right && after[n] == before[n] * clip_factor(norm, 0.5);
    }
    CHECK(right);
    CHECK(problem.rest_untouched());
  }
}

TEST_CASE("a step that is given clip_factor has the bits of clipping first", "[optim]") {
  OptimizerProblem<float> clipped(parameter_shapes(), Layout::columns);
  OptimizerProblem<float> scaled(parameter_shapes(), Layout::columns);
  AdamW<float> one(clipped.list), other(scaled.list);
  clip_grad_norm(clipped.list, 1.0);
  one.step();
  // The factor is rounded to float in both.
  other.step(clip_factor(gradient_norm(scaled.list), 1.0));
#if defined(__clang__) && defined(__FAST_MATH__)  // which fuses the factor with what follows
  const auto left = clipped.values(), right = scaled.values();
  for (std::size_t n = 0; n < left.size(); ++n) CHECK(std::abs(left[n] - right[n]) < 1e-5f);
#else
  CHECK(clipped.values() == scaled.values());
#endif
}

TEST_CASE("clip_factor is PyTorch's, and what is not finite shows in it", "[optim]") {
  CHECK(clip_factor(2.0, 1.0) == 1.0 / (2.0 + 1e-6));
  CHECK(clip_factor(0.5, 1.0) == 1);
  CHECK(clip_factor(0.0, 1.0) == 1);
  CHECK(clip_factor(1.0, 1.0) < 1);
  CHECK(clip_factor(std::numeric_limits<double>::infinity(), 1.0) == 0);
  const double unknown = clip_factor(std::numeric_limits<double>::quiet_NaN(), 1.0);
  CHECK(unknown != unknown);
}

TEST_CASE("zero_gradients sets every gradient to 0 and nothing else", "[optim]") {
  for (const Layout layout : layouts) {
    OptimizerProblem<double> problem(parameter_shapes(), layout);
    const auto values = problem.values();
    problem.list[1].gradient.data()[0] = std::numeric_limits<double>::quiet_NaN();
    zero_gradients(problem.list);
    CHECK(problem.gradients() == std::vector<double>(values.size()));
    CHECK(problem.values() == values);
    CHECK(problem.rest_untouched());
  }
}

}  // namespace optim_gradients
