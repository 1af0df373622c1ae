#include "headwise/ops/rms_norm_heads.hpp"

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_rms_norm_heads {

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

/// x [B, H, L, d] as slices of rows that hold more, heads between each other.
template <class T>
struct InRows {
  Tensor3<T> rows;
  TensorView<T, 4> heads;
  InRows(const Tensor4<T>& x)
      : rows({x.extent(0), x.extent(2), x.extent(1) * x.extent(3) + 3}),
        heads(split_heads(slice(rows, 2, 2, x.extent(1) * x.extent(3)), x.extent(1))) {
    copy(In<T, 4>(x), heads);
  }
};

template <class T>
struct Results {
  Tensor4<T> y, dx;
  Tensor3<T> rstd;
  Tensor1<T> dgamma;
};

template <class T>
Results<T> by_heads(In<T, 4> x, In<T, 4> dy, In<T, 1> gamma, const Context& context = {}) {
  Results<T> r{Tensor4<T>(x.shape()), Tensor4<T>(x.shape()),
               Tensor3<T>({x.extent(0), x.extent(1), x.extent(2)}), Tensor1<T>(x.extent(3))};
  rms_norm_forward(x, gamma, T(1e-5), r.y, r.rstd, context);
  rms_norm_backward(dy, x, gamma, r.rstd, r.dx, r.dgamma, context);
  return r;
}

}  // namespace

TEMPLATE_TEST_CASE("rms_norm of heads has the bits of the rows in a matrix, in any strides",
                   "[ops]", float, double, long double) {
  using T = TestType;
  ThreadPool pool(3);
  for (const Index d : {1, 5, 16, 64, 130}) {
    const Index B = 2, H = 3, L = 150;
    const auto x = normal<T>(Shape{B, H, L, d}, 1), dy = normal<T>(x.shape(), 2);
    const auto gamma = normal<T>(Shape{d}, 3);
    Results<T> expected{Tensor4<T>(x.shape()), Tensor4<T>(x.shape()), Tensor3<T>({B, H, L}),
                        Tensor1<T>(d)};
    const auto rows = [&](auto& t) { return TensorView<T, 2>(t.data(), Shape{B * H * L, d}); };
    const TensorView<T, 1> rstd(expected.rstd.data(), Shape{B * H * L});
    const In<T, 2> x_rows(x.data(), Shape{B * H * L, d}), dy_rows(dy.data(), Shape{B * H * L, d});
    rms_norm_forward(x_rows, gamma, T(1e-5), rows(expected.y), rstd);
    rms_norm_backward(dy_rows, x_rows, gamma, rstd, rows(expected.dx), expected.dgamma);
    const InRows<T> wide_x(x), wide_dy(dy);
    const auto dense = by_heads<T>(x, dy, gamma);
    const auto inside = by_heads<T>(wide_x.heads, wide_dy.heads, gamma);
    const auto on_threads = by_heads<T>(wide_x.heads, dy, gamma, {.executor = pool});
    for (const Results<T>* got : {&dense, &inside, &on_threads}) {
      CAPTURE(d, got == &inside, got == &on_threads);
      CHECK(bitwise_equal(got->y, expected.y));
      CHECK(bitwise_equal(got->dx, expected.dx));
      CHECK(bitwise_equal(got->rstd, expected.rstd));
      CHECK(bitwise_equal(got->dgamma, dense.dgamma));
      CHECK(close_to(got->dgamma, expected.dgamma, 100 * std::numeric_limits<T>::epsilon() * 900));
    }
    Tensor4<T> in_place = x;
    rms_norm_forward(In<T, 4>(in_place), gamma, T(1e-5), in_place, {});
    CHECK(bitwise_equal(in_place, expected.y));
    in_place = dy;
    rms_norm_backward(In<T, 4>(in_place), x, gamma, expected.rstd, in_place, {});
    CHECK(bitwise_equal(in_place, expected.dx));
  }
}

TEST_CASE("the gradients of rms_norm of heads are its differences", "[ops]") {
  const bool affine = GENERATE(false, true);
  auto x = normal<double>(Shape{2, 3, 4, 5}, 4);
  const auto dy = normal<double>(x.shape(), 5);
  auto gamma = normal<double>(Shape{5}, 6);
  const auto gain = [&] { return affine ? In<double, 1>(gamma) : In<double, 1>(); };
  const auto results = by_heads<double>(x, dy, gain());
  GradientCheck<double> check({.tolerance = 1e-9, .stencil = Stencil::five_point});
  check.input("x", x, results.dx);
  if (affine) check.input("gamma", gamma, results.dgamma);
  CHECK(check.run([&] {
    Tensor4<double> y(x.shape());
    rms_norm_forward(In<double, 4>(x), gain(), 1e-5, y, {});
    return weighted_sum(dy, y);
  }));
}

TEST_CASE("rms_norm of no heads is nothing, of rows without elements rstd 0", "[ops]") {
  for (const auto& shape :
       {Shape{0, 2, 3, 4}, Shape{2, 0, 3, 4}, Shape{2, 3, 0, 4}, Shape{2, 3, 4, 0}}) {
    Tensor4<float> x(shape);
    Tensor3<float> rstd({shape[0], shape[1], shape[2]});
    Tensor1<float> gamma(shape[3]), dgamma(shape[3]);
    fill(Out<float, 3>(rstd), 7.0f);
    CHECK_NOTHROW(rms_norm_forward(In<float, 4>(x), gamma, 1e-5f, x, rstd));
    for (const float r : rstd) CHECK(r == 0);
    CHECK_NOTHROW(rms_norm_backward(In<float, 4>(x), x, gamma, rstd, x, dgamma));
  }
}

TEST_CASE("the tallies of rms_norm of heads are what it computes", "[ops]") {
  const auto x = normal<Counting>(Shape{2, 3, 4, 5}, 7), dy = normal<Counting>(x.shape(), 8);
  const auto gamma = normal<Counting>(Shape{5}, 9);
  Tensor4<Counting> y(x.shape());
  Tensor3<Counting> rstd({2, 3, 4});
  Tensor1<Counting> dgamma(5);
  FlopTally forward, back;
  const auto counted = count_operations([&] {
    rms_norm_forward(In<Counting, 4>(x), gamma, Counting(1e-5), y, rstd, {.flops = &forward});
  });
  CHECK(forward.useful == 24 * (5 * 4 + 4));
  CHECK(counted.total() == forward.useful);
  const auto counted_back = count_operations(
      [&] { rms_norm_backward(In<Counting, 4>(dy), x, gamma, rstd, y, dgamma, {.flops = &back}); });
  CHECK(back.useful == 24 * (5 * 12 + 1));
  CHECK(counted_back.total() == back.useful);
}

}  // namespace ops_rms_norm_heads
