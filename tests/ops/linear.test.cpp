#include "headwise/ops/linear.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <new>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_linear {

using namespace headwise;
using headwise_tests::count_operations;
using headwise_tests::Counting;

namespace {

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

using Real = long double;

/// start + a b, by the definition.
template <class T>
Tensor2<Real> product(In<T, 2> a, std::type_identity_t<In<T, 2>> b, Tensor2<Real> start) {
  for_each_index(start.shape(), [&](const Shape<2>& i) {
    for (Index k = 0; k < a.extent(1); ++k) start(i) += static_cast<Real>(a(i[0], k)) * b(k, i[1]);
  });
  return start;
}

template <class T>
void check_against_sums(Index N, Index I, Index O, bool strided) {
  CAPTURE(sizeof(T), N, I, O, strided);
  const auto place = [&](Tensor2<T>& wide, Index rows, Index columns) {  // columns 1 ... of wide
    return strided ? slice(transpose(wide, 0, 1), 1, 1, columns)
                   : View2<T>(wide.data(), Shape{rows, columns});
  };
  const auto storage = [&](Index rows, Index columns, std::uint64_t seed) {
    return normal<T>(strided ? Shape{columns + 2, rows} : Shape{rows, columns}, seed);
  };
  auto x_store = storage(N, I, 1), w_store = storage(I, O, 2), y_store = storage(N, O, 3),
       dy_store = storage(N, O, 4), dx_store = storage(N, I, 5), dw_store = storage(I, O, 6),
       b_store = storage(O, 1, 7), db_store = storage(O, 1, 8);
  const auto x = place(x_store, N, I), w = place(w_store, I, O), y = place(y_store, N, O),
             dy = place(dy_store, N, O), dx = place(dx_store, N, I), dw = place(dw_store, I, O);
  const auto column = [&](Tensor2<T>& store) {
    return strided ? View1<T>(store.data() + O, Shape{O}, Shape{1}) : View1<T>(store.data(), {O});
  };
  const auto b = column(b_store), db = column(db_store);

  Tensor2<Real> y_start(Shape{N, O}), db_start(Shape{1, O});
  for_each_index(y_start.shape(), [&](const Shape<2>& i) { y_start(i) = b(i[1]); });
  for (Index o = 0; o < O; ++o) db_start(0, o) = db(o);
  const auto dw_start = convert<Real>(In<T, 2>(dw));
  const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());

  linear_forward(In<T, 2>(x), w, b, y);
  linear_backward(In<T, 2>(dy), x, w, dx, dw, db);
  // Products of normal numbers: a sum of K of them has size sqrt(K), its rounding K halves of a
  // unit at worst.
  const CloseToOptions floor{.floor = 1};
  const auto bound = [&](Index K) { return unit * (static_cast<double>(K) + 8); };
  CHECK(close_to(y, product<T>(x, w, y_start), bound(I), floor));
  CHECK(close_to(dx, product<T>(dy, transpose(w, 0, 1), Tensor2<Real>(Shape{N, I})), bound(O),
                 floor));
  CHECK(close_to(dw, product<T>(transpose(x, 0, 1), dy, dw_start), bound(N), floor));
  Tensor2<T> ones(Shape{1, N});
  fill(Out<T, 2>(ones), T(1));
  const auto expected_db = product<T>(ones, dy, db_start);
  CHECK(close_to(db, In<Real, 1>(expected_db.data(), Shape{O}), bound(N), floor));
}

/// Gives memory `left` times, then refuses.
struct Refusing : std::pmr::memory_resource {
  int left = 0;
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (left-- <= 0) throw std::bad_alloc();
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& o) const noexcept override {
    return this == &o;
  }
};

}  // namespace

TEST_CASE("linear forward and backward equal sums in long double, dense or strided", "[ops]") {
  for (bool strided : {false, true}) {
    for (Index N : {1, 5, 6, 193}) {
      for (Index I : {1, 7, 257}) {
        for (Index O : {1, 5, 16}) {
          check_against_sums<float>(N, I, O, strided);
          check_against_sums<double>(N, I, O, strided);
        }
      }
    }
    check_against_sums<long double>(7, 5, 3, strided);
    for (Index O : {136, 140, 144}) {  // whole panels and a vector; dw of rows packed by sixes
      check_against_sums<float>(150, 31, O, strided);
      check_against_sums<double>(150, 31, O, strided);
    }
  }
}

TEST_CASE("a linear layer with a 0 extent gives the bias, zero gradients, or nothing", "[ops]") {
  for (Index N : {0, 3}) {
    for (Index I : {0, 4}) {
      for (Index O : {0, 2}) check_against_sums<double>(N, I, O, false);
    }
  }
}

TEST_CASE("what is absent is not computed and changes no bit of the rest", "[ops]") {
  const auto x = normal<double>(Shape{5, 4}, 1), w = normal<double>(Shape{4, 3}, 2),
             dy = normal<double>(Shape{5, 3}, 3);
  const auto start_dw = normal<double>(Shape{4, 3}, 4);
  const auto start_db = normal<double>(Shape{3}, 5);
  const auto zero = Tensor1<double>(Shape{3});
  Tensor2<double> y(Shape{5, 3}), y_zero(Shape{5, 3});
  linear_forward(x, w, {}, y);
  linear_forward(x, w, zero, y_zero);
  CHECK(bitwise_equal(y, y_zero));
  Tensor2<double> dx(x.shape()), dw = start_dw;
  Tensor1<double> db = start_db;
  linear_backward(dy, x, w, dx, dw, db);
  for (int asked = 0; asked < 8; ++asked) {
    Tensor2<double> dx_now(x.shape()), dw_now = start_dw;
    Tensor1<double> db_now = start_db;
    linear_backward(dy, x, w, (asked & 1) != 0 ? Out<double, 2>(dx_now) : Out<double, 2>(),
                    (asked & 2) != 0 ? InOut<double, 2>(dw_now) : InOut<double, 2>(),
                    (asked & 4) != 0 ? InOut<double, 1>(db_now) : InOut<double, 1>());
    CAPTURE(asked);
    if ((asked & 1) != 0) CHECK(bitwise_equal(dx_now, dx));
    CHECK(bitwise_equal(dw_now, (asked & 2) != 0 ? dw : start_dw));
    CHECK(bitwise_equal(db_now, (asked & 4) != 0 ? db : start_db));
  }
}

TEST_CASE("a row of x whose dy is 0 has no part in dw, NaN and infinities too", "[ops]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  Tensor2<double> dy = normal<double>(Shape{300, 5}, 1), x = normal<double>(Shape{300, 4}, 2);
  const Tensor2<double> w = normal<double>(Shape{4, 5}, 3);
  for (Index n : {0, 7, 299}) {
    fill(slice(dy, 0, n, 1), 0.0);
    fill(slice(x, 0, n, 1), 0.0);
  }
  Tensor2<double> clean_dw(w.shape()), dw(w.shape()), dw_alone(w.shape());
  linear_backward(dy, x, w, {}, clean_dw, {});
  x(7, 0) = nan;  // the only one
  linear_backward(dy, x, w, {}, dw_alone, {});
  CHECK(bitwise_equal(dw_alone, clean_dw));
  x(0, 0) = nan;
  x(7, 3) = infinity;
  x(299, 1) = -infinity;
  linear_backward(dy, x, w, {}, dw, {});
  CHECK(bitwise_equal(dw, clean_dw));
  x(1, 2) = nan;  // a row that counts shows, in its own column alone
  linear_backward(dy, x, w, {}, dw, {});
  for (Index i = 0; i < 4; ++i) CHECK((dw(i, 0) == dw(i, 0)) == (i != 2));
}

TEST_CASE("a row of a linear layer has the same bits alone, in any batch, on any threads",
          "[ops]") {
  const Index O = GENERATE(21, 800);  // one task side by side, and several blocks of them
  const auto x = normal<float>(Shape{400, 200}, 1), w = normal<float>(Shape{200, O}, 2);
  const auto dy = normal<float>(Shape{400, O}, 3);
  const auto b = normal<float>(Shape{O}, 4);
  Tensor2<float> y(dy.shape()), dx(x.shape()), dw(w.shape());
  linear_forward(x, w, b, y);
  linear_backward<float>(dy, x, w, dx, dw, {});
  for (Index threads : {2, 3, 16}) {
    ThreadPool pool(threads);
    Tensor2<float> pooled(y.shape()), pooled_dx(dx.shape()), pooled_dw(dw.shape());
    linear_forward(x, w, b, pooled, {.executor = pool});
    linear_backward<float>(dy, x, w, pooled_dx, pooled_dw, {}, {.executor = pool});
    CHECK(bitwise_equal(pooled, y));
    CHECK(bitwise_equal(pooled_dx, dx));
    CHECK(bitwise_equal(pooled_dw, dw));
  }
  for (Index n : {0, 1, 5, 191, 192, 193, 399}) {
    Tensor2<float> alone(Shape{1, O});
    linear_forward(slice(x, 0, n, 1), w, b, alone);
    CHECK(bitwise_equal(alone, In<float, 2>(slice(y, 0, n, 1))));
  }
}

TEST_CASE("a linear layer that gets no memory leaves its outputs as they were", "[ops]") {
  const auto x = normal<float>(Shape{4, 3}, 1), w = normal<float>(Shape{3, 2}, 2),
             dy = normal<float>(Shape{4, 2}, 3), start = normal<float>(Shape{4, 3}, 4);
  for (int allowed = 0; allowed < 3; ++allowed) {
    Refusing memory;
    memory.left = allowed;
    Tensor2<float> dx = start, dw(w.shape());
    Tensor1<float> db(Shape{2});
    bool refused = false;
    try {
      linear_backward(dy, x, w, dx, dw, db, {.memory = &memory});
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    CAPTURE(allowed);
    if (refused) CHECK(bitwise_equal(dx, start));
    if (allowed == 0) CHECK(refused);
  }
}

TEST_CASE("linear_forward does 2 N K O + N O operations, and its tally says so", "[ops]") {
  for (Index N : {1, 6, 7}) {
    for (Index I : {1, 5, 256}) {
      for (Index O : {1, 2, 8}) {
        CAPTURE(N, I, O);
        const auto x = normal<Counting>(Shape{N, I}, 1), w = normal<Counting>(Shape{I, O}, 2);
        const auto b = normal<Counting>(Shape{O}, 3);
        Tensor2<Counting> y(Shape{N, O}), dx(x.shape()), dw(w.shape());
        Tensor1<Counting> db(Shape{O});
        FlopTally forward, backward;
        const auto counted =
            count_operations([&] { linear_forward(x, w, b, y, {.flops = &forward}); });
        CHECK(forward.useful == 2 * N * I * O + N * O);
        CHECK(counted.total() == forward.executed);
        // Panels are 2 columns wide; beyond 64 terms a chain joins those before it.
        const std::int64_t joins = N * O * ((I - 1) / 64);
        if (O % 2 == 0) CHECK(counted.total() == forward.useful + joins);
        CHECK(counted.divisions + counted.functions == 0);

        const auto counted_backward =
            count_operations([&] { linear_backward(y, x, w, dx, dw, db, {.flops = &backward}); });
        CHECK(backward.useful == 4 * N * I * O + N * O);
        // Beyond the products: adding to dw is one operation an element, asking whether x is finite
        // two.
        CHECK(counted_backward.total() == backward.executed + I * O + 2 * N * I);
      }
    }
  }
}

}  // namespace ops_linear
