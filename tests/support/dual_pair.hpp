// A pair of functions, forward and backward, held against itself by dual numbers, to first and to
// second order. A pair works on one vector of all inputs, for every scalar:
//
//   struct Pair {
//     Index inputs() const, outputs() const;
//     template <class T> Tensor1<T> forward(const Tensor1<T>& x) const;
//     template <class T> Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const;
//   };
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "headwise/autograd/forward_mode.hpp"
#include "headwise/tensor/philox.hpp"

namespace headwise_tests {

using namespace headwise;

/// Cuts tensors off a vector, one behind the other.
template <class T>
class Cut {
 public:
  explicit Cut(Tensor1<T>& x) : next_(x.data()) {}
  explicit Cut(const Tensor1<T>& x) : next_(const_cast<T*>(x.data())) {}

  template <int R>
  TensorView<T, R> tensor(const Shape<R>& shape) {
    T* const begin = next_;
    next_ += shape.size();
    return {begin, shape};
  }

 private:
  T* next_;
};

/// <a, b>, and what its terms amount to without their signs.
struct InnerProduct {
  long double sum = 0, absolute = 0;

  template <class A, class B>
  InnerProduct(const Tensor1<A>& a, const Tensor1<B>& b) {
    for (Index n = 0; n < a.size(); ++n) {
      const auto term = static_cast<long double>(a(n)) * static_cast<long double>(b(n));
      sum += term, absolute += std::abs(term);
    }
  }
  /// How far they are apart, relative to their terms; 0.1 where all of these are rounding, of a
  /// Hessian that is 0. NaN for NaN.
  friend double error_between(const InnerProduct& a, const InnerProduct& b) {
    return static_cast<double>(std::abs(a.sum - b.sum) / (a.absolute + b.absolute + 0.1L));
  }
};

/// max|a - b| / (max|b| + 1e-3), as GradientCheck has it. NaN for NaN.
template <class A, class B>
double greatest_error(const Tensor1<A>& a, const Tensor1<B>& b) {
  long double gap = 0, most = 0;
  for (Index n = 0; n < b.size(); ++n) {
    const auto wide_a = static_cast<long double>(a(n)), wide_b = static_cast<long double>(b(n));
    const long double apart = std::abs(wide_a - wide_b);
    gap = apart <= gap ? gap : apart;
    most = std::max(most, std::abs(wide_b));
  }
  return static_cast<double>(gap / (most + 1e-3L));
}

inline Tensor1<double> normal_vector(Index count, std::uint64_t seed) {
  Tensor1<double> x(count);
  for (Index n = 0; n < count; ++n) {
    x(n) = philox_normal(philox_key(seed), static_cast<std::uint64_t>(n));
  }
  return x;
}

/// (f(x + h u) - f(x - h u)) / 2 h with an error of h^4, in long double.
template <class F>
Tensor1<long double> central_difference(const F& f, const Tensor1<double>& x,
                                        const Tensor1<double>& u, long double h) {
  const auto at = [&](int steps) {
    Tensor1<long double> moved(x.size());
    for (Index n = 0; n < x.size(); ++n) {
      moved(n) = static_cast<long double>(x(n)) + static_cast<long double>(steps) * h * u(n);
    }
    return f(std::as_const(moved));
  };
  const Tensor1<long double> up = at(1), down = at(-1), top = at(2), bottom = at(-2);
  Tensor1<long double> slope(up.size());
  for (Index n = 0; n < up.size(); ++n) {
    slope(n) = (8 * (up(n) - down(n)) - (top(n) - bottom(n))) / (12 * h);
  }
  return slope;
}

/// By how much the derivatives of a pair contradict each other.
struct DualErrors {
  double value;     // f(x) on dual numbers against f(x)
  double slope;     // J u on dual numbers against central differences
  double adjoint;   // <dy, J u> against <J^T dy, u>, J^T from backward in double
  double bend;      // H u against central differences of backward, H the Hessian of <dy, f(x)>
  double symmetry;  // <w, H u> against <u, H w>

  /// Central differences are as good as 1e-9, identities as rounding.
  bool ok() const {
    return value <= 1e-12 && slope <= 1e-9 && adjoint <= 1e-12 && bend <= 1e-9 && symmetry <= 1e-12;
  }
};

inline std::ostream& operator<<(std::ostream& out, const DualErrors& e) {
  return out << "value " << e.value << ", slope " << e.slope << ", adjoint " << e.adjoint
             << ", bend " << e.bend << ", symmetry " << e.symmetry;
}

/// At x, along random directions; `step` is that of the differences.
template <class Pair>
DualErrors dual_errors(const Pair& pair, const Tensor1<double>& x, std::uint64_t seed,
                       long double step = 0x1p-12L) {
  const auto u = normal_vector(pair.inputs(), 3 * seed);
  const auto w = normal_vector(pair.inputs(), 3 * seed + 1);
  const auto dy = normal_vector(pair.outputs(), 3 * seed + 2);
  const auto forward = [&](const auto& at) { return pair.forward(at); };
  const auto gradient = [&](const auto& at) {
    using T = typename std::remove_cvref_t<decltype(at)>::value_type;
    return pair.backward(at, convert<T>(In<double, 1>(dy)));
  };
  const auto wide = [](const Tensor1<double>& v) { return convert<long double>(In<double, 1>(v)); };

  DualErrors errors{};
  const auto moved = jvp(forward, x, u);
  errors.value = greatest_error(moved.value, pair.forward(x));
  errors.adjoint = error_between(InnerProduct(dy, moved.derivative), InnerProduct(gradient(x), u));
  errors.slope = greatest_error(jvp(forward, wide(x), wide(u)).derivative,
                                central_difference(forward, x, u, step));
  errors.bend = greatest_error(hessian_vector_product(gradient, wide(x), wide(u)),
                               central_difference(gradient, x, u, step));
  errors.symmetry = error_between(InnerProduct(w, hessian_vector_product(gradient, x, u)),
                                  InnerProduct(u, hessian_vector_product(gradient, x, w)));
  return errors;
}

}  // namespace headwise_tests
