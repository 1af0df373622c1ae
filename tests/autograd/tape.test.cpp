#include "headwise/autograd/tape.hpp"

#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/checkpoint.hpp"
#include "headwise/autograd/functions.hpp"
#include "support/taped.hpp"

namespace autograd_tape {

using namespace headwise_tests;

namespace {

using Real = long double;
template <int R>
using V = Variable<Real, R>;

/// An op whose backward counts its calls and remembers where it was asked to write.
struct Observed {
  int calls = 0;
  const double* written_to = nullptr;

  Variable<double, 2> operator()(const Variable<double, 2>& x) {
    return apply(
        x.shape(), [](In<double, 2> in, Out<double, 2> out) { copy(in, out); },
        [this](In<double, 2> dy, In<double, 2>, Out<double, 2> dx) {
          ++calls;
          written_to = dx.data();
          copy(dy, dx);
        },
        x);
  }
};

}  // namespace

TEST_CASE("values that are used several times get the sum of their gradients", "[autograd]") {
  auto x = normal<Real>(Shape{3, 4}, 1), w = normal<Real>(Shape{4, 4}, 2);
  CHECK(check_taped([](V<2> a) { return a + a; }, x));
  CHECK(check_taped([](V<2> a) { return a + a + a * a; }, x));
  const auto diamond = [](V<2> a, V<2> m) {
    const auto h = linear(a, m);
    const auto left = softmax(h), right = layer_norm(h);
    return left * right + h;
  };
  CHECK(check_taped(diamond, x, w));
  CHECK(check_taped([](V<2> a, V<2> m) { return linear(linear(a, m), m) + linear(a, m); }, x, w));
}

TEST_CASE("slices that overlap, lie side by side or leave gaps get the gradient of each element",
          "[autograd]") {
  auto x = normal<Real>(Shape{3, 8}, 1);
  const auto squared = [](const V<2>& a) { return a * a; };
  CHECK(check_taped([&](V<2> a) { return squared(slice(Real(1) * a, 1, 2, 3)); }, x));
  CHECK(check_taped(
      [&](V<2> a) {
        const auto h = Real(1) * a;
        return squared(slice(h, 1, 0, 4)) + squared(slice(h, 1, 4, 4));
      },
      x));
  CHECK(check_taped(
      [&](V<2> a) {
        const auto h = Real(1) * a;
        return squared(slice(h, 1, 0, 4)) + squared(slice(h, 1, 2, 4)) + slice(h, 1, 4, 4);
      },
      x));
  CHECK(check_taped(
      [&](V<2> a) {
        const auto h = Real(1) * a;
        return slice(h, 1, 0, 3) + squared(transpose(slice(transpose(h, 0, 1), 0, 5, 3), 0, 1)) +
               slice(h, 1, 5, 3) * slice(h, 1, 1, 3);
      },
      x));
  CHECK(check_taped([&](V<2> a) { return sum(select(Real(1) * a, 1)) + sum(a * a); }, x));
}

TEST_CASE("the first contribution to a gradient is written in place, without a copy or a zero",
          "[autograd]") {
  Tensor2<double> x({4, 6}), dy({4, 6});
  fill(dy, 1.0);
  Tape<double> tape;
  const auto input = tape.input(In<double, 2>(x));
  const auto h = scale(input, 1.0);
  tape.watch(h);
  Observed left, right, overlapping;
  const auto y = concatenate(1, left(slice(h, 1, 0, 3)), right(slice(h, 1, 3, 3)));
  const auto z = overlapping(slice(h, 1, 1, 3));  // behind both: swept before them
  tape.backward(sum(y) + sum(z));
  const In<double, 2> dh = tape.gradient(h);
  CHECK(overlapping.written_to == dh.data() + 1);
  CHECK(left.written_to != dh.data());  // a part is written already: to be added
  CHECK(right.written_to != dh.data() + 3);
  const double expected[] = {1, 2, 2, 2, 1, 1};
  for (Index m = 0; m < 6; ++m) CHECK(dh(3, m) == expected[m]);

  tape.clear();
  Observed first, second;
  const auto again = scale(tape.input(In<double, 2>(x)), 1.0);
  tape.watch(again);
  tape.backward(concatenate(1, first(slice(again, 1, 0, 3)), second(slice(again, 1, 3, 3))),
                In<double, 2>(dy));
  CHECK(first.written_to == tape.gradient(again).data());
  CHECK(second.written_to == tape.gradient(again).data() + 3);
}

TEST_CASE("what nothing flows to is not called, and its gradient is 0", "[autograd]") {
  Tensor2<double> x({2, 3}, {1, 2, 3, 4, 5, 6});
  Tape<double> tape;
  const auto used = tape.input(In<double, 2>(x)), unused = tape.input(In<double, 2>(x));
  Observed reached, idle;
  const auto aside = idle(unused);
  const auto y = reached(used);
  const auto later = idle(y);
  tape.watch(later);
  tape.backward(sum(y));
  CHECK(reached.calls == 1);
  CHECK(idle.calls == 1);  // the watched one: its gradient is 0
  for_each_index(x.shape(), [&](const Shape<2>& at) {
    CHECK(tape.gradient(used)(at) == 1);
    CHECK(tape.gradient(unused)(at) == 0);
    CHECK(tape.gradient(later)(at) == 0);
  });
  CHECK(aside.value()(1, 2) == 6);
}

TEST_CASE("the gradient of a sum is handed on to its terms, and stays where it is watched",
          "[autograd]") {
  const auto x = normal<double>(Shape{3, 4}, 1), dy = normal<double>(Shape{3, 4}, 2);
  for (const bool watched : {false, true}) {
    CAPTURE(watched);
    Tape<double> tape;
    const auto a = tape.input(x), b = tape.input(x);
    const auto left = scale(a, 2.0), right = scale(b, 3.0);
    const auto y = left + right;
    if (watched) tape.watch(y);
    tape.backward(y, dy);
    for_each_index(x.shape(), [&](const Shape<2>& at) {
      CHECK(tape.gradient(a)(at) == 2 * dy(at));
      CHECK(tape.gradient(b)(at) == 3 * dy(at));
    });
    if (!watched) continue;
    REQUIRE(tape.gradient(y).data() != nullptr);
    CHECK(bitwise_equal(tape.gradient(y), dy));
  }
}

TEST_CASE("gradients of parameters are added to what their tensors hold", "[autograd]") {
  const auto x = normal<double>(Shape{5, 4}, 1), w = normal<double>(Shape{4, 3}, 2);
  Tensor2<double> once(w.shape()), held(w.shape());
  Tape<double> tape;
  const auto step = [&](Tensor2<double>& dw) {
    const auto weights = tape.parameter(In<double, 2>(w), InOut<double, 2>(dw));
    tape.backward(sum(linear(tape.constant(In<double, 2>(x)), weights)));
    tape.clear();
  };
  step(once);
  fill(held, 10.0);
  step(held);
  step(held);
  for_each_index(w.shape(), [&](const Shape<2>& at) {
    CHECK(std::abs(held(at) - (10 + 2 * once(at))) <= 1e-13);
  });
}

TEST_CASE("a parameter may be made a variable twice, be sliced, transposed and tied",
          "[autograd]") {
  const auto w = normal<double>(Shape{4, 6}, 1), x = normal<double>(Shape{2, 4}, 2);
  Tensor2<double> dw(w.shape()), expected(w.shape());
  Tape<double> tape;
  const auto as_parameter = [&](Tensor2<double>& to) {
    return tape.parameter(In<double, 2>(w), InOut<double, 2>(to));
  };
  const auto y = linear(linear(tape.constant(In<double, 2>(x)), as_parameter(dw)),
                        transpose(as_parameter(dw), 0, 1));
  tape.backward(sum(y) + sum(slice(as_parameter(dw), 1, 2, 3)));
  CHECK(tape.size() > 0);
  tape.clear();
  CHECK(tape.size() == 0);
  const auto input = tape.input(In<double, 2>(w));
  const auto again = linear(linear(tape.constant(In<double, 2>(x)), input), transpose(input, 0, 1));
  tape.backward(sum(again) + sum(slice(input, 1, 2, 3)));
  CHECK(close_to(dw, tape.gradient(input), 1e-13));
}

TEST_CASE("nothing flows through detach, nor through what is computed while a NoGrad lives",
          "[autograd]") {
  const auto x = normal<double>(Shape{3, 4}, 1);
  Tape<double> tape;
  const auto input = tape.input(In<double, 2>(x));
  const auto y = multiply(input, detach(input));
  CHECK_FALSE(detach(input).has_gradient());
  Variable<double, 2> factor;
  {
    const NoGrad guard(tape);
    const Index before = tape.size();
    factor = softmax(scale(input, 3.0));
    CHECK_FALSE(factor.has_gradient());
    Tensor2<double> dx(x.shape());
    CHECK_FALSE(tape.parameter(x, dx).has_gradient());
    CHECK_FALSE(tape.input(x).has_gradient());
    CHECK(tape.size() == before);
  }
  tape.backward(sum(y) + sum(multiply(input, factor)));
  for_each_index(x.shape(), [&](const Shape<2>& at) {
    CHECK(std::abs(tape.gradient(input)(at) - (x(at) + factor.value()(at))) <= 1e-15);
  });
}

TEST_CASE("backward takes the gradient of any variable, also of a view", "[autograd]") {
  const auto x = normal<double>(Shape{3, 4}, 1), dy = normal<double>(Shape{4, 2}, 2);
  Tape<double> tape;
  const auto input = tape.input(In<double, 2>(x));
  const auto y = transpose(slice(scale(input, 2.0), 0, 1, 2), 0, 1);
  tape.backward(y, In<double, 2>(dy));
  for_each_index(x.shape(), [&](const Shape<2>& at) {
    CHECK(tape.gradient(input)(at) == (at[0] == 0 ? 0 : 2 * dy(at[1], at[0] - 1)));
  });
}

TEST_CASE("a chain of 100000 nodes is recorded, swept and let go without recursion", "[autograd]") {
  Tensor1<double> x({1}, {1.0});
  Tape<double> tape;
  const auto input = tape.input(In<double, 1>(x));
  auto y = input;
  for (int n = 0; n < 100000; ++n) y = scale(y, n % 2 == 0 ? 2.0 : 0.5);
  tape.backward(y);
  CHECK(tape.gradient(input)(0) == 1.0);
  tape.clear();
  auto z = tape.input(In<double, 1>(x));
  for (int n = 0; n < 100000; ++n) z = scale(z, 1.0);
}

TEST_CASE("a value that a node keeps, written to before backward, is found out", "[autograd]") {
  const auto x = normal<double>(Shape{2, 2}, 1);
  Tape<double> tape;
  const auto input = tape.input(In<double, 2>(x));
  const auto h = scale(input, 2.0);
  const auto y = multiply(h, h);
  tape.mutable_value(y)(0, 0) = 5;  // nobody reads it in backward
  CHECK(y.value()(0, 0) == 5);
  tape.mutable_value(h)(1, 1) = 5;
  const auto message = error_of([&] { tape.backward(sum(y)); });
  REQUIRE(message);
  CHECK(*message ==
        "Tape::backward: a value that multiply kept has been written to since, expected it as it "
        "was (copy it before)");
  tape.clear();
  const auto fresh = tape.input(In<double, 2>(x));
  const auto product = multiply(fresh, fresh);
  tape.mark_written(fresh);
  CHECK(error_of([&] { tape.backward(sum(product)); }));
}

TEST_CASE("a forward that throws leaves the tape as it was", "[autograd]") {
  const auto x = normal<double>(Shape{2, 3}, 1);
  Tape<double> tape;
  const auto input = tape.input(In<double, 2>(x));
  const auto y = scale(input, 2.0);
  const Index before = tape.size();
  const Tensor2<double> wrong({4, 4});
  CHECK(error_of([&] { linear(y, tape.constant(In<double, 2>(wrong))); }));
  CHECK(error_of([&] {
    apply(
        y.shape(), [](In<double, 2>, Out<double, 2>) { raise<ArgumentError>("forward: no"); },
        [](In<double, 2>, In<double, 2>, Out<double, 2>) {}, y);
  }));
  CHECK(
      error_of([&] { checkpoint([](const Variable<double, 2>& a) { return matmul(a, a); }, y); }));
  CHECK(tape.size() == before);
  tape.backward(sum(y));
  CHECK(tape.gradient(input)(1, 2) == 2);
}

TEST_CASE("after a backward that throws, a cleared tape begins anew", "[autograd]") {
  const auto x = normal<double>(Shape{2, 3}, 1);
  Tape<double> tape;
  const auto failing = [&](const Variable<double, 2>& a) {
    return apply(
        a.shape(), [](In<double, 2> in, Out<double, 2> out) { copy(in, out); },
        [](In<double, 2>, In<double, 2>, Out<double, 2>) { raise<ArgumentError>("backward: no"); },
        a);
  };
  const auto input = tape.input(In<double, 2>(x));
  const auto loss = sum(checkpoint(failing, input));
  CHECK(error_of([&] { tape.backward(loss); }) == "backward: no");
  CHECK(error_of([&] { tape.backward(loss); }));
  CHECK(error_of([&] { tape.gradient(input); }));
  tape.clear();
  const auto fresh = tape.input(In<double, 2>(x));
  tape.backward(sum(fresh));
  CHECK(tape.gradient(fresh)(0, 0) == 1);
}

}  // namespace autograd_tape
