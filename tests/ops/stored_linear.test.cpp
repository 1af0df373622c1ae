// Linear layers whose weights are kept in 16 bits give the bits that their numbers give as floats,
// forward and backward.
#include "headwise/ops/linear.hpp"

#include <bit>
#include <cstdint>
#include <limits>

#include "headwise/ops/bf16_products.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/bf16_units.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"

namespace ops_stored_linear {

using namespace headwise_tests;

namespace {

/// Weights [K, O] of U and as floats, their rows or their columns dense, or neither.
template <class U>
struct Weights {
  Tensor2<U> kept;
  Tensor2<float> widened;
  int layout;

  Weights(Index K, Index O, int how)
      : Weights(K, O, how, static_cast<std::uint64_t>(10 * K + 1000 * O)) {}
  Weights(Index K, Index O, int how, std::uint64_t seed)
      : kept(shape(K, O, how)), widened(kept.shape()), layout(how) {
    const auto drawn = random_tensor<float>(kept.shape(), seed);
    for (Index n = 0; n < kept.size(); ++n) {
      kept.data()[n] = convert_float<U>(drawn.data()[n]);
      widened.data()[n] = convert_float<float>(kept.data()[n]);
    }
  }
  template <class X>
  In<X, 2> view(const Tensor2<X>& of) const {
    if (layout == 0) return of;
    if (layout == 1) return transpose(In<X, 2>(of), 0, 1);
    return {of.data(), Shape{of.extent(0), of.extent(1) / 2}, Shape{of.extent(1), Index{2}}};
  }

 private:
  static Shape<2> shape(Index K, Index O, int how) {
    if (how == 1) return {O, K};
    return {K, how == 0 ? O : 2 * O};
  }
};

template <class U>
void check_same(Index N, const Weights<U>& w, bool biased, const Context& context) {
  const Index K = w.view(w.kept).extent(0), O = w.view(w.kept).extent(1);
  const auto x = random_tensor<float>(Shape{N, K}, 1);
  const auto some_b = random_tensor<float>(Shape{O}, 2);
  const In<float, 1> b = biased ? In<float, 1>(some_b) : In<float, 1>();
  Tensor2<float> y({N, O}), expected({N, O});
  linear_forward(In<float, 2>(x), w.view(w.kept), b, y, context);
  linear_forward<float>(x, w.view(w.widened), b, expected, context);
  CAPTURE(N, K, O, w.layout, biased);
  CHECK(bitwise_equal(y, expected));
}

/// The gradients of the same.
template <class U>
void check_same_gradients(Index N, const Weights<U>& w, const Context& context) {
  const Index K = w.view(w.kept).extent(0), O = w.view(w.kept).extent(1);
  const auto x = random_tensor<float>(Shape{N, K}, 1), dy = random_tensor<float>(Shape{N, O}, 2);
  Tensor2<float> dx({N, K}), dx_expected({N, K});
  auto dw = random_tensor<float>(Shape{K, O}, 3), dw_expected = dw;
  auto db = random_tensor<float>(Shape{O}, 4), db_expected = db;
  linear_backward(In<float, 2>(dy), x, w.view(w.kept), dx, dw, db, context);
  linear_backward<float>(dy, x, w.view(w.widened), dx_expected, dw_expected, db_expected, context);
  CAPTURE(N, K, O, w.layout);
  CHECK(bitwise_equal(dx, dx_expected));
  CHECK(bitwise_equal(dw, dw_expected));
  CHECK(bitwise_equal(db, db_expected));
}

}  // namespace

TEMPLATE_TEST_CASE("linear layers of weights of 16 bits have the bits of their numbers as floats",
                   "[ops][stored]", BFloat16, Float16) {
  ThreadPool serial(1), threads(3);
  for (const Index K : {0, 1, 31, 32, 384, 385, 801}) {
    for (const Index O : {0, 1, 15, 16, 33, 200, 769}) {
      for (const int layout : {0, 1, 2}) {
        const Weights<TestType> w(K, O, layout);
        for (const Index N : {0, 1, 2, 3, 4, 5, 23}) {
          const bool shared = (N + K + O) % 2 == 0;
          check_same<TestType>(N, w, (N + O) % 3 != 0,
                               {.executor = shared ? ExecutorRef(threads) : ExecutorRef(serial)});
        }
      }
    }
  }
  for (const Index N : {1, 2, 3, 4}) {  // sums in more than one part
    check_same<TestType>(N, {40, 4200 / N + 1, 0}, true, {.executor = serial});
  }
}

TEMPLATE_TEST_CASE("gradients by weights of 16 bits have the bits of their numbers as floats",
                   "[ops][stored]", BFloat16, Float16) {
  ThreadPool serial(1), threads(3);
  for (const Index K : {0, 1, 31, 200, 769}) {
    for (const Index O : {0, 1, 16, 33, 385, 801}) {
      for (const int layout : {0, 1, 2}) {
        const Weights<TestType> w(K, O, layout);
        for (const Index N : {0, 1, 4, 5, 23}) {
          const bool shared = (N + K + O) % 2 == 0;
          check_same_gradients<TestType>(
              N, w, {.executor = shared ? ExecutorRef(threads) : ExecutorRef(serial)});
        }
      }
    }
  }
  for (const Bf16Unit unit : supported_bf16_units()) {
    CAPTURE(name_of(unit));
    check_same_gradients<TestType>(19, {65, 385, 0}, {.products = bf16_products(unit)});
  }
}

TEMPLATE_TEST_CASE("weights of 16 bits have the bits of their numbers in products of bf16 too",
                   "[ops][stored]", BFloat16, Float16) {
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    CAPTURE(name_of(unit));
    for (const Index N : {1, 4, 19}) {
      for (const int layout : {0, 1, 2}) {
        check_same<TestType>(N, {385, 65, layout}, true, context);
      }
    }
  }
}

TEMPLATE_TEST_CASE("rows of a linear layer of 16-bit weights may lie anywhere", "[ops][stored]",
                   BFloat16, Float16) {
  const Weights<TestType> w(70, 50, 0, 3);
  for (const Index N : {1, 3, 9}) {
    const auto wide_x = random_tensor<float>(Shape{N, 140}, 4);
    const auto wide_b = random_tensor<float>(Shape{100}, 5);
    const In<float, 2> x(wide_x.data(), Shape{N, Index{70}}, Shape{Index{140}, Index{2}});
    const In<float, 1> b(wide_b.data(), Shape{Index{50}}, Shape{Index{2}});
    Tensor2<float> wide_y({50, N}), expected({N, 50});
    const auto y = transpose(Out<float, 2>(wide_y), 0, 1);
    linear_forward(x, w.view(w.kept), b, y);
    linear_forward<float>(x, w.view(w.widened), b, expected);
    CHECK(bitwise_equal(In<float, 2>(y), In<float, 2>(expected)));
    // A part of the columns, as of a projection among others.
    const auto part = slice(w.view(w.kept), 1, 7, 20);
    Tensor2<float> some({N, 20});
    linear_forward(x, part, slice(b, 0, 7, 20), some);
    CHECK(bitwise_equal(In<float, 2>(some), In<float, 2>(slice(expected, 1, 7, 20))));
  }
}

/// Whether products below the normal numbers are 0 in this program, as linking with -ffast-math
/// makes them.
bool flushes_subnormals() {
  volatile float least = std::numeric_limits<float>::min();
  volatile float half = least * 0.5f;
  return (std::bit_cast<std::uint32_t>(static_cast<float>(half)) << 1) == 0;
}

/// Whether `got` is `number`: told by their bits, which no flag changes. -0 may be 0.
bool is_met(float got, float number, bool flushes) {
  const std::uint32_t a = std::bit_cast<std::uint32_t>(got) & 0x7FFFFFFF;
  const std::uint32_t b = std::bit_cast<std::uint32_t>(number) & 0x7FFFFFFF;
  if (b > 0x7F800000) return a > 0x7F800000;
  if (b == 0 || (flushes && b < 0x00800000)) return a == 0;
  return std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(number);
}

TEMPLATE_TEST_CASE("every number of 16 bits is met as itself, subnormal and infinite ones too",
                   "[ops][stored]", BFloat16, Float16) {
  Tensor2<TestType> kept({1, 65536});
  for (Index n = 0; n < kept.size(); ++n) kept(0, n).bits = static_cast<std::uint16_t>(n);
  Tensor2<float> x({1, 1}, {1.0f}), y({1, 65536}), across({1, 65536});
  linear_forward(In<float, 2>(x), In<TestType, 2>(kept), {}, y);
  Tensor2<TestType> column({65536, 1});
  std::copy(kept.begin(), kept.end(), column.begin());
  linear_forward(In<float, 2>(x), transpose(In<TestType, 2>(column), 0, 1), {}, across);
  const bool flushes = flushes_subnormals();
  Index wrong = 0;
  for (Index n = 0; n < kept.size(); ++n) {
    const float number = convert_float<float>(kept(0, n));
    wrong += is_met(y(0, n), number, flushes) && is_met(across(0, n), number, flushes) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a linear layer of 16-bit weights refuses what one of floats does", "[ops][stored]") {
  const Weights<BFloat16> w(5, 4, 0, 6);
  auto x = random_tensor<float>(Shape{2, 6}, 7);
  const auto short_b = random_tensor<float>(Shape{1, 3}, 8);
  Tensor2<float> y({2, 4});
  const auto call = [&](const In<float, 2>& of, const In<float, 1>& b, const Out<float, 2>& to) {
    linear_forward(of, w.view(w.kept), b, to);
  };
  const auto fitting = slice(In<float, 2>(x), 1, 0, 5);
  CHECK_THROWS_WITH(call(x, {}, y),
                    "linear_forward: w is [5, 4], expected [6, 4] (6 from x [2, 6])");
  CHECK_THROWS_WITH(call(fitting, select(In<float, 2>(short_b), 0), y),
                    "linear_forward: b is [3], expected [4] (4 from w [5, 4])");
  CHECK_THROWS_WITH(call(fitting, {}, slice(y, 1, 0, 3)),
                    "linear_forward: y is [2, 3], expected [2, 4] (rows of x, columns of w)");
  const Out<float, 2> on_x(x.data(), Shape{2, 4});
  CHECK_THROWS_AS(call(fitting, {}, on_x), ShapeError);
  CHECK_THROWS_WITH(linear_backward(In<float, 2>(y), fitting, w.view(w.kept), x, {}, {}),
                    "linear_backward: dx is [2, 6], expected [2, 5] (the shape of x)");
  CHECK_THROWS_WITH(linear_backward(In<float, 2>(x), fitting, w.view(w.kept), {}, {}, {}),
                    "linear_backward: dy is [2, 6], expected [2, 4] (rows of x, columns of w)");
}

TEST_CASE("a linear layer of 16-bit weights counts what one of floats counts", "[ops][stored]") {
  for (const Index N : {1, 4, 30}) {
    const Weights<BFloat16> w(100, 40, 0, 6);
    const auto x = random_tensor<float>(Shape{N, 100}, 7);
    Tensor2<float> y({N, 40});
    FlopTally counted, expected;
    linear_forward(In<float, 2>(x), w.view(w.kept), {}, y, {.flops = &counted});
    linear_forward<float>(x, w.view(w.widened), {}, y, {.flops = &expected});
    auto dw = random_tensor<float>(Shape{100, 40}, 8);
    auto dx = random_tensor<float>(Shape{N, 100}, 9);
    linear_backward(In<float, 2>(y), x, w.view(w.kept), dx, dw, {}, {.flops = &counted});
    linear_backward<float>(y, x, w.view(w.widened), dx, dw, {}, {.flops = &expected});
    CHECK(counted.useful == expected.useful);
    CHECK(counted.executed == expected.executed);
  }
}

}  // namespace ops_stored_linear
