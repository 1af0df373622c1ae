#include "headwise/testing/close_to.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "headwise/tensor/view_ops.hpp"
#include "support/catch.hpp"

namespace testing_close_to {

using namespace headwise;

namespace {

/// NaN for 0, else an infinity of that sign: from bits, since -ffast-math takes 0 / 0 for 0.
template <class T>
T special(int kind) {
  volatile std::uint64_t bits =
      std::uint64_t{kind == 0 ? 0x7FF8u : 0x7FF0u} << 48 | std::uint64_t{kind < 0 ? 1u : 0u} << 63;
  const std::uint64_t read = bits;
  return static_cast<T>(std::bit_cast<double>(read));
}

Tensor2<double> ramp() { return {Shape{2, 3}, {1, -2, 3, -4, 5, 0.5}}; }

}  // namespace

TEST_CASE("close_to accepts equal tensors of different scalar types at tolerance 0", "[testing]") {
  const auto x = ramp();
  CHECK(close_to(convert<float>(In<double, 2>(x)), x, 0));
  CHECK(close_to(x, convert<long double>(In<double, 2>(x)), 0));
}

TEST_CASE("close_to catches one element at 10 times the tolerance and names it", "[testing]") {
  const double tolerance = 1e-9;
  const auto expected = ramp();
  for_each_index(expected.shape(), [&](const Shape<2>& index) {
    auto actual = expected;
    actual(index) += 10 * tolerance * 5;  // 5 is the largest expected value
    const Closeness result = close_to(actual, expected, tolerance);
    CAPTURE(result.message());
    CHECK_FALSE(result);
    CHECK(result.index == std::vector<Index>{index[0], index[1]});
    CHECK(result.failures == 1);
    CHECK(result.error == Approx(10 * tolerance).epsilon(1e-4));

    actual(index) = expected(index) + 0.5 * tolerance * 5;
    CHECK(close_to(actual, expected, tolerance));
  });
}

TEST_CASE("close_to fails for a NaN on one side and passes for a NaN on both", "[testing]") {
  const auto check = [](auto type) {
    using T = decltype(type);
    const Tensor2<T> plain = convert<T>(In<double, 2>(ramp()));
    auto poisoned = plain;
    poisoned(1, 1) = special<T>(0);
    CHECK_FALSE(close_to(poisoned, plain, 1e30));
    CHECK_FALSE(close_to(plain, poisoned, 1e30));
    CHECK(close_to(poisoned, poisoned, 0));
    const Closeness result = close_to(poisoned, plain, 1);
    CHECK(result.message() ==
          "[1, 1] is nan, expected 5, error not finite > 1; 1 of 6 elements fail");
  };
  check(float{});
  check(double{});
  check(static_cast<long double>(0));
}

TEST_CASE("close_to takes equal infinities as equal and all others as different", "[testing]") {
  const auto check = [](auto type) {
    using T = decltype(type);
    Tensor1<T> a(Shape{2}, {special<T>(1), T(1)});
    CHECK(close_to(a, a, 0));
    Tensor1<T> b(Shape{2}, {special<T>(-1), T(1)});
    CHECK(close_to(b, b, 0));
    CHECK_FALSE(close_to(a, b, 1e30));
    CHECK_FALSE(close_to(a, Tensor1<T>(Shape{2}, {std::numeric_limits<T>::max(), T(1)}), 1e30));
    CHECK_FALSE(close_to(a, Tensor1<T>(Shape{2}, {special<T>(0), T(1)}), 1e30));
    // An infinity does not widen what the others may differ by.
    CHECK_FALSE(close_to(Tensor1<T>(Shape{2}, {special<T>(1), T(1.5)}), a, 0.1));
  };
  check(float{});
  check(double{});
  check(static_cast<long double>(0));
}

TEST_CASE("close_to takes a zero tensor only for zeros unless a floor is given", "[testing]") {
  const Tensor1<double> zero(Shape{3});
  const Tensor1<double> noise(Shape{3}, {0, 1e-15, -0.0});
  CHECK(close_to(zero, zero, 0));
  CHECK_FALSE(close_to(noise, zero, 1e-6));
  CHECK(close_to(noise, zero, 1e-6, {.floor = 1e-3}));
  CHECK_FALSE(close_to(noise, zero, 1e-6, {.floor = 1e-10}));
}

TEST_CASE("close_to sees a difference of the last bit of a long double", "[testing]") {
  const Tensor1<long double> one(Shape{1}, {1.0L});
  const Tensor1<long double> next(Shape{1}, {std::nextafter(1.0L, 2.0L)});
  const Closeness result = close_to(next, one, 1e-20);
  CHECK_FALSE(result);
  CHECK(result.message().find("is 1, ") == std::string::npos);
  CHECK(close_to(next, one, 1e-15));
}

TEST_CASE("close_to reads views by their strides and finds empty tensors close", "[testing]") {
  auto x = ramp();
  const auto transposed = transpose(x, 0, 1);
  CHECK(close_to(transposed, contiguous(In<double, 2>(transposed)), 0));
  const Tensor2<float> none(Shape{0, 3});
  CHECK(close_to(none, none, 0));
  CHECK(bitwise_equal(none, none));
}

TEST_CASE("bitwise_equal tells 0 from -0 and one NaN from another", "[testing]") {
  const auto check = [](auto type) {
    using T = decltype(type);
    const Tensor1<T> a(Shape{3}, {T(1), T(0), special<T>(0)});
    CHECK(bitwise_equal(a, a));
    CHECK(bitwise_equal(a, Tensor1<T>(a)));
    auto b = a;
    b(1) = std::copysign(T(0), T(-1));
    const Closeness result = bitwise_equal(b, a);
    CHECK_FALSE(result);
    CHECK(result.index == std::vector<Index>{1});
    CHECK(result.message().find("[1] is -0, expected 0") == 0);
    auto c = a;
    reinterpret_cast<unsigned char*>(&c(2))[0] ^= 1;  // the payload
    CHECK_FALSE(bitwise_equal(c, a));
  };
  check(float{});
  check(double{});
  check(static_cast<long double>(0));
}

}  // namespace testing_close_to
