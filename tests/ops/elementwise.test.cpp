#include "headwise/ops/elementwise.hpp"

#include <cmath>
#include <limits>

#include "headwise/ops/accumulate.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_elementwise {

using namespace headwise;

namespace {

using Real = long double;

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed, double offset = 0) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(offset + philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// The four pairs by number: add, subtract, multiply, divide.
template <class T>
Tensor2<T> forward(int op, In<T, 2> a, In<T, 2> b, const Context& context = {}) {
  Tensor2<T> y(Shape{std::max(a.extent(0), b.extent(0)), a.extent(1)});
  if (a.extent(0) == 0 || b.extent(0) == 0) y = Tensor2<T>(Shape{Index{0}, a.extent(1)});
  if (op == 0) add_forward(a, b, y, context);
  if (op == 1) subtract_forward(a, b, y, context);
  if (op == 2) multiply_forward(a, b, y, context);
  if (op == 3) divide_forward(a, b, y, context);
  return y;
}
template <class T>
void backward(int op, In<T, 2> dy, In<T, 2> a, In<T, 2> b, Out<T, 2> da, Out<T, 2> db,
              const Context& context = {}) {
  if (op == 0) add_backward(dy, da, db, context);
  if (op == 1) subtract_backward(dy, da, db, context);
  if (op == 2) multiply_backward(dy, a, b, da, db, context);
  if (op == 3) divide_backward(dy, b, In<T, 2>(forward<T>(op, a, b)), da, db, context);
}
template <class T>
T by_definition(int op, T a, T b) {
  return op == 0 ? a + b : op == 1 ? a - b : op == 2 ? a * b : a / b;
}

}  // namespace

TEST_CASE("sums, differences, products and quotients are those of the elements", "[ops]") {
  for (int op = 0; op < 4; ++op) {
    for (const Index N : {0, 1, 3, 70}) {
      for (const Index M : {0, 1, 7, 65}) {
        for (int broadcast = 0; broadcast < 3; ++broadcast) {
          CAPTURE(op, N, M, broadcast);
          const auto a = normal<float>(Shape{broadcast == 1 ? 1 : N, M}, 1);
          const auto b = normal<float>(Shape{broadcast == 2 ? 1 : N, M}, 2);
          const auto y = forward<float>(op, a, b);
          REQUIRE(y.shape() == Shape{N, M});
          bool right = true;
          for_each_index(y.shape(), [&](const Shape<2>& at) {
            const float x = a(broadcast == 1 ? 0 : at[0], at[1]);
            const float z = b(broadcast == 2 ? 0 : at[0], at[1]);
            right = right && y(at) == by_definition(op, x, z);
          });
          CHECK(right);
        }
      }
    }
  }
}

TEST_CASE("the gradients of elementwise operations are the slopes of forward", "[ops]") {
  for (int op = 0; op < 4; ++op) {
    for (int broadcast = 0; broadcast < 3; ++broadcast) {
      CAPTURE(op, broadcast);
      auto a = normal<Real>(Shape{broadcast == 1 ? 1 : 5, 3}, 1);
      auto b = normal<Real>(Shape{broadcast == 2 ? 1 : 5, 3}, 2, 4);
      const auto dy = normal<Real>(Shape{5, 3}, 3);
      Tensor2<Real> da(a.shape()), db(b.shape());
      fill(da, Real(777));
      fill(db, Real(777));
      backward<Real>(op, dy, a, b, da, db);
      GradientCheck<Real> check({.tolerance = 1e-11, .stencil = Stencil::five_point});
      check.input("a", a, da);
      check.input("b", b, db);
      const auto report =
          check.run([&] { return weighted_sum(dy, In<Real, 2>(forward<Real>(op, a, b))); });
      CAPTURE(report);
      CHECK(report);
    }
  }
}

TEST_CASE("elementwise gradients may be left out one by one, and change no bit of the other",
          "[ops]") {
  for (int op = 0; op < 4; ++op) {
    CAPTURE(op);
    const auto a = normal<double>(Shape{6, 9}, 1), b = normal<double>(Shape{1, 9}, 2, 4);
    const auto dy = normal<double>(Shape{6, 9}, 3);
    Tensor2<double> da(a.shape()), db(b.shape()), da_alone(a.shape()), db_alone(b.shape());
    backward<double>(op, dy, a, b, da, db);
    backward<double>(op, dy, a, b, da_alone, {});
    backward<double>(op, dy, a, b, {}, db_alone);
    CHECK(bitwise_equal(da, da_alone));
    CHECK(bitwise_equal(db, db_alone));
  }
}

TEST_CASE(
    "an element whose gradient is 0 adds nothing to a product's or quotient's, whatever it "
    "was computed from",
    "[ops]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor2<double> a({2, 2}, {nan, 1, 2, 3}), b({2, 2}, {nan, 0, 4, 5}), dy({2, 2}, {0, 0, 1, 1});
  for (int op : {2, 3}) {
    CAPTURE(op);
    Tensor2<double> da({2, 2}), db({2, 2});
    backward<double>(op, dy, a, b, da, db);
    for (Index m = 0; m < 2; ++m) {
      CHECK(da(0, m) == 0);
      CHECK(db(0, m) == 0);
      CHECK(da(1, m) != 0);
    }
    Tensor2<double> row({1, 2}, {4, 5}), d_row({1, 2});
    backward<double>(op, dy, a, row, da, d_row);
    CHECK(std::isfinite(d_row(0, 0)));
  }
}

TEST_CASE("elementwise operations give the same bits for any number of threads and any strides",
          "[ops]") {
  ThreadPool pool(3);
  const Context threads{.executor = pool};
  for (int op = 0; op < 4; ++op) {
    CAPTURE(op);
    const auto a = normal<float>(Shape{203, 700}, 1), row = normal<float>(Shape{1, 700}, 2, 4);
    const auto dy = normal<float>(Shape{203, 700}, 3);
    CHECK(bitwise_equal(forward<float>(op, a, row), forward<float>(op, a, row, threads)));
    Tensor2<float> da(a.shape()), db(row.shape()), da_too(a.shape()), db_too(row.shape());
    backward<float>(op, dy, a, row, da, db);
    backward<float>(op, dy, a, row, da_too, db_too, threads);
    CHECK(bitwise_equal(da, da_too));
    CHECK(bitwise_equal(db, db_too));

    Tensor2<float> turned({700, 203});
    copy(In<float, 2>(transpose(a, 0, 1)), turned);
    Tensor2<float> y_turned({700, 203});
    const Out<float, 2> y = transpose(y_turned, 0, 1);
    if (op == 0) add_forward(transpose(turned, 0, 1), row, y);
    if (op == 1) subtract_forward(transpose(turned, 0, 1), row, y);
    if (op == 2) multiply_forward(transpose(turned, 0, 1), row, y);
    if (op == 3) divide_forward(transpose(turned, 0, 1), row, y);
    CHECK(bitwise_equal(In<float, 2>(y), In<float, 2>(forward<float>(op, a, row))));
  }
}

TEST_CASE("elementwise operations work in place", "[ops]") {
  const auto a = normal<double>(Shape{5, 67}, 1), b = normal<double>(Shape{5, 67}, 2, 4);
  for (int op = 0; op < 4; ++op) {
    CAPTURE(op);
    const auto y = forward<double>(op, a, b);
    auto left = a, right = b;
    if (op == 0) add_forward(left, b, left), add_forward(a, right, right);
    if (op == 1) subtract_forward(left, b, left), subtract_forward(a, right, right);
    if (op == 2) multiply_forward(left, b, left), multiply_forward(a, right, right);
    if (op == 3) divide_forward(left, b, left), divide_forward(a, right, right);
    CHECK(bitwise_equal(left, y));
    CHECK(bitwise_equal(right, y));
  }
  auto x = a;
  scale_forward(x, 0.5, x);
  bool half = true;
  for_each_index(a.shape(), [&](const Shape<2>& at) { half = half && x(at) == 0.5 * a(at); });
  CHECK(half);
  scale_backward(a, 0.5, x);
  CHECK(x(4, 66) == 0.5 * a(4, 66));
}

TEST_CASE("accumulate adds tensors of any rank through any strides, also to itself", "[ops]") {
  ThreadPool pool(3);
  const auto x = normal<float>(Shape{3, 5, 70, 33}, 1), before = normal<float>(x.shape(), 2);
  auto expected = before;
  for (Index n = 0; n < x.size(); ++n) expected.data()[n] += x.data()[n];
  auto dense = before, threaded = before;
  accumulate(x, dense);
  accumulate(x, threaded, {.executor = pool});
  CHECK(bitwise_equal(dense, expected));
  CHECK(bitwise_equal(threaded, expected));

  Tensor4<float> turned({3, 70, 5, 33});  // heads beside each other
  const TensorView<float, 4> view = transpose(turned, 1, 2);
  copy(In<float, 4>(before), view);
  accumulate(x, view, {.executor = pool});
  CHECK(bitwise_equal(In<float, 4>(view), In<float, 4>(expected)));

  Tensor1<float> line(Shape{9});
  fill(line, 1.0f);
  const TensorView<float, 1> every_second(line.data(), Shape{5}, Shape{2});
  accumulate(every_second, every_second);
  for (Index n = 0; n < 9; ++n) CHECK(line(n) == (n % 2 == 0 ? 2.0f : 1.0f));
  Tensor3<float> none({4, 0, 3});
  accumulate(none, none);
}

TEST_CASE("sum_forward is the sum of all elements, and its gradient is everywhere the same",
          "[ops]") {
  ThreadPool pool(3);
  for (const Index N : {0, 1, 33, 500}) {
    for (const Index M : {0, 1, 9, 130}) {
      CAPTURE(N, M);
      const auto x = normal<double>(Shape{N, M}, 1);
      Tensor1<double> total(Shape{1}, {777}), threaded(Shape{1});
      sum_forward(x, total);
      sum_forward(x, threaded, {.executor = pool});
      Real expected = 0, size = 0;
      for (const double element : x) expected += element, size += std::abs(element);
      CHECK(std::abs(total(0) - expected) <= 40 * std::numeric_limits<double>::epsilon() * size);
      CHECK(bitwise_equal(total, threaded));
      Tensor2<double> dx({N, M});
      sum_backward(Tensor1<double>(Shape{1}, {-2.5}), dx);
      bool same = true;
      for (const double element : dx) same = same && element == -2.5;
      CHECK(same);
    }
  }
}

TEST_CASE("the FLOPs of elementwise operations are those that a counting scalar sees", "[ops]") {
  using headwise_tests::count_operations;
  using headwise_tests::Counting;
  Tensor2<Counting> a({3, 5}), b({1, 5}), y({3, 5});
  fill(a, Counting(2));
  fill(b, Counting(4));
  FlopTally tally;
  const Context context{.flops = &tally};
  for (int op = 0; op < 4; ++op) {
    CAPTURE(op);
    tally.reset();
    const auto counted = count_operations([&] { y = forward<Counting>(op, a, b, context); });
    CHECK(tally.useful == counted.total());
    CHECK(tally.useful == 15);
  }
}

}  // namespace ops_elementwise
