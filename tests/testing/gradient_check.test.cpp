#include "headwise/testing/gradient_check.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"

namespace testing_gradient_check {

using namespace headwise;

namespace {

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> x(shape);
  std::uint64_t position = 0;
  for (T& value : x) value = static_cast<T>(philox_normal(philox_key(seed), position++));
  return x;
}

template <class T>
Tensor2<T> matrix_product(const In<T, 2>& a, const In<T, 2>& b) {
  Tensor2<T> c(Shape{a.extent(0), b.extent(1)});
  for_each_index(c.shape(), [&](const Shape<2>& i) {
    for (Index k = 0; k < a.extent(1); ++k) c(i) += a(i[0], k) * b(k, i[1]);
  });
  return c;
}

/// x^3 of any shape, and its gradient for dy = 1.
struct Cube {
  Tensor2<double> x, dx;

  explicit Cube(const Shape<2>& shape) : x(normal<double>(shape, 3)), dx(shape) {
    for_each_index(shape, [&](const Shape<2>& i) { dx(i) = 3 * x(i) * x(i); });
  }
  double loss() const {
    double sum = 0;
    for (double value : x) sum += value * value * value;
    return sum;
  }
  GradientReport check(const GradientCheckOptions& options = {}) {
    GradientCheck<double> gradients(options);
    gradients.input("x", x, dx);
    return gradients.run([&] { return loss(); });
  }
};

struct Product {
  Tensor2<double> a = normal<double>(Shape{3, 5}, 1), b = normal<double>(Shape{5, 2}, 2);
  Tensor2<double> dc = normal<double>(Shape{3, 2}, 3);
  Tensor2<double> da = matrix_product<double>(dc, transpose(b, 0, 1));
  Tensor2<double> db = matrix_product<double>(transpose(a, 0, 1), dc);

  GradientReport check() {
    GradientCheck<double> gradients;
    gradients.input("a", a, da);
    gradients.input("b", b, db);
    return gradients.run([&] { return weighted_sum(dc, matrix_product<double>(a, b)); });
  }
};

/// NaN, infinity, -infinity: from bits, since -ffast-math takes 0 / 0 for 0.
double special(std::uint64_t top_bits) {
  const volatile std::uint64_t bits = top_bits << 48;
  return std::bit_cast<double>(std::uint64_t{bits});
}
double worst_of(const GradientReport& report) { return report.worst().error; }

}  // namespace

TEST_CASE("the gradient of x^3 passes with either stencil", "[testing]") {
  Cube cube(Shape{4, 3});
  CHECK(cube.check());
  CHECK(cube.check({.tolerance = 1e-11, .stencil = Stencil::five_point}));
}

TEST_CASE("the gradients of a matrix product pass for both factors", "[testing]") {
  const GradientReport report = Product().check();
  CHECK(report);
  CHECK(report.inputs.size() == 2);
  CHECK(report.inputs[0].compared == 15);
  CHECK(report.inputs[1].compared == 10);
}

TEST_CASE("a gradient of the wrong sign is caught", "[testing]") {
  Cube cube(Shape{4, 3});
  for (double& value : cube.dx) value = -value;
  const GradientReport report = cube.check();
  CHECK_FALSE(report);
  CHECK(worst_of(report) == Approx(2).epsilon(0.01));
}

TEST_CASE("one element that is off by 1e-6 of the largest is caught and named", "[testing]") {
  const double largest = worst_of(Cube(Shape{4, 3}).check());
  REQUIRE(largest < 1e-9);
  for_each_index(Shape{4, 3}, [&](const Shape<2>& index) {
    Cube cube(Shape{4, 3});
    double max_dx = 0;
    for (double value : cube.dx) max_dx = std::max(max_dx, value);
    cube.dx(index) += 1e-6 * max_dx;
    const GradientReport report = cube.check();
    CAPTURE(report.message());
    CHECK_FALSE(report);
    CHECK(report.worst().index == std::vector<Index>{index[0], index[1]});
    CHECK(report.message().find("dx[" + std::to_string(index[0]) + ", ") == 0);
  });
}

TEST_CASE("a factor whose gradient is wrong is told from one whose gradient is right",
          "[testing]") {
  Product product;
  product.db(4, 1) *= 1 + 1e-6;
  const GradientReport report = product.check();
  CHECK_FALSE(report);
  CHECK(report.worst().input == "b");
  CHECK(report.worst().index == std::vector<Index>{4, 1});
  CHECK(report.inputs[0].error < 1e-8);
}

TEST_CASE("NaN and infinity in a gradient or in the loss fail by name at any tolerance",
          "[testing]") {
  for (const std::uint64_t top_bits : {0x7FF8u, 0x7FF0u, 0xFFF0u}) {
    for (const Index full_below : {Index{400}, Index{0}}) {
      CAPTURE(top_bits, full_below);
      Cube cube(Shape{4, 3});
      cube.dx(2, 1) = special(top_bits);
      const GradientReport report = cube.check({.full_below = full_below});
      CHECK_FALSE(report.ok(1e300));
      CHECK(report.worst().index == std::vector<Index>{2, 1});
    }
  }
  for (const Index full_below : {Index{400}, Index{0}}) {
    Cube cube(Shape{4, 3});
    GradientCheck<double> gradients({.full_below = full_below});
    gradients.input("x", cube.x, cube.dx);
    const double at = cube.x(3, 0);
    const GradientReport report =
        gradients.run([&] { return cube.x(3, 0) > at ? special(0x7FF8u) : cube.loss(); });
    CHECK_FALSE(report.ok(1e300));
    CHECK(report.worst().index == std::vector<Index>{3, 0});
    CHECK(report.message().find("dx[3, 0]") == 0);
  }
}

TEST_CASE("a true gradient of 0 passes, and a wrong one beside it does not", "[testing]") {
  auto x = normal<double>(Shape{7}, 5);
  Tensor1<double> dx(Shape{7});
  GradientCheck<double> gradients;
  gradients.input("x", x, dx);
  // Rounding makes the differences of this constant about 1e-11, not 0.
  const auto softmax_mass = [&] {
    double mass = 0, sum = 0;
    for (double value : x) mass += std::exp(value);
    for (double value : x) sum += std::exp(value) / mass;
    return sum;
  };
  CHECK(gradients.run(softmax_mass).ok(1e-6));

  dx(4) = 1e-5;
  GradientCheck<double> wrong;
  wrong.input("x", x, dx);
  CHECK_FALSE(wrong.run(softmax_mass).ok(1e-6));
}

TEST_CASE("a large input is checked along random directions, and passes", "[testing]") {
  Cube cube(Shape{61, 83});
  const GradientReport report = cube.check();
  CAPTURE(report.message());
  CHECK(report);
  CHECK(report.worst().compared == 8);
  CHECK(report.worst().direction >= 0);
}

TEST_CASE("one wrong element of a large input is caught and named", "[testing]") {
  for (const Shape<2> at : {Shape{0, 0}, Shape{17, 80}, Shape{60, 82}}) {
    for (const Stencil stencil : {Stencil::central, Stencil::five_point}) {
      Cube cube(Shape{61, 83});
      cube.dx(at) += 1e-3;
      const GradientReport report = cube.check({.stencil = stencil, .directions = 2});
      CAPTURE(report.message());
      CHECK_FALSE(report);
      CHECK(report.worst().index == std::vector<Index>{at[0], at[1]});
      CHECK(static_cast<double>(report.worst().analytic - report.worst().numeric) ==
            Approx(1e-3).epsilon(0.01));
    }
  }
}

TEST_CASE("five_point is more than ten times as accurate as central", "[testing]") {
  const auto error = [](auto type, Stencil stencil) {
    using T = decltype(type);
    auto x = normal<T>(Shape{20}, 9);
    Tensor1<T> dx(x.shape());
    for (Index i = 0; i < x.size(); ++i) dx(i) = std::exp(x(i)) * (1 + x(i));
    GradientCheck<T> gradients({.stencil = stencil});
    gradients.input("x", x, dx);
    return worst_of(gradients.run([&] {
      T sum = 0;
      for (const T& value : x) sum += value * std::exp(value);
      return sum;
    }));
  };
  const double central = error(double{}, Stencil::central);
  const double five_point = error(double{}, Stencil::five_point);
  CAPTURE(central, five_point);
  CHECK(central < 1e-9);
  CHECK(five_point < 1e-11);
  CHECK(five_point < central / 10);

  using Long = long double;
  const double long_central = error(Long{}, Stencil::central);
  const double long_five_point = error(Long{}, Stencil::five_point);
  CAPTURE(long_central, long_five_point);
  CHECK(long_central <= central);
  CHECK(long_five_point <= five_point);
}

TEST_CASE("a gradient in double is held against differences in long double", "[testing]") {
  auto x = normal<long double>(Shape{6}, 4);
  Tensor1<double> dx(x.shape());
  for (Index i = 0; i < x.size(); ++i) dx(i) = static_cast<double>(std::cos(x(i)));
  GradientCheck<long double> gradients({.tolerance = 1e-11, .stencil = Stencil::five_point});
  gradients.input("x", x, dx);
  CHECK(gradients.run([&] {
    long double sum = 0;
    for (const long double& value : x) sum += std::sin(value);
    return sum;
  }));
}

TEST_CASE("an input has its bits back after a check, also where the loss throws", "[testing]") {
  for (const Index full_below : {Index{400}, Index{0}}) {
    Cube cube(Shape{5, 7});
    cube.x(1, 1) = 1e-300;  // lost in x + step
    cube.x(1, 2) = -0.0;
    const auto before = cube.x;
    cube.check({.stencil = Stencil::five_point, .full_below = full_below});
    CHECK(bitwise_equal(cube.x, before));

    int calls = 0;
    GradientCheck<double> gradients({.full_below = full_below});
    gradients.input("x", cube.x, cube.dx);
    CHECK_THROWS_AS(gradients.run([&] {
      if (++calls == 8) throw std::runtime_error("out of luck");
      return cube.loss();
    }),
                    std::runtime_error);
    CHECK(bitwise_equal(cube.x, before));
  }
}

TEST_CASE("an input may be a strided view, and only its elements are moved", "[testing]") {
  auto storage = normal<double>(Shape{4, 6}, 8);
  const auto column = slice(storage, 1, 2, 1);
  Tensor2<double> dx(column.shape());
  for_each_index(dx.shape(), [&](const Shape<2>& i) { dx(i) = 2 * column(i); });
  GradientCheck<double> gradients;
  gradients.input("x", column, dx);
  CHECK(gradients.run([&] {
    double sum = 0;
    for (double value : storage) sum += value * value;
    return sum;
  }));
}

TEST_CASE("the message names element, both values, error, tolerance and seed", "[testing]") {
  Tensor1<double> x(Shape{2}, {1, 2});
  const Tensor1<double> dx(Shape{2}, {1, 1.5});
  GradientCheck<double> gradients({.seed = 7});
  gradients.input("x", x, dx);
  const GradientReport report = gradients.run([&] { return x(0) + x(1); });
  CHECK(report.message(1e-9) == "dx[1]: analytic 1.5, numeric 1, error 0.5 > 1e-09 (seed 7)");
}

TEST_CASE("max_dy scales what a gradient of 0 may be off by", "[testing]") {
  Tensor1<double> x(Shape{1}, {1});
  const Tensor1<double> dx(Shape{1}, {1e-3});
  const auto error = [&](double max_dy) {
    GradientCheck<double> gradients({.max_dy = max_dy});
    gradients.input("x", x, dx);
    return worst_of(gradients.run([] { return 0.0; }));
  };
  CHECK(error(1) == Approx(1));
  CHECK(error(1000) == Approx(1e-3));
}

TEST_CASE("an input without elements passes", "[testing]") {
  Tensor2<double> x(Shape{0, 3});
  GradientCheck<double> gradients;
  gradients.input("x", x, Tensor2<double>(Shape{0, 3}));
  CHECK(gradients.run([] { return 1.0; }));
}

}  // namespace testing_gradient_check
