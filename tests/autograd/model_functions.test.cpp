// What a language model adds to the tape: each function's gradients against differences, its bits
// against the pair that it calls.
#include "headwise/autograd/functions.hpp"
#include "support/attention_outputs.hpp"
#include "support/taped.hpp"

namespace autograd_model_functions {

using namespace headwise_tests;

namespace {

const Tensor<std::int32_t, 1> tokens({7}, {4, 0, 4, 2, 1, 4, 0});

}  // namespace

TEST_CASE("gradients of a language model's functions are those of differences", "[autograd]") {
  using Number = long double;
  auto x = normal<Number>(Shape{2, 3, 5}, 1);
  for (const auto which :
       {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu}) {
    CAPTURE(static_cast<int>(which));
    CHECK(check_taped([&](const auto& v) { return activation(which, v); }, x).ok());
  }
  auto up = normal<Number>(x.shape(), 2);
  CHECK(check_taped([](const auto& a, const auto& b) { return swiglu(a, b); }, x, up).ok());
  const auto halves = [](const auto& v) {
    return swiglu(slice(v, 2, 0, 2), slice(v, 2, 2, 2));  // the fifth column has no gradient
  };
  CHECK(check_taped(halves, x).ok());

  auto gamma = normal<Number>(Shape{5}, 3);
  CHECK(check_taped([](const auto& v, const auto& g) { return rms_norm(v, g); }, x, gamma).ok());
  CHECK(check_taped([](const auto& v) { return rms_norm(v); }, x).ok());

  auto table = normal<Number>(Shape{5, 4}, 4);
  CHECK(check_taped([](const auto& t) { return embedding(In(tokens), t); }, table).ok());

  auto heads = normal<Number>(Shape{2, 3, 4, 6}, 5);
  const auto turned = [](const auto& v) { return rotary(v, {.width = 4, .offset = 3}); };
  CHECK(check_taped(turned, heads).ok());

  auto logits = normal<Number>(Shape{7, 5}, 6);
  const auto loss = [](const auto& v) { return cross_entropy(v, In(tokens), {.ignore_index = 0}); };
  CHECK(check_taped(loss, logits).ok());
}

TEST_CASE("a head that shares the table of its embedding adds to one gradient", "[autograd]") {
  using Number = long double;
  auto table = normal<Number>(Shape{5, 4}, 7);
  const auto tied = [](const auto& t) {
    return linear(embedding(In(tokens), t), transpose(t, 0, 1));
  };
  CHECK(check_taped(tied, table).ok());
  const auto by_name = [](const auto& t) { return tied_head(embedding(In(tokens), t), t); };
  CHECK(check_taped(by_name, table).ok());
  auto h = normal<Number>(Shape{2, 3, 4}, 8);
  CHECK(check_taped([](const auto& v, const auto& t) { return tied_head(v, t); }, h, table).ok());
}

TEMPLATE_TEST_CASE("a language model's functions have the bits of the pairs that they call",
                   "[autograd]", float, double) {
  using T = TestType;
  const auto x = normal<T>(Shape{7, 37}, 8), dy = normal<T>(Shape{7, 37}, 9);
  Tape<T> tape;
  const auto variable = tape.input(In<T, 2>(x));
  const auto y = gelu(variable);
  tape.backward(y, In<T, 2>(dy));
  Tensor<T, 2> expected(x.shape()), dx(x.shape());
  activation_forward(Activation::gelu, x, expected);
  activation_backward(Activation::gelu, dy, x, dx);
  CHECK(same_bits<T, 2>(y.value(), expected));
  CHECK(same_bits<T, 2>(tape.gradient(variable), dx));

  tape.clear();
  const auto logits = tape.input(In<T, 2>(x));
  const auto loss = cross_entropy(logits, In(tokens));
  tape.backward(loss);
  Tensor<T, 1> lse(Shape{7});
  const T value = cross_entropy_forward(In<T, 2>(x), In(tokens), {}, lse);
  cross_entropy_backward(T(1), In<T, 2>(x), In(tokens), lse, {}, dx);
  CHECK(loss.value()(0) == value);
  CHECK(same_bits<T, 2>(tape.gradient(logits), dx));
}

TEST_CASE("backward of rotary positions turns by the frequencies that forward was given",
          "[autograd]") {
  const auto x = normal<double>(Shape{1, 2, 4, 6}, 1), dy = normal<double>(x.shape(), 2);
  const std::vector<Index> starts = {0, 3, 4};
  const bool packed = GENERATE(false, true);
  const auto gradient = [&](bool overwritten) {
    Tensor1<double> frequencies({3}, {1, 0.5, 0.25});
    const RotaryOptions options{.frequencies = In<double, 1>(frequencies)};
    Tape<double> tape;
    const auto in = tape.input(In<double, 4>(x));
    if (packed) {
      const auto rows = reshape(transpose(in, 1, 2), Shape{4, 2, 6});
      const auto y = packed_rotary(rows, starts, options);
      if (overwritten) fill(frequencies, 9.0);
      tape.backward(y, In<double, 3>(dy.data(), Shape{4, 2, 6}));
    } else {
      const auto y = rotary(in, options);
      if (overwritten) fill(frequencies, 9.0);
      tape.backward(y, In<double, 4>(dy));
    }
    return Tensor4<double>(contiguous(tape.gradient(in)));
  };
  CHECK(bitwise_equal(gradient(true), gradient(false)));
}

}  // namespace autograd_model_functions
