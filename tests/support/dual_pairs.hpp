// Operations and their backwards as pairs that dual_pair.hpp takes: all that goes in is one vector,
// and so is all that comes out.
#pragma once

#include <cstdint>

#include "headwise/ops/activation.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/elementwise.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/ops/rms_norm.hpp"
#include "headwise/ops/rotary.hpp"
#include "headwise/ops/softmax.hpp"
#include "support/dual_pair.hpp"

namespace headwise_tests {

/// A matrix in, a matrix out.
struct Matrices {
  Index N = 5, D = 7;

  Shape<2> shape() const { return {N, D}; }
  Index inputs() const { return N * D; }
  Index outputs() const { return N * D; }
  template <class T>
  In<T, 2> matrix(const Tensor1<T>& x, Index begin = 0) const {
    return {x.data() + begin, shape()};
  }
  template <class T>
  Out<T, 2> matrix(Tensor1<T>& x, Index begin = 0) const {
    return {x.data() + begin, shape()};
  }
};

struct SoftmaxPair : Matrices {
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> p(outputs());
    softmax_forward(matrix(x), matrix(p));
    return p;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dp) const {
    const Tensor1<T> p = forward(x);
    Tensor1<T> dx(inputs());
    softmax_backward(matrix(dp), matrix(p), matrix(dx));
    return dx;
  }
};

struct ActivationPair : Matrices {
  Activation which;

  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> y(outputs());
    activation_forward(which, matrix(x), matrix(y));
    return y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    Tensor1<T> dx(inputs());
    activation_backward(which, matrix(dy), matrix(x), matrix(dx));
    return dx;
  }
};

struct DropoutPair : Matrices {
  Dropout dropout{.rate = 0.3, .seed = 5, .step = 2};

  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> y(outputs());
    dropout_forward(matrix(x), dropout, matrix(y));
    return y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>&, const Tensor1<T>& dy) const {
    Tensor1<T> dx(inputs());
    dropout_backward(matrix(dy), dropout, matrix(dx));
    return dx;
  }
};

struct RotaryPair : Matrices {
  RotaryOptions options{.offset = 1000};
  Shape<4> heads() const { return {1, 1, N, D - 1}; }
  Index inputs() const { return N * (D - 1); }
  Index outputs() const { return N * (D - 1); }

  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> y(outputs());
    rotary_forward(In<T, 4>(x.data(), heads()), options, Out<T, 4>(y.data(), heads()));
    return y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>&, const Tensor1<T>& dy) const {
    Tensor1<T> dx(inputs());
    rotary_backward(In<T, 4>(dy.data(), heads()), options, Out<T, 4>(dx.data(), heads()));
    return dx;
  }
};

/// Two matrices in.
struct TwoMatrices : Matrices {
  Index inputs() const { return 2 * N * D; }
};

struct SwigluPair : TwoMatrices {
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> y(outputs());
    swiglu_forward(matrix(x), matrix(x, N * D), matrix(y));
    return y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    Tensor1<T> dx(inputs());
    swiglu_backward(matrix(dy), matrix(x), matrix(x, N * D), matrix(dx), matrix(dx, N * D));
    return dx;
  }
};

struct QuotientPair : TwoMatrices {
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> y(outputs());
    divide_forward(matrix(x), matrix(x, N * D), matrix(y));
    return y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    const Tensor1<T> y = forward(x);
    Tensor1<T> dx(inputs());
    divide_backward(matrix(dy), matrix(x, N * D), matrix(y), matrix(dx), matrix(dx, N * D));
    return dx;
  }
};

/// y = x w + b: x [N, D], w [D, O], b [O].
struct LinearPair : Matrices {
  Index O = 4;
  Index inputs() const { return N * D + D * O + O; }
  Index outputs() const { return N * O; }

  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Cut<T> cut(x);
    const auto in = cut.tensor(shape()), w = cut.tensor(Shape{D, O});
    const auto b = cut.tensor(Shape{O});
    Tensor1<T> y(outputs());
    linear_forward<T>(in, w, b, Out<T, 2>(y.data(), Shape{N, O}));
    return y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    Tensor1<T> dx(inputs());
    Cut<T> cut(x), to(dx);
    const auto in = cut.tensor(shape()), w = cut.tensor(Shape{D, O});
    const auto d_in = to.tensor(shape()), dw = to.tensor(Shape{D, O});
    linear_backward<T>(In<T, 2>(dy.data(), Shape{N, O}), in, w, d_in, dw, to.tensor(Shape{O}));
    return dx;
  }
};

/// x [N, D], gamma [D], and beta [D] of layer_norm.
template <bool centred>
struct NormPair : Matrices {
  Index inputs() const { return N * D + (centred ? 2 : 1) * D; }

  template <class T>
  struct Forward {
    Tensor1<T> y, mean, rstd;
  };
  template <class T>
  Forward<T> run(const Tensor1<T>& x) const {
    Cut<T> cut(x);
    const auto in = cut.tensor(shape());
    const auto gamma = cut.tensor(Shape{D});
    Forward<T> f{Tensor1<T>(outputs()), Tensor1<T>(N), Tensor1<T>(N)};
    if constexpr (centred) {
      layer_norm_forward<T>(in, {gamma, cut.tensor(Shape{D})}, T(1e-5), matrix(f.y),
                            {f.mean, f.rstd});
    } else {
      rms_norm_forward<T>(in, gamma, T(1e-6), matrix(f.y), f.rstd);
    }
    return f;
  }
  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    return run(x).y;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    const Forward<T> f = run(x);
    Tensor1<T> dx(inputs());
    Cut<T> cut(x), to(dx);
    const auto in = cut.tensor(shape()), d_in = to.tensor(shape());
    const auto gamma = cut.tensor(Shape{D}), dgamma = to.tensor(Shape{D});
    if constexpr (centred) {
      layer_norm_backward<T>(matrix(dy), in, gamma, {f.mean, f.rstd}, d_in,
                             {dgamma, to.tensor(Shape{D})});
    } else {
      rms_norm_backward<T>(matrix(dy), in, gamma, f.rstd, d_in, dgamma);
    }
    return dx;
  }
};

struct CrossEntropyPair : Matrices {
  Index outputs() const { return 1; }
  Tensor1<std::int64_t> targets{Shape{5}, {0, 3, 6, -100, 2}};

  template <class T>
  Tensor1<T> forward(const Tensor1<T>& x) const {
    Tensor1<T> loss(1), lse(N);
    loss(0) = cross_entropy_forward(matrix(x), In<std::int64_t, 1>(targets), {}, lse);
    return loss;
  }
  template <class T>
  Tensor1<T> backward(const Tensor1<T>& x, const Tensor1<T>& dy) const {
    Tensor1<T> lse(N), dx(inputs());
    (void)cross_entropy_forward(matrix(x), In<std::int64_t, 1>(targets), {}, lse);
    cross_entropy_backward(dy(0), matrix(x), In<std::int64_t, 1>(targets), lse, {}, matrix(dx));
    return dx;
  }
};

}  // namespace headwise_tests
