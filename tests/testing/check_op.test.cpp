#include "headwise/testing/check_op.hpp"

#include <cmath>

#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"

namespace testing_check_op {

using namespace headwise;

namespace {

using Matrix = Tensor2<double>;

Matrix normal(const Shape<2>& shape, std::uint64_t seed) {
  Matrix x(shape);
  std::uint64_t position = 0;
  for (double& value : x) value = philox_normal(philox_key(seed), position++);
  return x;
}

Matrix softmax(const Matrix& x) {
  Matrix p(x.shape());
  for (Index n = 0; n < x.extent(0); ++n) {
    double mass = 0;
    for (Index j = 0; j < x.extent(1); ++j) mass += std::exp(x(n, j));
    for (Index j = 0; j < x.extent(1); ++j) p(n, j) = std::exp(x(n, j)) / mass;
  }
  return p;
}

Matrix softmax_backward(const Matrix& dp, const Matrix& p) {
  Matrix dx(p.shape());
  for_each_index(p.shape(), [&](const Shape<2>& i) {
    double mean = 0;
    for (Index j = 0; j < p.extent(1); ++j) mean += dp(i[0], j) * p(i[0], j);
    dx(i) = p(i) * (dp(i) - mean);
  });
  return dx;
}

/// y = scale x w
Matrix scaled_product(const Matrix& x, const Matrix& w, double scale) {
  Matrix y(Shape{x.extent(0), w.extent(1)});
  for_each_index(y.shape(), [&](const Shape<2>& i) {
    for (Index k = 0; k < x.extent(1); ++k) y(i) += scale * x(i[0], k) * w(k, i[1]);
  });
  return y;
}

Matrix transposed(const Matrix& w) { return contiguous(In<double, 2>(transpose(w, 0, 1))); }

}  // namespace

TEST_CASE("the whole Jacobian of softmax passes with either stencil", "[testing]") {
  const Matrix x = normal(Shape{3, 5}, 1), p = softmax(x);
  const auto backward = [&](const Matrix& dp) { return softmax_backward(dp, p); };
  const GradientReport report = check_op(softmax, backward, x);
  CAPTURE(report.message());
  CHECK(report.ok(1e-9));
  CHECK(report.worst().compared == 15 * 15);
  CHECK(check_op(softmax, backward, x, {.tolerance = 1e-11, .stencil = Stencil::five_point}));
}

TEST_CASE("a large softmax is checked along random directions, and passes", "[testing]") {
  const Matrix x = normal(Shape{23, 31}, 2), p = softmax(x);
  const auto backward = [&](const Matrix& dp) { return softmax_backward(dp, p); };
  const GradientReport report = check_op(softmax, backward, x);
  CAPTURE(report.message());
  CHECK(report);
  CHECK(report.worst().compared == 8);
}

TEST_CASE("a softmax backward that forgets the mean is caught", "[testing]") {
  for (const Shape<2> shape : {Shape{3, 5}, Shape{23, 31}}) {
    const Matrix x = normal(shape, 3), p = softmax(x);
    const auto backward = [&](const Matrix& dp) {
      Matrix dx(p.shape());
      for_each_index(p.shape(), [&](const Shape<2>& i) { dx(i) = p(i) * dp(i); });
      return dx;
    };
    CHECK_FALSE(check_op(softmax, backward, x));
  }
}

TEST_CASE("one entry of the Jacobian that is wrong is named by input and output", "[testing]") {
  const Matrix x = normal(Shape{2, 3}, 4), p = softmax(x);
  for_each_index(x.shape(), [&](const Shape<2>& in) {
    for_each_index(x.shape(), [&](const Shape<2>& out) {
      const auto backward = [&](const Matrix& dp) {
        Matrix dx = softmax_backward(dp, p);
        dx(in) += 1e-6 * dp(out);
        return dx;
      };
      const GradientReport report = check_op(softmax, backward, x);
      CAPTURE(report.message());
      CHECK_FALSE(report);
      CHECK(report.worst().index == std::vector<Index>{in[0], in[1]});
      CHECK(report.worst().output == std::vector<Index>{out[0], out[1]});
    });
  });
}

TEST_CASE("a product whose backward forgets the scale or the transpose is caught", "[testing]") {
  for (const Index rows : {Index{3}, Index{70}}) {  // the whole Jacobian; random directions
    CAPTURE(rows);
    const Matrix x = normal(Shape{rows, 7}, 5), w = normal(Shape{7, 7}, 6);
    const auto forward = [&](const Matrix& at) { return scaled_product(at, w, 0.5); };
    const auto right = [&](const Matrix& dy) { return scaled_product(dy, transposed(w), 0.5); };
    const auto unscaled = [&](const Matrix& dy) { return scaled_product(dy, transposed(w), 1); };
    const auto straight = [&](const Matrix& dy) { return scaled_product(dy, w, 0.5); };
    const auto negative = [&](const Matrix& dy) { return scaled_product(dy, transposed(w), -0.5); };
    CHECK(check_op(forward, right, x));
    CHECK_FALSE(check_op(forward, unscaled, x));
    CHECK_FALSE(check_op(forward, straight, x));
    CHECK_FALSE(check_op(forward, negative, x));
  }
}

TEST_CASE("a backward that reads what forward cached is asked before forward is perturbed",
          "[testing]") {
  for (const Index rows : {Index{2}, Index{90}}) {
    const Matrix x = normal(Shape{rows, 5}, 7);
    Matrix p;
    const auto forward = [&](const Matrix& at) { return p = softmax(at); };
    const auto backward = [&](const Matrix& dp) {
      REQUIRE(bitwise_equal(p, softmax(x)));
      return softmax_backward(dp, p);
    };
    CHECK(check_op(forward, backward, x));
  }
}

TEST_CASE("a Jacobian between shapes of different rank passes", "[testing]") {
  const Matrix x = normal(Shape{3, 4}, 8);
  const auto row_squares = [](const Matrix& at) {
    Tensor1<double> y(Shape{at.extent(0)});
    for_each_index(at.shape(), [&](const Shape<2>& i) { y(i[0]) += at(i) * at(i); });
    return y;
  };
  const auto backward = [&](const Tensor1<double>& dy) {
    Matrix dx(x.shape());
    for_each_index(x.shape(), [&](const Shape<2>& i) { dx(i) = 2 * x(i) * dy(i[0]); });
    return dx;
  };
  const GradientReport report = check_op(row_squares, backward, x);
  CHECK(report);
  CHECK(report.worst().compared == 3 * 12);
}

TEST_CASE("an op without elements passes", "[testing]") {
  const Matrix x(Shape{0, 3});
  CHECK(check_op(
      softmax, [](const Matrix& dy) { return dy; }, x));
}

}  // namespace testing_check_op
