// Dual numbers by themselves: each function against central differences in long double, which share
// no code with it, and second derivatives against closed formulas.
#include "headwise/tensor/dual.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

#include "headwise/tensor/scalar.hpp"
#include "support/catch.hpp"

namespace tensor_dual {

using namespace headwise;

namespace {

using Twice = Dual<Dual<double>>;

static_assert(Scalar<Dual<float>> && Scalar<Dual<double>> && Scalar<Dual<long double>>);
static_assert(Scalar<Twice>);
static_assert(std::is_trivially_copyable_v<Twice> && sizeof(Twice) == 4 * sizeof(double));

constexpr auto cube = [](auto x) { return x * x * x; };
static_assert(cube(Dual(2.0, 1.0)) == Dual(8.0, 12.0));
static_assert(cube(Twice({2, 1}, {1, 0})) == Twice({8, 12}, {12, 12}));
static_assert(1 / Dual(2.0, 1.0) == Dual(0.5, -0.25));

/// (f(x + h) - f(x - h)) / 2 h with an error of h^4.
template <class F>
long double central_difference(F&& f, long double x) {
  const long double h = 0x1p-12L;
  const long double near = (f(x + h) - f(x - h)) / (2 * h);
  const long double far = (f(x + 2 * h) - f(x - 2 * h)) / (4 * h);
  return near + (near - far) / 3;
}

/// What dual numbers and central differences say of f' at x differ by, relative to 1 + |f'|.
template <class F>
double slope_error(F&& f, long double x) {
  const long double expected = central_difference(f, x);
  const auto dual = f(Dual<long double>(x, 1));
  CAPTURE(x, static_cast<double>(dual.derivative), static_cast<double>(expected));
  CHECK(dual.value == f(x));
  // A seed that is not 1 scales it.
  CHECK(std::abs(f(Dual<long double>(x, -3)).derivative + 3 * dual.derivative) <=
        1e-17L * std::abs(dual.derivative));
  return static_cast<double>(std::abs(dual.derivative - expected) / (1 + std::abs(expected)));
}

/// The greatest slope_error at these x.
template <class F>
double slope_error(F&& f, const std::vector<long double>& points) {
  double greatest = 0;
  for (const long double x : points) greatest = std::max<double>(greatest, slope_error(f, x));
  return greatest;
}

// 4 h^4 f^(5) / 30 and rounding by 2^-64 / h.
constexpr double tolerance = 1e-13;

}  // namespace

TEST_CASE("a dual number's derivative is that of every function, by central differences",
          "[tensor][x87]") {
  using std::abs, std::cos, std::erf, std::erfc, std::exp, std::log, std::log1p, std::max, std::min,
      std::pow, std::sin, std::sqrt, std::tanh;
  const std::vector<long double> everywhere = {-2.5, -0.75, 0.125, 0.5, 1.25, 3},
                                 positive = {0.75, 1, 1.5, 2.75};
  CHECK(slope_error([](auto x) { return exp(x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return sin(x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return cos(x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return tanh(x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return erf(x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return erfc(x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return abs(x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return max(x, x * x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return min(x * 3, x * x * x); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return pow(x, 3); }, everywhere) < tolerance);
  CHECK(slope_error([](auto x) { return log(x); }, positive) < tolerance);
  CHECK(slope_error([](auto x) { return log1p(x); }, positive) < tolerance);
  CHECK(slope_error([](auto x) { return sqrt(x); }, positive) < tolerance);
  CHECK(slope_error([](auto x) { return pow(x, 0.3); }, positive) < tolerance);
  CHECK(slope_error([](auto x) { return pow(x, x); }, positive) < tolerance);
  CHECK(slope_error([](auto x) { return pow(decltype(x)(2), x); }, everywhere) < tolerance);
}

TEST_CASE("a dual number's derivative is that of arithmetic, with plain numbers too",
          "[tensor][x87]") {
  const std::vector<long double> points = {-2.5, -0.5, 0.75, 3};
  const auto dense = [](auto x) { return (x * x - x) / (x * x + x + decltype(x)(3)) - (-x); };
  const auto mixed = [](auto x) { return 2 * x - 1 / (x * x + 5) + (x - 0.5) / 3 + x * 0.25F; };
  const auto stored = [](auto x) {
    auto y = x;
    y += x * x, y *= x, y -= 1, y /= x + 7;
    return y;
  };
  CHECK(slope_error(dense, points) < tolerance);
  CHECK(slope_error(mixed, points) < tolerance);
  CHECK(slope_error(stored, points) < tolerance);
}

TEST_CASE("a wrong slope does not pass for that of a dual number", "[tensor]") {
  // e^x whose derivative someone took for x e^x.
  const auto wrong = [](auto x) {
    using std::exp;
    if constexpr (std::floating_point<decltype(x)>) {
      return exp(x);
    } else {
      return decltype(x)(exp(x.value), x.value * exp(x.value) * x.derivative);
    }
  };
  CHECK(slope_error(wrong, 0.5L) > 0.1);
}

TEST_CASE("dual numbers of dual numbers hold the second derivative", "[tensor]") {
  for (const double x : {0.3, 0.8, 1.7}) {
    CAPTURE(x);
    const auto second = [x](auto f) { return f(Twice({x, 1}, {1, 0})).derivative.derivative; };
    const auto near = [](double a, double b) { return std::abs(a - b) <= 4e-15 * std::abs(b); };
    const double t = std::tanh(x), cosh2 = std::cosh(x) * std::cosh(x);
    const double bell = 2 * std::numbers::inv_sqrtpi * std::exp(-x * x);
    CHECK(near(second([](auto y) { return exp(2 * y); }), 4 * std::exp(2 * x)));
    CHECK(near(second([](auto y) { return log(y); }), -1 / (x * x)));
    CHECK(near(second([](auto y) { return log1p(y); }), -1 / ((1 + x) * (1 + x))));
    CHECK(near(second([](auto y) { return sqrt(y); }), -0.25 / (x * std::sqrt(x))));
    CHECK(near(second([](auto y) { return sin(y); }), -std::sin(x)));
    CHECK(near(second([](auto y) { return cos(y); }), -std::cos(x)));
    CHECK(near(second([](auto y) { return tanh(y); }), -2 * t / cosh2));
    CHECK(near(second([](auto y) { return erf(y); }), -2 * x * bell));
    CHECK(near(second([](auto y) { return erfc(y); }), 2 * x * bell));
    CHECK(near(second([](auto y) { return pow(y, 5); }), 20 * x * x * x));
    CHECK(near(second([](auto y) { return 1 / y; }), 2 / (x * x * x)));
    CHECK(near(second([](auto y) { return pow(y, y); }),
               std::pow(x, x) * ((std::log(x) + 1) * (std::log(x) + 1) + 1 / x)));
  }
}

TEST_CASE("the order of dual numbers is that of values, and equal are those equal in all parts",
          "[tensor]") {
  const Dual still(1.0, 0.0), moving(1.0, 5.0), more(2.0, -5.0);
  CHECK_FALSE(still < moving);
  CHECK_FALSE(moving < still);
  CHECK_FALSE(still == moving);
  CHECK(still <= moving);
  CHECK(still >= moving);
  CHECK(moving == Dual(1.0, 5.0));
  CHECK(moving != still);
  CHECK(moving < more);
  CHECK(more > moving);
  CHECK(max(still, moving) == still);
  CHECK(min(moving, still) == moving);
  CHECK(max(moving, more) == more);
  CHECK(min(more, moving) == moving);
  const Dual nan(std::numeric_limits<double>::quiet_NaN(), 0.0);
  CHECK_FALSE(nan <= still);
  CHECK_FALSE(nan >= still);
  CHECK_FALSE(nan == nan);
}

TEST_CASE("a dual constant stays one where a slope is infinite", "[tensor]") {
  const Dual zero(0.0, 0.0);
  CHECK(sqrt(zero) == zero);
  CHECK(pow(zero, 0.5) == zero);
  CHECK(pow(Dual(0.0, 1.0), 0) == Dual(1.0, 0.0));
  CHECK(pow(Dual(-2.0, 1.0), Dual<double>(3)) == Dual(-8.0, 12.0));
  CHECK(log(zero).derivative == 0.0);
  CHECK(std::isinf(sqrt(Dual(0.0, 1.0)).derivative));
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(exp(Dual(-infinity, infinity)) == zero);
  CHECK(abs(Dual(0.0, 2.0)) == Dual(0.0, 2.0));
}

TEST_CASE("the limits of dual numbers are those of their values, as constants", "[tensor]") {
  using Limits = std::numeric_limits<Twice>;
  using Of = std::numeric_limits<double>;
  STATIC_REQUIRE(Limits::is_specialized);
  STATIC_REQUIRE(Limits::digits == Of::digits);
  STATIC_REQUIRE((Limits::max)() == Twice((Of::max)()));
  STATIC_REQUIRE((Limits::min)() == Twice((Of::min)()));
  STATIC_REQUIRE(Limits::lowest() == Twice(Of::lowest()));
  STATIC_REQUIRE(Limits::epsilon() == Twice(Of::epsilon()));
  STATIC_REQUIRE(Limits::denorm_min() == Twice(Of::denorm_min()));
  STATIC_REQUIRE(Limits::infinity() == Twice(Of::infinity()));
  STATIC_REQUIRE(Limits::round_error() == Twice(Of::round_error()));
  STATIC_REQUIRE(static_cast<double>(Limits::max()) == (Of::max)());
  CHECK(Limits::quiet_NaN() != Limits::quiet_NaN());
  CHECK(Limits::signaling_NaN() != Limits::signaling_NaN());
  Dual<float> hidden(1);
  set_negative_infinity(hidden);
  CHECK(hidden == -Dual<float>(std::numeric_limits<float>::infinity()));
  CHECK(is_finite_option(Dual<float>(1)));
  CHECK_FALSE(is_finite_option(hidden));
}

}  // namespace tensor_dual
