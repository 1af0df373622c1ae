#include "headwise/ops/activation.hpp"

#include <cmath>

#include "headwise/ops/elementwise.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/testing/check_op.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_activation {

using namespace headwise;
using headwise_tests::count_operations;
using headwise_tests::Counting;

namespace {

using Real = long double;
constexpr Activation all[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh,
                              Activation::silu};

template <class T>
Tensor2<T> normal(Index rows, Index columns, std::uint64_t seed) {
  Tensor2<T> x(Shape{rows, columns});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(2 * philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// By the definitions as papers have them.
Real definition(Activation which, Real x) {
  if (which == Activation::relu) return std::max(x, Real{0});
  if (which == Activation::gelu) return x * (1 + std::erf(x / std::sqrt(Real{2}))) / 2;
  if (which == Activation::silu) return x / (1 + std::exp(-x));
  const Real root = std::sqrt(2 / std::acos(Real{-1}));
  return x * (1 + std::tanh(root * (x + Real{44715} / 1000000 * x * x * x))) / 2;
}

template <class T>
Tensor2<T> activated(Activation which, In<T, 2> x, const Context& context = {}) {
  Tensor2<T> y(x.shape());
  activation_forward(which, x, y, context);
  return y;
}
template <class T>
Tensor2<T> flow(Activation which, In<T, 2> dy, In<T, 2> x, const Context& context = {}) {
  Tensor2<T> dx(x.shape());
  activation_backward(which, dy, x, dx, context);
  return dx;
}

}  // namespace

TEST_CASE("activation_forward is its definition in every type", "[ops]") {
  const auto check = [](auto type, Index N, Index F) {
    using T = decltype(type);
    const Tensor2<T> x = normal<T>(N, F, 1);
    for (const Activation which : all) {
      const Tensor2<T> y = activated<T>(which, x);
      Tensor2<Real> expected(x.shape());
      for_each_index(x.shape(), [&](const Shape<2>& i) {
        expected(i) = definition(which, static_cast<Real>(x(i)));
      });
      CAPTURE(sizeof(T), N, F, static_cast<int>(which));
      CHECK(close_to(y, expected, 8 * static_cast<double>(std::numeric_limits<T>::epsilon())));
    }
  };
  for (const Index F : {1, 2, 17, 63, 65}) {
    for (const Index N : {1, 5}) {
      check(float{}, N, F);
      check(double{}, N, F);
      check(Real{}, N, F);
    }
  }
}

TEST_CASE("the gradients of activations are the slopes of forward", "[ops]") {
  for (const Activation which : all) {
    for (const Index F : {1, 5, 40}) {
      CAPTURE(static_cast<int>(which), F);
      const Tensor2<Real> x = normal<Real>(3, F, 2);  // none at the kink of relu
      const auto report =
          check_op([&](const Tensor2<Real>& at) { return activated<Real>(which, at); },
                   [&](const Tensor2<Real>& dy) { return flow<Real>(which, dy, x); },
                   In<Real, 2>(x), {.tolerance = 1e-11, .stencil = Stencil::five_point});
      CAPTURE(report);
      CHECK(report);
    }
  }
}

TEST_CASE("the gradients of swiglu are the slopes of forward, for both inputs", "[ops]") {
  const Tensor2<Real> gate = normal<Real>(3, 7, 3), up = normal<Real>(3, 7, 4);
  const auto forward = [](const Tensor2<Real>& g, const Tensor2<Real>& u) {
    Tensor2<Real> y(g.shape());
    swiglu_forward(g, u, y);
    return y;
  };
  const auto backward = [&](const Tensor2<Real>& dy, bool of_gate) {
    Tensor2<Real> d_gate(gate.shape()), d_up(gate.shape());
    swiglu_backward(dy, gate, up, d_gate, d_up);
    return of_gate ? d_gate : d_up;
  };
  const GradientCheckOptions options{.tolerance = 1e-11, .stencil = Stencil::five_point};
  CHECK(check_op([&](const Tensor2<Real>& at) { return forward(at, up); },
                 [&](const Tensor2<Real>& dy) { return backward(dy, true); }, In<Real, 2>(gate),
                 options));
  CHECK(check_op([&](const Tensor2<Real>& at) { return forward(gate, at); },
                 [&](const Tensor2<Real>& dy) { return backward(dy, false); }, In<Real, 2>(up),
                 options));
}

TEMPLATE_TEST_CASE("swiglu is silu times up, also of the halves of one matrix and in place",
                   "[ops]", float, double, long double) {
  using T = TestType;
  const Tensor2<T> both = normal<T>(5, 2 * 67, 5), dy = normal<T>(5, 67, 6);
  const In<T, 2> gate = slice(both, 1, 0, 67), up = slice(both, 1, 67, 67);
  const Tensor2<T> silu = activated<T>(Activation::silu, gate);
  Tensor2<T> y(gate.shape()), in_place = both, d_both(both.shape()), d_up(gate.shape());
  swiglu_forward(gate, up, y);
  for_each_index(y.shape(), [&](const Shape<2>& i) { CHECK(y(i) == T(silu(i) * up(i))); });
  const auto into = slice(in_place, 1, 67, 67);
  swiglu_forward(In<T, 2>(slice(in_place, 1, 0, 67)), into, into);
  CHECK(bitwise_equal(In<T, 2>(into), In<T, 2>(y)));
  swiglu_backward(dy, gate, up, slice(d_both, 1, 0, 67), slice(d_both, 1, 67, 67));
  Tensor2<T> d_gate = dy;  // in place
  swiglu_backward(d_gate, gate, up, d_gate, d_up);
  CHECK(bitwise_equal(In<T, 2>(d_gate), In<T, 2>(slice(d_both, 1, 0, 67))));
  CHECK(bitwise_equal(In<T, 2>(d_up), In<T, 2>(slice(d_both, 1, 67, 67))));
  for_each_index(y.shape(), [&](const Shape<2>& i) { CHECK(d_up(i) == T(dy(i) * silu(i))); });
}

TEMPLATE_TEST_CASE("activations have the same bits in place, strided and on any threads", "[ops]",
                   float, double) {
  using T = TestType;
  const Tensor2<T> x = normal<T>(700, 70, 7), dy = normal<T>(700, 70, 8);  // several tasks
  ThreadPool pool(3);
  for (const Activation which : all) {
    const Tensor2<T> y = activated<T>(which, x), dx = flow<T>(which, dy, x);
    CHECK(bitwise_equal(activated<T>(which, x, {.executor = pool}), y));
    CHECK(bitwise_equal(flow<T>(which, dy, x, {.executor = pool}), dx));
    Tensor2<T> in_place = x, d_in_place = dy, turned(Shape{70, 700});
    activation_forward(which, in_place, in_place);
    activation_backward(which, d_in_place, x, d_in_place);
    CHECK(bitwise_equal(in_place, y));
    CHECK(bitwise_equal(d_in_place, dx));
    copy(In<T, 2>(x), transpose(turned, 0, 1));
    activation_forward(which, transpose(turned, 0, 1), transpose(turned, 0, 1));
    CHECK(bitwise_equal(In<T, 2>(transpose(turned, 0, 1)), In<T, 2>(y)));
  }
}

TEST_CASE("an element whose dy is 0 has dx 0, whatever x holds", "[ops]") {
  for (const Activation which : all) {
    for (const Real bad :
         {std::numeric_limits<Real>::quiet_NaN(), std::numeric_limits<Real>::infinity()}) {
      Tensor2<Real> x = normal<Real>(2, 3, 9), dy = normal<Real>(2, 3, 10);
      x(1, 1) = bad;
      dy(1, 1) = 0;
      const auto dx = flow<Real>(which, dy, x);
      CHECK(dx(1, 1) == 0);
      for (const Real d : dx) CHECK(d == d);
    }
  }
}

TEST_CASE("activations of nothing are nothing", "[ops]") {
  for (const auto& shape : {Shape{0, 3}, Shape{3, 0}}) {
    Tensor2<float> x(shape), y(shape);
    FlopTally flops;
    for (const Activation which : all) {
      CHECK_NOTHROW(activation_forward(which, x, y, {.flops = &flops}));
      CHECK_NOTHROW(activation_backward(which, x, x, y, {.flops = &flops}));
    }
    Tensor2<float> z(shape);
    CHECK_NOTHROW(swiglu_forward(x, x, y));
    CHECK_NOTHROW(swiglu_backward(x, x, x, y, z));
    CHECK_NOTHROW(add_forward(x, x, y));
    CHECK(flops.useful == 0);
  }
}

TEST_CASE("the tallies of activations are what they compute", "[ops]") {
  Tensor2<Counting> x = normal<Counting>(4, 9, 11);
  for (Counting& element : x) element = Counting(std::abs(element.value));  // relu lets all through
  const Tensor2<Counting> dy = normal<Counting>(4, 9, 12);
  Tensor2<Counting> y(x.shape()), dx(x.shape()), d_up(x.shape());
  const auto tallied = [&](auto&& call) {
    FlopTally flops;
    const auto counted = count_operations([&] { call(Context{.flops = &flops}); });
    CHECK(counted.total() == flops.useful);
    CHECK(flops.executed == flops.useful);
    return counted.total();
  };
  for (const Activation which : all) {
    CAPTURE(static_cast<int>(which));
    const auto forward =
        tallied([&](const Context& context) { activation_forward(which, x, y, context); });
    const auto backward =
        tallied([&](const Context& context) { activation_backward(which, dy, x, dx, context); });
    const bool relu = which == Activation::relu, tanh = which == Activation::gelu_tanh;
    CHECK(forward == 36 * (relu ? 0 : tanh ? 8 : 4));
    CHECK(backward == 36 * (relu ? 1 : tanh ? 15 : which == Activation::gelu ? 10 : 8));
    // Behind a gate
    tallied(
        [&](const Context& context) { detail::activate_rows<Counting>(which, x, dy, y, context); });
    tallied([&](const Context& context) {
      detail::activate_rows_backward<Counting>(which, dy, x, dy, dx, d_up, context);
    });
  }
  CHECK(tallied([&](const Context& context) { swiglu_forward(x, dy, y, context); }) == 36 * 5);
  CHECK(tallied([&](const Context& context) { swiglu_backward(dy, x, dy, dx, d_up, context); }) ==
        36 * 11);
  CHECK(tallied([&](const Context& context) { add_forward(x, dy, y, context); }) == 36);
}

TEMPLATE_TEST_CASE("add_forward is the sum, also in place and strided", "[ops]", float, double,
                   long double) {
  using T = TestType;
  for (const Index D : {1, 7, 64, 65}) {
    const Tensor2<T> a = normal<T>(5, D, 13), b = normal<T>(5, D, 14);
    Tensor2<T> y(a.shape()), left = a, right = b, turned(Shape{D, 5});
    add_forward(a, b, y);
    for_each_index(y.shape(), [&](const Shape<2>& i) { CHECK(y(i) == T(a(i) + b(i))); });
    add_forward(left, b, left);
    add_forward(a, right, right);
    add_forward(a, b, transpose(turned, 0, 1));
    CHECK(bitwise_equal(left, y));
    CHECK(bitwise_equal(right, y));
    CHECK(bitwise_equal(In<T, 2>(transpose(turned, 0, 1)), In<T, 2>(y)));
  }
}

}  // namespace ops_activation
