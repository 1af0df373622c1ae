// Elementwise operations and the tape: a small network with every function of it, views that
// overlap, a checkpoint and an op of one's own. Part of the tour (tour.hpp).
#pragma once

#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/checkpoint.hpp"
#include "headwise/autograd/functions.hpp"
#include "headwise/autograd/tape.hpp"
#include "tour/attention.hpp"

namespace headwise_tests {
namespace {

template <class T>
void visit_elementwise(const std::string& type, const Context& context,
                       std::vector<Named>& results) {
  auto a = noise<T>(Shape{5, 70}, 41), b = noise<T>(Shape{1, 70}, 42);
  auto dy = noise<T>(Shape{5, 70}, 43);
  a(1, 3) = from_bits<T>(nan_bits);
  dy(1, 3) = T(0);  // so it does not reach the gradients
  a(2, 4) = from_bits<T>(infinity_bits);
  Tensor2<T> y(a.shape()), da(a.shape()), db(b.shape());
  const auto keep_all = [&](const std::string& name) {
    keep(results, type + name + ", y", y);
    keep(results, type + name + ", da", da);
    keep(results, type + name + ", db", db);
  };
  add_forward(a, b, y, context);
  add_backward(dy, da, db, context);
  keep_all("add");
  subtract_forward(a, b, y, context);
  subtract_backward(dy, da, db, context);
  keep_all("subtract");
  multiply_forward(a, b, y, context);
  multiply_backward(dy, a, b, da, db, context);
  keep_all("multiply");
  divide_forward(a, b, y, context);
  divide_backward(dy, b, y, da, db, context);
  keep_all("divide");
}

template <class T>
void visit_tape(const std::string& type, Path path, const Context& context,
                std::vector<Named>& results) {
  const auto x = noise<T>(Shape{2, 6, 8}, 44), dy = noise<T>(Shape{2, 6, 8}, 45);
  const auto w = noise<T>(Shape{8, 24}, 46);
  const auto gamma = noise<T>(Shape{8}, 47);
  Tensor2<T> dw(w.shape());
  Tensor1<T> dgamma(gamma.shape());
  Tape<T> tape(context);
  const auto input = tape.input(x);
  const auto block = [&](const Variable<T, 3>& of) {
    const auto projection =
        linear(layer_norm(of, tape.parameter(gamma, dgamma)), tape.parameter(w, dw));
    const auto heads = [&](Index at) { return split_heads(slice(projection, 2, at, 8), 2); };
    const auto o = merge_heads(attention(heads(0), heads(8), heads(16), {.mask = {causal}}, path));
    return of + dropout(o, {.rate = 0.25, .seed = 3}) * softmax(slice(projection, 2, 4, 8));
  };
  const auto once = apply(
      Shape{2, 6, 8}, [](In<T, 3> in, Out<T, 3> out) { copy(in, out); },
      [](In<T, 3> d, In<T, 3>, Out<T, 3> din) { copy(d, din); }, block(input));
  const auto y = checkpoint(block, once);
  const auto square = matmul(y, transpose(y, 1, 2));
  tape.backward(y / (y * y + tape.constant(gamma) * tape.constant(gamma)) +
                    T(0.1) * concatenate(2, square, slice(square, 2, 1, 2)),
                In<T, 3>(dy));
  keep(results, type + "tape, y", contiguous(y.value()));
  keep(results, type + "tape, dx", contiguous(tape.gradient(input)));
  keep(results, type + "tape, dw", dw);
  keep(results, type + "tape, dgamma", dgamma);
  keep(results, type + "tape, mean", contiguous(mean(detach(y)).value()));
}

}  // namespace
}  // namespace headwise_tests
