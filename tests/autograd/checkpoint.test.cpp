#include "headwise/autograd/checkpoint.hpp"

#include "headwise/autograd/functions.hpp"
#include "support/taped.hpp"

namespace autograd_checkpoint {

using namespace headwise_tests;

namespace {

/// Two layers with dropout; the gradients of x and w, as bits would be compared.
struct Result {
  Tensor2<double> y, dx, dw;
};

template <class Through>
Result run(Through&& through) {
  const auto x = normal<double>(Shape{6, 8}, 1), w = normal<double>(Shape{8, 8}, 2);
  Result result{Tensor2<double>(x.shape()), Tensor2<double>(x.shape()), Tensor2<double>(w.shape())};
  Tape<double> tape;
  const auto input = tape.input(In<double, 2>(x));
  const auto weights = tape.parameter(In<double, 2>(w), InOut<double, 2>(result.dw));
  const auto layer = [&, weights](const Variable<double, 2>& a) {
    const auto h = dropout(softmax(linear(a, weights)), {.rate = 0.3, .seed = 5});
    return a + linear(h, weights);
  };
  const auto y = through(layer, through(layer, scale(input, 0.5)));
  tape.backward(mean(y * y));
  copy(y.value(), result.y);
  copy(tape.gradient(input), result.dx);
  return result;
}

}  // namespace

TEST_CASE("checkpoint changes no bit of values and gradients, parameters and dropout included",
          "[autograd]") {
  const Result plain = run([](auto f, const auto& x) { return f(x); });
  const Result kept = run([](auto f, const auto& x) { return checkpoint(f, x); });
  const Result nested = run([](auto f, const auto& x) {
    return checkpoint([f](const auto& a) { return checkpoint(f, a); }, x);
  });
  for (const Result* other : {&kept, &nested}) {
    CHECK(bitwise_equal(other->y, plain.y));
    CHECK(bitwise_equal(other->dx, plain.dx));
    CHECK(bitwise_equal(other->dw, plain.dw));
  }
}

TEST_CASE("checkpoint has the slopes of what it runs, whatever that returns", "[autograd]") {
  using Real = long double;
  using V = Variable<Real, 2>;
  auto x = normal<Real>(Shape{3, 4}, 1), y = normal<Real>(Shape{3, 4}, 2);
  CHECK(
      check_taped([](V a, V b) { return checkpoint([](V s, V t) { return s * t; }, a, b); }, x, y));
  CHECK(check_taped([](V a) { return checkpoint([](V s) { return s; }, a); }, x));
  CHECK(check_taped([](V a) { return checkpoint([](V s) { return transpose(s, 0, 1); }, a); }, x));
  CHECK(
      check_taped([](V a) { return checkpoint([](V s) { return slice(s * s, 1, 1, 2); }, a); }, x));
  CHECK(check_taped([](V a, V b) { return checkpoint([b](V s) { return s * b; }, a) + a * b; }, x,
                    y));
}

TEST_CASE("checkpoint of what no gradient flows through only computes it", "[autograd]") {
  const auto x = normal<double>(Shape{3, 4}, 1);
  Tape<double> tape;
  const NoGrad guard(tape);
  const auto y = checkpoint([](const Variable<double, 2>& a) { return a * a; },
                            tape.constant(In<double, 2>(x)));
  CHECK_FALSE(y.has_gradient());
  CHECK(tape.size() == 0);
  CHECK(y.value()(2, 3) == x(2, 3) * x(2, 3));
}

}  // namespace autograd_checkpoint
