// Sums, differences, products and quotients on the tape. An operand of fewer axes stands for all
// indices of the axes that it lacks, which come first: a bias [D] is added to each row of [B, L,
// D], and its gradient is summed over them.
#pragma once

#include "headwise/autograd/views.hpp"
#include "headwise/ops/elementwise.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What an input was, where backward does not read it: its shape over elements that are there.
template <class T, int R>
In<T, R> unread(const In<T, R>& dy, const Shape<R>& shape) {
  return {dy.data(), shape, Shape<R>()};
}

/// An input that backward may not need: kept, or its shape alone.
template <class T>
struct MaybeSaved {
  In<T, 2> value;
  bool saved;

  In<T, 2> read(const In<T, 2>& dy) const { return saved ? value : unread(dy, value.shape()); }
};

template <class T>
MaybeSaved<T> save_if(bool needed, Recording<T>& call, const Variable<T, 2>& x, const In<T, 2>& y) {
  needed = needed || y.size() == 0;  // then nothing else is there to point to
  if (needed) call.save(x);
  return {x.value(), needed};
}

/// Two operands as matrices, [N, M] or one row, and the shape of what they give.
template <class T, int R>
struct Operands {
  Variable<T, 2> a, b;
  Shape<2> rows;
  Shape<R> shape;
};

/// Whether the axes of b are the last ones of a.
template <int R, int Q>
bool ends_with(const Shape<R>& a, const Shape<Q>& b) {
  for (int q = 0; q < Q; ++q) {
    if (a[R - Q + q] != b[q]) return false;
  }
  return true;
}

/// The operand of all axes, and the one that may lack some, as matrices.
template <class T, int R, int Q>
void as_matrices(const Variable<T, R>& whole, const Variable<T, Q>& part, Variable<T, 2>& rows,
                 Variable<T, 2>& row) {
  if constexpr (Q == R) {
    rows = as_rows(whole);
    row = as_rows(part);
  } else {
    const Index M = part.size();
    if constexpr (Q == 1) {
      rows = as_rows(whole);
    } else {
      rows = reshape(whole, Shape{M == 0 ? 0 : whole.size() / M, M});
    }
    row = reshape(part, Shape{Index{1}, M});
  }
}

template <class T, int R, int Q>
auto operands_of(NodeName name, const Variable<T, R>& a, const Variable<T, Q>& b) {
  constexpr int rank = R < Q ? Q : R;
  const auto fits = [&] {
    if constexpr (R >= Q) {
      return ends_with(a.shape(), b.shape());
    } else {
      return ends_with(b.shape(), a.shape());
    }
  };
  if (!fits()) {
    raise<ShapeError>(name.text, ": b is ", b.shape(), ", expected the shape of a ", a.shape(),
                      ", or the last axes of one of them as the other");
  }
  Operands<T, rank> of;
  if constexpr (R >= Q) {
    as_matrices(a, b, of.a, of.b);
    of.rows = of.a.shape();
    of.shape = a.shape();
  } else {
    as_matrices(b, a, of.b, of.a);
    of.rows = of.b.shape();
    of.shape = b.shape();
  }
  return of;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// a + b. Of one shape, or the axes of one are the last of the other. Throws ShapeError; and, as
/// all functions of the tape, as Recording, and std::bad_alloc.
template <Scalar T, int R, int Q>
auto add(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"add"}, a, b);
  Recording<T> call({"add"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  add_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const auto backward = [to_a, to_b](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto summed = [&](const auto& target) {
      pass.assign([&](Out<T, 2> d) { add_backward(dy, {}, d, pass.context()); }, target);
    };
    if (to_b.shape != dy.shape()) {
      summed(to_b);
      return pass.hand_on(to_a, dy);
    }
    to_a.shape == dy.shape() ? pass.contribute(to_a, dy) : summed(to_a);
    pass.hand_on(to_b, dy);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// a - b, of shapes as in add.
template <Scalar T, int R, int Q>
auto subtract(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"subtract"}, a, b);
  Recording<T> call({"subtract"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  subtract_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const auto backward = [to_a, to_b](BackwardPass<T>& pass, In<T, 2> dy) {
    pass.assign([&](Out<T, 2> da, Out<T, 2> db) { subtract_backward(dy, da, db, pass.context()); },
                to_a, to_b);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// a b, element by element, of shapes as in add. Each operand is kept for the gradient of the
/// other.
template <Scalar T, int R, int Q>
auto multiply(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"multiply"}, a, b);
  Recording<T> call({"multiply"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  multiply_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const auto kept_a = detail::save_if<T>(of.b.has_gradient(), call, of.a, y);
  const auto kept_b = detail::save_if<T>(of.a.has_gradient(), call, of.b, y);
  const auto backward = [to_a, to_b, kept_a, kept_b](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> da, Out<T, 2> db) {
      multiply_backward(dy, kept_a.read(dy), kept_b.read(dy), da, db, pass.context());
    };
    pass.assign(into, to_a, to_b);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// a / b, element by element, of shapes as in add. b and the quotient are kept.
template <Scalar T, int R, int Q>
auto divide(const Variable<T, R>& a, const Variable<T, Q>& b) {
  const auto of = detail::operands_of({"divide"}, a, b);
  Recording<T> call({"divide"}, of.a, of.b);
  const Out<T, 2> y = call.output(of.rows);
  divide_forward(of.a.value(), of.b.value(), y, call.context());
  const auto to_a = call.optional_target(of.a), to_b = call.optional_target(of.b);
  const In<T, 2> kept_b = call.save(of.b);
  call.save_output();
  const auto backward = [to_a, to_b, kept_b, y](BackwardPass<T>& pass, In<T, 2> dy) {
    const auto into = [&](Out<T, 2> da, Out<T, 2> db) {
      divide_backward(dy, kept_b, y, da, db, pass.context());
    };
    pass.assign(into, to_a, to_b);
  };
  return reshape(call.finish(y, backward), of.shape);
}

/// alpha x. Throws ArgumentError for an alpha that is not finite.
template <Scalar T, int R>
Variable<T, R> scale(const Variable<T, R>& x, const std::type_identity_t<T>& alpha) {
  const Variable<T, 2> rows = as_rows(x);
  Recording<T> call({"scale"}, rows);
  const Out<T, 2> y = call.output(rows.shape());
  scale_forward(rows.value(), alpha, y, call.context());
  const auto backward = [to = call.target(rows), alpha](BackwardPass<T>& pass, In<T, 2> dy) {
    pass.assign([&](Out<T, 2> dx) { scale_backward(dy, alpha, dx, pass.context()); }, to);
  };
  return like_rows_of(x.shape(), call.finish(y, backward));
}

/// add, subtract, multiply, divide and scale as operators.
///@{
template <Scalar T, int R, int Q>
auto operator+(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return add(a, b);
}
template <Scalar T, int R, int Q>
auto operator-(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return subtract(a, b);
}
template <Scalar T, int R, int Q>
auto operator*(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return multiply(a, b);
}
template <Scalar T, int R, int Q>
auto operator/(const Variable<T, R>& a, const Variable<T, Q>& b) {
  return divide(a, b);
}
template <Scalar T, int R>
Variable<T, R> operator*(const std::type_identity_t<T>& alpha, const Variable<T, R>& x) {
  return scale(x, alpha);
}
template <Scalar T, int R>
Variable<T, R> operator*(const Variable<T, R>& x, const std::type_identity_t<T>& alpha) {
  return scale(x, alpha);
}
/// By a number: times 1 / number.
template <Scalar T, int R>
Variable<T, R> operator/(const Variable<T, R>& x, const std::type_identity_t<T>& number) {
  return scale(x, T(1) / number);
}
template <Scalar T, int R>
Variable<T, R> operator-(const Variable<T, R>& x) {
  return scale(x, T(-1));
}
///@}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
