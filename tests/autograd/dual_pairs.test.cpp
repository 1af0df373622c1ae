// Every operation as a pair on dual numbers: its derivatives along a direction are those of its
// backward, and its backward bends as a gradient does. And that who checks this can fail.
#include <type_traits>

#include "support/catch.hpp"
#include "support/dual_pairs.hpp"

namespace autograd_dual_pairs {

using namespace headwise_tests;

namespace {

template <class Pair>
DualErrors errors_at(const Pair& pair, std::uint64_t seed, double scale = 1) {
  auto x = normal_vector(pair.inputs(), 100 + seed);
  for (double& value : x) value *= scale;
  return dual_errors(pair, x, seed, 0x1p-16L);
}

/// A softmax whose backward forgets the mean.
struct WithoutMean : SoftmaxPair {
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dp) const {
    Tensor1<T> dx = forward(x);
    for (Index n = 0; n < dx.size(); ++n) dx(n) = dx(n) * dp(n);
    return dx;
  }
};

/// x, but of a dual number with a derivative that is too large by 1e-8 of itself.
template <class T>
T with_wrong_derivative(const T& x) {
  if constexpr (std::floating_point<T>) {
    return x;
  } else {
    return {x.value, x.derivative + x.derivative * T(1e-8).value};
  }
}

/// A softmax that is differentiated wrongly.
struct WrongSlope : SoftmaxPair {
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> p = SoftmaxPair::forward(x);
    for (T& value : p) value = with_wrong_derivative(value);
    return p;
  }
};
/// One whose backward is.
struct WrongBend : SoftmaxPair {
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dp) const {
    Tensor1<T> dx = SoftmaxPair::backward(x, dp);
    dx(3) = with_wrong_derivative(dx(3));
    return dx;
  }
};
/// One that is another function on dual numbers.
struct WrongValue : SoftmaxPair {
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> p = SoftmaxPair::forward(x);
    if (!std::floating_point<T>) p(2) = p(2) + T(1e-9);
    return p;
  }
};

}  // namespace

TEST_CASE("an operation on dual numbers has the derivatives of its backward, to second order",
          "[autograd]") {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const auto right = [&](const char* name, const DualErrors& errors) {
      CAPTURE(name, seed, errors);
      CHECK(errors.ok());
    };
    right("softmax", errors_at(SoftmaxPair(), seed));
    right("softmax, one column", errors_at(SoftmaxPair{{4, 1}}, seed));
    right("softmax, large", errors_at(SoftmaxPair(), seed, 30));
    right("linear", errors_at(LinearPair(), seed));
    right("linear, more than a chain", errors_at(LinearPair{{3, 131}}, seed));
    right("layer_norm", errors_at(NormPair<true>(), seed));
    right("rms_norm", errors_at(NormPair<false>(), seed));
    right("cross_entropy", errors_at(CrossEntropyPair(), seed));
    right("cross_entropy, certain", errors_at(CrossEntropyPair(), seed, 15));
    right("dropout", errors_at(DropoutPair(), seed));
    right("rotary", errors_at(RotaryPair(), seed));
    right("swiglu", errors_at(SwigluPair(), seed));
    right("divide", errors_at(QuotientPair(), seed));
    right("relu", errors_at(ActivationPair{{}, Activation::relu}, seed));
    right("gelu", errors_at(ActivationPair{{}, Activation::gelu}, seed));
    right("gelu_tanh", errors_at(ActivationPair{{}, Activation::gelu_tanh}, seed));
    right("silu", errors_at(ActivationPair{{}, Activation::silu}, seed));
    right("gelu, far out", errors_at(ActivationPair{{}, Activation::gelu}, seed, 8));
    right("silu, far out", errors_at(ActivationPair{{}, Activation::silu}, seed, 40));
  }
}

TEST_CASE("a pair that is wrong on dual numbers does not pass for one that is right",
          "[autograd]") {
  const auto only = [](const DualErrors& errors, double DualErrors::*wrong, double least) {
    CAPTURE(errors);
    CHECK_FALSE(errors.ok());
    CHECK(errors.*wrong > least);
  };
  only(errors_at(WithoutMean(), 1), &DualErrors::adjoint, 1e-3);
  only(errors_at(WithoutMean(), 1), &DualErrors::symmetry, 1e-3);
  only(errors_at(WrongSlope(), 1), &DualErrors::slope, 2e-9);
  only(errors_at(WrongSlope(), 1), &DualErrors::adjoint, 1e-11);
  only(errors_at(WrongBend(), 1), &DualErrors::bend, 1e-9);
  only(errors_at(WrongBend(), 1), &DualErrors::symmetry, 1e-12);
  only(errors_at(WrongValue(), 1), &DualErrors::value, 1e-10);
}

TEST_CASE("relu at 0 has the slope 0, forward and backward, however its input moves",
          "[autograd]") {
  using D = Dual<double>;
  Tensor2<D> x({1, 4}, {D(0, 3), D(-1, 3), D(2, 3), D(0, -3)}), y(x.shape()), dx(x.shape());
  const Tensor2<D> dy({1, 4}, {D(1, 5), D(1, 5), D(1, 5), D(1, 5)});
  activation_forward(Activation::relu, In<D, 2>(x), y);
  activation_backward(Activation::relu, In<D, 2>(dy), x, dx);
  const D zero(0, 0);
  CHECK((y(0, 0) == zero && y(0, 1) == zero && y(0, 2) == D(2, 3) && y(0, 3) == zero));
  CHECK((dx(0, 0) == zero && dx(0, 1) == zero && dx(0, 2) == D(1, 5) && dx(0, 3) == zero));
}

TEST_CASE("an activation of minus infinity is 0 on dual numbers, and so is its slope",
          "[autograd]") {
  using D = Dual<double>;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto which :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    CAPTURE(static_cast<int>(which));
    const Tensor2<D> x({1, 1}, {D(-infinity, 2)}), dy({1, 1}, {D(1, 5)});
    Tensor2<D> y({1, 1}), dx({1, 1});
    activation_forward(which, In<D, 2>(x), y);
    activation_backward(which, In<D, 2>(dy), x, dx);
    CHECK(y(0, 0) == D(0));
    CHECK(dx(0, 0) == D(0));
  }
}

TEST_CASE("a constant of an operation on Dual<long double> has all digits of long double",
          "[autograd]") {
  using Real = long double;
  const auto x = convert<Real>(In<double, 1>(normal_vector(35, 7)));
  const auto error = [&](const auto& pair) {
    const Tensor1<Real> part = contiguous(slice(x, 0, 0, pair.inputs()));
    const auto got = pair.forward(convert<Dual<Real>>(In<Real, 1>(part)));
    const auto wanted = pair.forward(part);
    Real worst = 0;
    for (Index n = 0; n < wanted.size(); ++n) {
      worst = std::max(worst, std::abs(got(n).value - wanted(n)));
    }
    return worst;
  };
  CHECK(error(ActivationPair{{}, Activation::gelu}) < 1e-18L);
  CHECK(error(ActivationPair{{}, Activation::gelu_tanh}) < 1e-18L);
  CHECK(error(RotaryPair()) < 1e-18L);
}

TEST_CASE("log(1 + x) of a small dual number moves by 1 / (1 + x), to rounding", "[autograd]") {
  for (const double x : {0.0, 1e-17, 1e-9, 1e-4, 0.5, 1e3}) {
    CAPTURE(x);
    const auto y = kernels::log_of_one_plus(Dual(x, 3.0));
    CHECK(y.value == std::log1p(x));
    CHECK(std::abs(y.derivative * (1 + x) - 3) < 1e-15);
  }
}

}  // namespace autograd_dual_pairs
