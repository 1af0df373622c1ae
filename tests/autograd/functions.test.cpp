// Every function of the tape: its gradients against finite differences in long double, and against
// the direct call of its pair to the bit.
#include "headwise/autograd/functions.hpp"

#include "headwise/autograd/apply.hpp"
#include "support/taped.hpp"

namespace autograd_functions {

using namespace headwise_tests;

namespace {

using Real = long double;
template <int R>
using V = Variable<Real, R>;

}  // namespace

TEST_CASE("taped sums, differences, products and quotients have the slopes of their values",
          "[autograd]") {
  auto x = normal<Real>(Shape{2, 3, 4}, 1), y = normal<Real>(Shape{2, 3, 4}, 2, 4);
  auto row = normal<Real>(Shape{4}, 3, 4);
  auto matrix = normal<Real>(Shape{3, 4}, 4, 4);
  CHECK(check_taped([](V<3> a, V<3> b) { return a + b; }, x, y));
  CHECK(check_taped([](V<3> a, V<3> b) { return a - b; }, x, y));
  CHECK(check_taped([](V<3> a, V<3> b) { return a * b; }, x, y));
  CHECK(check_taped([](V<3> a, V<3> b) { return a / b; }, x, y));
  CHECK(check_taped([](V<3> a, V<1> b) { return a + b; }, x, row));
  CHECK(check_taped([](V<3> a, V<1> b) { return b - a; }, x, row));
  CHECK(check_taped([](V<3> a, V<2> b) { return a * b; }, x, matrix));
  CHECK(check_taped([](V<3> a, V<2> b) { return b * a; }, x, matrix));
  CHECK(check_taped([](V<3> a, V<1> b) { return a / b; }, x, row));
  CHECK(check_taped([](V<3> a, V<3> b) { return a / b; }, x, y));
  CHECK(check_taped([](V<1> a, V<3> b) { return a / b; }, row, y));
  CHECK(check_taped([](V<3> a) { return Real(-0.3L) * a; }, x));
  CHECK(check_taped([](V<3> a) { return -(a * Real(0.7L)); }, x));
  CHECK(check_taped([](V<3> a) { return a * a + a; }, x));
}

TEST_CASE("taped linear, layer_norm, softmax and dropout have the slopes of their values",
          "[autograd]") {
  auto x = normal<Real>(Shape{2, 3, 4}, 1);
  auto w = normal<Real>(Shape{4, 5}, 2);
  auto b = normal<Real>(Shape{5}, 3), gamma = normal<Real>(Shape{4}, 4),
       beta = normal<Real>(Shape{4}, 5);
  CHECK(check_taped([](V<3> a, V<2> m, V<1> c) { return linear(a, m, c); }, x, w, b));
  CHECK(check_taped([](V<3> a, V<2> m) { return linear(a, m); }, x, w));
  CHECK(check_taped([](V<2> m) { return linear(transpose(m, 0, 1), m); }, w));
  CHECK(check_taped([](V<3> a, V<1> g, V<1> c) { return layer_norm(a, g, c, 1e-2L); }, x, gamma,
                    beta));
  CHECK(check_taped([](V<3> a, V<1> c) { return layer_norm(a, {}, c, 1e-2L); }, x, beta));
  CHECK(check_taped([](V<3> a, V<1> g) { return layer_norm(a, g, g, 1e-2L); }, x, gamma));
  CHECK(check_taped([](V<3> a) { return softmax(a); }, x));
  CHECK(check_taped([](V<3> a) { return dropout(a, {.rate = 0.4, .seed = 3}); }, x));
  CHECK(check_taped([](V<3> a) { return softmax(transpose(a, 0, 1)); }, x));
  CHECK(check_taped([](V<3> a) { return layer_norm(transpose(a, 1, 2)); }, x));
}

TEST_CASE("taped products, sums, means and joins have the slopes of their values", "[autograd]") {
  auto a = normal<Real>(Shape{2, 3, 4}, 1), b = normal<Real>(Shape{2, 4, 5}, 2);
  CHECK(check_taped([](V<3> x, V<3> y) { return matmul(x, y); }, a, b));
  CHECK(check_taped([](V<3> x) { return matmul(x, transpose(x, 1, 2)); }, a));
  CHECK(check_taped([](V<3> x, V<3> y) { return matmul(select(x, 1), select(y, 0)); }, a, b));
  auto heads = normal<Real>(Shape{2, 2, 3, 4}, 3);
  CHECK(check_taped([](V<4> x) { return matmul(x, transpose(x, 2, 3)); }, heads));
  CHECK(check_taped([](V<3> x) { return sum(x * x); }, a));
  CHECK(check_taped([](V<3> x) { return mean(x * x); }, a));
  CHECK(check_taped([](V<3> x) { return sum(transpose(x, 0, 2)); }, a));
  auto c = normal<Real>(Shape{2, 1, 4}, 4);
  CHECK(check_taped([](V<3> x, V<3> y) { return concatenate(1, x, y, x); }, a, c));
  CHECK(check_taped([](V<3> x) { return concatenate(0, slice(x, 0, 1, 1), x); }, a));
}

TEST_CASE("taped attention has the slopes of its values, on both paths", "[autograd]") {
  auto q = normal<Real>(Shape{2, 4, 3, 2}, 1);
  auto k = normal<Real>(Shape{2, 2, 5, 2}, 2), v = normal<Real>(Shape{2, 2, 5, 3}, 3);
  for (const Path path : {Path::flash, Path::materialized}) {
    CAPTURE(path == Path::flash);
    const auto with = [&](const V<4>& a, const V<4>& b, const V<4>& c) {
      AttentionOptions<Real> options;
      options.mask = {causal};
      options.dropout = {.rate = 0.25, .seed = 5};
      return attention(a, b, c, options, path);
    };
    CHECK(check_taped(with, q, k, v));
    auto x = normal<Real>(Shape{2, 2, 4, 3}, 4);
    CHECK(check_taped([&](const V<4>& a) { return with(a, a, a); }, x));
  }
}

TEST_CASE("taped views have the slopes of their values", "[autograd]") {
  auto x = normal<Real>(Shape{2, 3, 8}, 1);
  CHECK(check_taped([](V<3> a) { return Real(2) * slice(a, 2, 1, 3); }, x));
  CHECK(check_taped([](V<3> a) { return Real(2) * select(a, 1); }, x));
  CHECK(check_taped([](V<3> a) { return Real(2) * split_heads(a, 4); }, x));
  CHECK(check_taped([](V<3> a) { return merge_heads(Real(2) * split_heads(a, 4)); }, x));
  CHECK(check_taped([](V<3> a) { return reshape(transpose(a, 0, 2), Shape{6, 8}); }, x));
  CHECK(check_taped([](V<3> a) { return contiguous(transpose(a, 0, 1)); }, x));
  CHECK(check_taped([](V<3> a) { return reshape(a, Shape{48}); }, x));
}

TEST_CASE("a function of a view gives the bits that it gives of a dense copy", "[autograd]") {
  const auto whole = normal<float>(Shape{40, 6, 8}, 1);  // so that wrong strides stay inside
  const In<float, 3> x = slice(whole, 0, 0, 5);
  const In<float, 3> rows_reversed(whole.data() + 288, Shape{5, 6, 6}, Shape{48, -8, 1});
  const In<float, 3> all_reversed(whole.data() + 960, Shape{5, 6, 6}, Shape{-48, -8, -1});
  const auto w = normal<float>(Shape{6, 3}, 2);
  Tape<float> tape;
  const auto check = [&](const auto& function) {
    for (int view = 0; view < 5; ++view) {
      CAPTURE(view);
      const auto strided = view == 0   ? transpose(tape.constant(x), 1, 2)
                           : view == 1 ? transpose(slice(tape.constant(x), 2, 1, 6), 0, 1)
                           : view == 2 ? slice(tape.constant(x), 2, 2, 6)
                           : view == 3 ? tape.constant(rows_reversed)
                                       : tape.constant(all_reversed);
      const Tensor3<float> dense = contiguous(strided.value());
      CHECK(bitwise_equal(function(strided).value(), function(tape.constant(dense)).value()));
    }
  };
  check([](const auto& a) { return softmax(a); });
  check([](const auto& a) { return layer_norm(a); });
  check([](const auto& a) { return a * a + a; });
  check([](const auto& a) { return scale(a, 3.0f); });
  check([](const auto& a) { return dropout(a, {.rate = 0.5, .seed = 2}); });
  check([&](const auto& a) { return linear(a, tape.constant(w)); });
  check([](const auto& a) { return sum(a); });
  check([](const auto& a) { return reshape(a, Shape{a.size() / 4, 4}); });
  check([](const auto& a) { return concatenate(2, a, a); });
}

TEST_CASE("a taped call gives the bits of its pair, forward and backward", "[autograd]") {
  const auto x = normal<float>(Shape{9, 33}, 1);
  const auto w = normal<float>(Shape{33, 17}, 2);
  const auto b = normal<float>(Shape{17}, 3), gamma = normal<float>(Shape{17}, 4),
             beta = normal<float>(Shape{17}, 5);
  const auto dy = normal<float>(Shape{9, 17}, 6);
  const Dropout drop{.rate = 0.3, .seed = 8};

  Tensor2<float> dw(w.shape());
  Tensor1<float> db(b.shape()), dgamma(b.shape()), dbeta(b.shape());
  Tape<float> tape;
  const auto input = tape.input(In<float, 2>(x));
  auto h = linear(input, tape.parameter(In<float, 2>(w), InOut<float, 2>(dw)),
                  tape.parameter(In<float, 1>(b), InOut<float, 1>(db)));
  h = layer_norm(h, tape.parameter(In<float, 1>(gamma), InOut<float, 1>(dgamma)),
                 tape.parameter(In<float, 1>(beta), InOut<float, 1>(dbeta)));
  h = dropout(softmax(h), drop);
  tape.backward(h, In<float, 2>(dy));

  Tensor2<float> y1({9, 17}), y2({9, 17}), p({9, 17}), y({9, 17});
  Tensor1<float> mean(Shape{9}), rstd(Shape{9});
  linear_forward(x, w, b, y1);
  layer_norm_forward(y1, {gamma, beta}, 1e-5f, y2, {mean, rstd});
  softmax_forward(y2, p);
  dropout_forward(p, drop, y);
  CHECK(bitwise_equal(h.value(), In<float, 2>(y)));

  Tensor2<float> d({9, 17}), dx(x.shape()), dw_direct(w.shape());
  Tensor1<float> db_direct(Shape{17}), dgamma_direct(Shape{17}), dbeta_direct(Shape{17});
  dropout_backward(dy, drop, d);
  softmax_backward(d, p, d);
  layer_norm_backward(d, y1, gamma, {mean, rstd}, d, {dgamma_direct, dbeta_direct});
  linear_backward(d, x, w, dx, dw_direct, db_direct);
  CHECK(bitwise_equal(tape.gradient(input), In<float, 2>(dx)));
  CHECK(bitwise_equal(dw, dw_direct));
  CHECK(bitwise_equal(db, db_direct));
  CHECK(bitwise_equal(dgamma, dgamma_direct));
  CHECK(bitwise_equal(dbeta, dbeta_direct));
}

TEST_CASE("a user's pair becomes an operation of the tape in one call", "[autograd]") {
  auto x = normal<Real>(Shape{3, 4}, 1), y = normal<Real>(Shape{3, 4}, 2);
  const auto square = [](const V<2>& a) {
    return apply(
        a.shape(),
        [](In<Real, 2> in, Out<Real, 2> out) {
          for_each_index(in.shape(), [&](const Shape<2>& at) { out(at) = in(at)*in(at); });
        },
        [](In<Real, 2> dy, In<Real, 2> in, Out<Real, 2> dx) {
          for_each_index(in.shape(), [&](const Shape<2>& at) { dx(at) = 2 * in(at)*dy(at); });
        },
        a);
  };
  CHECK(check_taped([&](V<2> a) { return square(a); }, x));
  CHECK(check_taped([&](V<2> a) { return square(a) + square(square(a)); }, x));
  // Two inputs, what forward returned, the context, and a gradient that nobody asks for.
  const auto exponential = [](const V<2>& a, const V<2>& b) {
    return apply_with_output(
        a.shape(),
        [](In<Real, 2> s, In<Real, 2> t, Out<Real, 2> out, const Context& context) {
          CHECK(context.memory != nullptr);
          for_each_index(s.shape(), [&](const Shape<2>& at) { out(at) = std::exp(s(at)) * t(at); });
        },
        [](In<Real, 2> dy, In<Real, 2> s, In<Real, 2>, In<Real, 2> out, Out<Real, 2> ds,
           Out<Real, 2> dt) {
          for_each_index(s.shape(), [&](const Shape<2>& at) {
            ds(at) = dy(at) * out(at);
            dt(at) = dy(at) * std::exp(s(at));
          });
        },
        a, b);
  };
  CHECK(check_taped([&](V<2> a, V<2> b) { return exponential(a, b); }, x, y));
  CHECK(
      check_taped([&](V<2> a) { return exponential(a, detach(a)) - exponential(a, a); }, x).ok() ==
      false);  // differences see what detach hides
  CHECK(check_taped([&](V<2> a) { return exponential(a, a); }, x));
}

TEST_CASE("an op of matrices goes over the last axis of any variable", "[autograd]") {
  auto x = normal<Real>(Shape{2, 3, 4}, 1);
  const auto third = [](const auto& a) {
    return apply_to_rows(
        {"third"}, a,
        [](In<Real, 2> in, Out<Real, 2> y, const Context& context) {
          scale_forward(in, 1 / Real(3), y, context);
        },
        [](In<Real, 2> dy, In<Real, 2>, Out<Real, 2> dx, const Context& context) {
          scale_backward(dy, 1 / Real(3), dx, context);
        });
  };
  CHECK(check_taped([&](V<3> a) { return third(a * a); }, x));
  CHECK(check_taped([&](V<3> a) { return third(transpose(a, 0, 1)); }, x));
}

TEST_CASE("functions of tensors without elements have gradients without elements", "[autograd]") {
  Tensor2<double> x({0, 4}), w({4, 3}), dw({4, 3});
  Tape<double> tape;
  const auto input = tape.input(In<double, 2>(x));
  const auto y =
      softmax(layer_norm(linear(input, tape.parameter(In<double, 2>(w), InOut<double, 2>(dw)))));
  tape.backward(sum(y * y + y));
  CHECK(tape.gradient(input).shape() == Shape{0, 4});
  for (const double element : dw) CHECK(element == 0);
}

TEST_CASE("a variable is divided by a number, and so is its gradient", "[autograd]") {
  const Tensor2<double> x({2, 2}, {1, -3, 0.5, 8});
  Tape<double> tape;
  const auto in = tape.input(In<double, 2>(x));
  const auto quotient = in / 4.0;
  tape.backward(sum(quotient));
  for_each_index(x.shape(), [&](const Shape<2>& at) {
    CHECK(quotient.value()(at) == x(at) / 4);
    CHECK(tape.gradient(in)(at) == 0.25);
  });
}

TEST_CASE("two parameters of one op may have one gradient, or gradients that overlap",
          "[autograd]") {
  const auto x = normal<double>(Shape{3, 4}, 1), weights = normal<double>(Shape{3, 4}, 2);
  const auto gamma = normal<double>(Shape{6}, 3);
  const Index apart = GENERATE(0, 1, 2);
  const auto loss_of = [&](Tape<double>& tape, const Variable<double, 1>& g,
                           const Variable<double, 1>& b) {
    return sum(layer_norm(tape.constant(In<double, 2>(x)), g, b) *
               tape.constant(In<double, 2>(weights)));
  };
  const In<double, 1> first = slice(gamma, 0, 0, 4), second = slice(gamma, 0, apart, 4);
  Tensor1<double> to(6), d_first(4), d_second(4);
  Tape<double> tape;
  tape.backward(loss_of(tape, tape.parameter(first, InOut<double, 1>(slice(to, 0, 0, 4))),
                        tape.parameter(second, InOut<double, 1>(slice(to, 0, apart, 4)))));
  Tape<double> alone;
  alone.backward(loss_of(alone, alone.parameter(first, InOut<double, 1>(d_first)),
                         alone.parameter(second, InOut<double, 1>(d_second))));
  for (Index n = 0; n < 6; ++n) {
    const double sum_of_both =
        (n < 4 ? d_first(n) : 0) + (n >= apart && n < apart + 4 ? d_second(n - apart) : 0);
    CHECK(std::abs(to(n) - sum_of_both) <= 1e-13);
  }
}

}  // namespace autograd_functions
