#include "headwise/ops/dropout.hpp"

#include <cmath>
#include <limits>

#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_dropout {

using namespace headwise;

namespace {

template <class T>
Tensor2<T> normal(Index rows, Index columns, std::uint64_t seed) {
  Tensor2<T> x(Shape{rows, columns});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

template <class T>
Tensor2<T> drop(const Tensor2<T>& x, const Dropout& dropout) {
  Tensor2<T> y(x.shape());
  dropout_forward(x, dropout, y);
  return y;
}

const Dropout some{.rate = 0.3, .seed = 5, .step = 2};

}  // namespace

TEST_CASE("dropout zeroes elements or multiplies them by 1 / (1 - rate)", "[ops]") {
  const auto check = [](auto type, Index M) {
    using T = decltype(type);
    const Tensor2<T> x = normal<T>(7, M, 1);
    const Tensor2<T> y = drop(x, some);
    const DropoutMask mask(some, DropoutStream::output);
    const T factor = static_cast<T>(1 / (1 - some.rate));
    for_each_index(x.shape(), [&](const Shape<2>& i) {
      CHECK(y(i) == (mask.kept(0, 0, i[0], i[1]) ? x(i) * factor : T(0)));
    });
  };
  for (Index M : {1, 7, 8, 63, 64, 65, 130}) {  // about the block of 64
    check(float{}, M);
    check(double{}, M);
    check(static_cast<long double>(0), M);
  }
}

TEST_CASE("dropout keeps the mean, within 4 standard deviations", "[ops]") {
  Tensor2<double> x(Shape{100, 100});
  fill(Out<double, 2>(x), 1.0);
  for (double rate : {0.1, 0.5, 0.9}) {
    const Tensor2<double> y = drop(x, {.rate = rate, .seed = 3});
    double sum = 0;
    for (double element : y) sum += element;
    CAPTURE(rate);
    CHECK(std::abs(sum / 10000 - 1) < 4 * std::sqrt(rate / (1 - rate)) / 100);
  }
}

TEST_CASE("backward applies the mask of forward", "[ops]") {
  const Tensor2<double> x = normal<double>(6, 70, 2), dy = normal<double>(6, 70, 3);
  const Tensor2<double> y = drop(x, some);
  Tensor2<double> dx(x.shape());
  dropout_backward(dy, some, dx);
  const double factor = 1 / (1 - some.rate);
  long double forward_product = 0, backward_product = 0;
  for_each_index(x.shape(), [&](const Shape<2>& i) {
    CHECK(dx(i) == (y(i) == 0.0 ? 0.0 : dy(i) * factor));
    forward_product += static_cast<long double>(dy(i)) * y(i);
    backward_product += static_cast<long double>(dx(i)) * x(i);
  });
  CHECK(std::abs(forward_product - backward_product) < 1e-12L);  // <dy, J x> = <J^T dy, x>
}

TEST_CASE("rate 0 is the identity to the bit and rate 1 is 0", "[ops]") {
  Tensor2<float> x = normal<float>(3, 5, 4);
  x(1, 1) = -0.0f;
  CHECK(bitwise_equal(drop(x, Dropout{}), x));
  CHECK(bitwise_equal(drop(x, {.rate = 0, .seed = 9, .step = 9}), x));
  for (float y : drop(x, {.rate = 1})) CHECK(y == 0.0f);
}

TEST_CASE("a dropped NaN or infinity is 0 and a kept one shows", "[ops]") {
  Tensor2<double> x(Shape{4, 50});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for_each_index(x.shape(), [&](const Shape<2>& i) { x(i) = i[1] % 2 == 0 ? nan : infinity; });
  const Tensor2<double> y = drop(x, some);
  const DropoutMask mask(some, DropoutStream::output);
  for_each_index(x.shape(), [&](const Shape<2>& i) {
    const bool zero = y(i) == 0.0, is_nan = !(y(i) == y(i));
    CHECK(zero == !mask.kept(0, 0, i[0], i[1]));
    if (!zero) CHECK(is_nan == (i[1] % 2 == 0));
  });
}

TEST_CASE("another step or seed draws another mask, the same ones the same", "[ops]") {
  const Tensor2<float> x = normal<float>(10, 50, 5);
  const Tensor2<float> y = drop(x, some);
  CHECK(bitwise_equal(drop(x, some), y));
  CHECK_FALSE(bitwise_equal(drop(x, {some.rate, some.seed, some.step + 1}), y));
  CHECK_FALSE(bitwise_equal(drop(x, {some.rate, some.seed + 1, some.step}), y));
}

TEST_CASE("dropout runs in place and through any strides with the same bits", "[ops]") {
  const Tensor2<float> x = normal<float>(9, 70, 6);
  const Tensor2<float> y = drop(x, some);
  Tensor2<float> in_place = x, turned_x(Shape{70, 9}), turned_y(Shape{70, 9});
  dropout_forward(in_place, some, in_place);
  CHECK(bitwise_equal(in_place, y));
  copy(x, transpose(turned_x, 0, 1));
  dropout_forward(transpose(turned_x, 0, 1), some, transpose(turned_y, 0, 1));
  CHECK(bitwise_equal(In<float, 2>(transpose(turned_y, 0, 1)), In<float, 2>(y)));
}

TEST_CASE("the first rows and columns are dropped alike in a larger tensor", "[ops]") {
  const Tensor2<float> x = normal<float>(9, 150, 7);
  const Tensor2<float> y = drop(x, some);
  for (Index rows : {1, 4}) {
    for (Index columns : {1, 63, 64, 65, 129}) {
      const Tensor2<float> part = contiguous(slice(slice(x, 0, 0, rows), 1, 0, columns));
      CHECK(bitwise_equal(In<float, 2>(drop(part, some)),
                          In<float, 2>(slice(slice(y, 0, 0, rows), 1, 0, columns))));
    }
  }
}

TEST_CASE("dropout of nothing is nothing", "[ops]") {
  for (const auto& shape : {Shape{0, 3}, Shape{3, 0}}) {
    const Tensor2<float> x(shape);
    Tensor2<float> y(shape);
    CHECK_NOTHROW(dropout_forward(x, some, y));
  }
}

TEST_CASE("dropout tallies a multiplication an element, at rate 0 none", "[ops]") {
  using headwise_tests::Counting;
  const Tensor2<Counting> x = normal<Counting>(3, 70, 9);
  Tensor2<Counting> y(x.shape());
  FlopTally flops;
  const auto counted =
      headwise_tests::count_operations([&] { dropout_forward(x, some, y, {.flops = &flops}); });
  CHECK(flops.useful == 3 * 70);
  CHECK(counted.total() == counted.multiplications);
  CHECK(counted.multiplications <= flops.useful);  // what is dropped is not multiplied
  flops.reset();
  dropout_forward(x, Dropout{}, y, {.flops = &flops});
  CHECK(flops.useful == 0);
}

}  // namespace ops_dropout
