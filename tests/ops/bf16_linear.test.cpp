// Linear layers whose products round their factors to bf16: sums over rounded factors, the same
// bits however rows come, and nothing but products rounded.
#include "headwise/ops/bf16_products.hpp"

#include <cmath>
#include <limits>

#include "headwise/ops/linear.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/number.hpp"
#include "support/bf16_units.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"

namespace ops_bf16_linear {

using namespace headwise_tests;

namespace {

using Real = long double;

/// y = start + a b of rounded factors, and the sums of the absolute values of what was added.
struct Sums {
  Tensor2<Real> values, sizes;

  Sums(In<float, 2> a, In<float, 2> b, In<float, 2> start)
      : values(start.shape()), sizes(start.shape()) {
    for_each_index(values.shape(), [&](const Shape<2>& i) {
      values(i) = start(i), sizes(i) = std::abs(start(i));
      for (Index k = 0; k < a.extent(1); ++k) {
        const Real term = Real{bf16_factor(a(i[0], k))} * bf16_factor(b(k, i[1]));
        values(i) += term, sizes(i) += std::abs(term);
      }
    });
  }

  /// The largest error of y, in units of epsilon times the size.
  double error(In<float, 2> y) const {
    Real worst = 0;
    for_each_index(values.shape(), [&](const Shape<2>& i) {
      const Real error = std::abs(Real{y(i)} - values(i));
      if (!(error <= worst * sizes(i))) worst = error / sizes(i);
    });
    return static_cast<double>(worst) / std::numeric_limits<float>::epsilon();
  }
};

/// Half a unit for each of K terms, and a few for the blocks and what they are added to.
double bound(Index K) { return static_cast<double>(K) / 2 + 4; }

void check_against_sums(Index N, Index I, Index O, const Context& context) {
  Draw draw(static_cast<std::uint64_t>(N + 1000 * I + 100000 * O));
  const auto x = draw.tensor<float>(Shape{N, I}), w = draw.tensor<float>(Shape{I, O}),
             dy = draw.tensor<float>(Shape{N, O}), start_dw = draw.tensor<float>(Shape{I, O});
  const auto b = draw.tensor<float>(Shape{O});
  Tensor2<float> y(dy.shape()), y_start(dy.shape()), dx(x.shape()), dw = start_dw;
  for_each_index(y.shape(), [&](const Shape<2>& i) { y_start(i) = b(i[1]); });
  Tensor1<float> db(b.shape()), exact_db(b.shape());
  linear_forward(x, w, b, y, context);
  linear_backward(dy, x, w, dx, dw, db, context);
  linear_backward<float>(dy, x, w, {}, {}, exact_db);
  CAPTURE(N, I, O);
  CHECK(Sums(x, w, y_start).error(y) <= bound(I));
  CHECK(Sums(dy, transpose(w, 0, 1), Tensor2<float>(x.shape())).error(dx) <= bound(O));
  CHECK(Sums(transpose(x, 0, 1), dy, start_dw).error(dw) <= bound(N));
  CHECK(bitwise_equal(db, exact_db));  // a sum, no product
}

}  // namespace

TEST_CASE("linear layers by products of bf16 equal sums over rounded factors", "[ops]") {
  for (const Bf16Unit unit : supported_bf16_units()) {
    CAPTURE(name_of(unit));
    for (Index N : {1, 5, 16, 17, 97}) {
      for (Index I : {1, 7, 31, 64, 257}) {
        for (Index O : {1, 5, 33}) check_against_sums(N, I, O, {.products = bf16_products(unit)});
      }
    }
  }
}

TEST_CASE("a row of a linear layer has the same bits alone and on any threads, by bf16", "[ops]") {
  const Index O = GENERATE(21, 800);  // one task side by side, and several blocks of them
  const auto x = random_tensor<float>(Shape{400, 45}, 1), w = random_tensor<float>(Shape{45, O}, 2),
             dy = random_tensor<float>(Shape{400, O}, 3);
  const auto b = random_tensor<float>(Shape{O}, 4);
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Products products = bf16_products(unit);
    CAPTURE(name_of(unit));
    Tensor2<float> y(dy.shape()), dx(x.shape()), dw(w.shape());
    ThreadPool serial(1);
    linear_forward(x, w, b, y, {.executor = serial, .products = products});
    linear_backward<float>(dy, x, w, dx, dw, {}, {.executor = serial, .products = products});
    for (Index threads : {1, 2, 3, 8}) {
      ThreadPool pool(threads);
      const Context context{.executor = pool, .products = products};
      Tensor2<float> pooled(y.shape()), pooled_dx(dx.shape()), pooled_dw(dw.shape());
      linear_forward(x, w, b, pooled, context);
      linear_backward<float>(dy, x, w, pooled_dx, pooled_dw, {}, context);
      CHECK(bitwise_equal(pooled, y));
      CHECK(bitwise_equal(pooled_dx, dx));
      CHECK(bitwise_equal(pooled_dw, dw));
    }
    for (Index n : {0, 1, 5, 15, 16, 191, 192, 193, 399}) {
      Tensor2<float> alone(Shape{1, O}), alone_dx(Shape{1, 45}), no_dw(w.shape());
      linear_forward(slice(x, 0, n, 1), w, b, alone, {.products = products});
      linear_backward<float>(slice(dy, 0, n, 1), slice(x, 0, n, 1), w, alone_dx, no_dw, {},
                             {.products = products});
      CHECK(bitwise_equal(alone, In<float, 2>(slice(y, 0, n, 1))));
      CHECK(bitwise_equal(alone_dx, In<float, 2>(slice(dx, 0, n, 1))));
    }
  }
}

TEST_CASE("a row of x whose dy is 0 has no part in dw by bf16, whatever it holds", "[ops]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    CAPTURE(name_of(unit));
    Tensor2<float> dy = random_tensor<float>(Shape{300, 5}, 1),
                   x = random_tensor<float>(Shape{300, 4}, 2);
    const auto w = random_tensor<float>(Shape{4, 5}, 3);
    for (Index n : {0, 7, 8, 299}) {
      fill(slice(dy, 0, n, 1), 0.0f);
      fill(slice(x, 0, n, 1), 0.0f);
    }
    Tensor2<float> clean_dw(w.shape());
    linear_backward<float>(dy, x, w, {}, clean_dw, {}, context);
    // The last is finite, but for bf16.
    for (float poison : {nan, std::numeric_limits<float>::infinity(), 3.4e38f}) {
      for (Index n : {0, 7, 8, 299}) {
        Tensor2<float> dw(w.shape()), bad = x;
        bad(n, n % 4) = poison;
        linear_backward<float>(dy, bad, w, {}, dw, {}, context);
        CAPTURE(poison, n);
        CHECK(bitwise_equal(dw, clean_dw));
      }
      Tensor2<float> dw(w.shape()), bad = x;
      bad(1, 2) = poison;  // a row that counts shows, in its own column alone
      linear_backward<float>(dy, bad, w, {}, dw, {}, context);
      for (Index i = 0; i < 4; ++i) {  // by bits: this is compiled with -ffast-math, too
        CHECK((detail::number_kind(dw(i, 0)) == detail::NumberKind::finite) == (i != 2));
      }
    }
  }
}

TEST_CASE("products of nothing but float are rounded, and without asking none", "[ops]") {
  CHECK(Products().of_float());
  CHECK(Context().products.of_float());
  const auto x = random_tensor<double>(Shape{9, 70}, 1),
             w = random_tensor<double>(Shape{70, 11}, 2),
             dy = random_tensor<double>(Shape{9, 11}, 3);
  Tensor2<double> y(dy.shape()), dx(x.shape()), dw(w.shape());
  linear_forward<double>(x, w, {}, y);
  linear_backward<double>(dy, x, w, dx, dw, {});
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Products products = bf16_products(unit);
    CHECK_FALSE(products.of_float());
    CHECK(products.kernels() == bf16_products(unit).kernels());
    Tensor2<double> same(y.shape()), same_dx(x.shape()), same_dw(w.shape());
    linear_forward<double>(x, w, {}, same, {.products = products});
    linear_backward<double>(dy, x, w, same_dx, same_dw, {}, {.products = products});
    CHECK(bitwise_equal(same, y));
    CHECK(bitwise_equal(same_dx, dx));
    CHECK(bitwise_equal(same_dw, dw));
  }
  CHECK(bf16_products().kernels() == bf16_products(bf16_unit()).kernels());
}

}  // namespace ops_bf16_linear
