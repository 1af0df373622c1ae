#include "headwise/autograd/profile.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/checkpoint.hpp"
#include "headwise/autograd/functions.hpp"
#include "support/taped.hpp"

namespace autograd_profile {

using namespace headwise_tests;

namespace {

constexpr Index N = 6, D = 8, V = 5;

/// calls as "name forward recomputed backward".
std::vector<std::string> calls_of(const TapeProfile& profile) {
  std::vector<std::string> lines;
  for (const OpProfile& op : profile.ops()) {
    lines.push_back(op.name + " " + std::to_string(op.forward.calls) + " " +
                    std::to_string(op.recomputed.calls) + " " + std::to_string(op.backward.calls));
  }
  return lines;
}
using Lines = std::vector<std::string>;

struct Layers {
  Tensor2<double> x = normal<double>(Shape{N, D}, 1), w = normal<double>(Shape{D, D}, 2);
  Tensor2<double> head = normal<double>(Shape{D, V}, 3);
  Tensor1<double> gamma = normal<double>(Shape{D}, 4);
  Tensor2<double> dw{w.shape()}, d_head{head.shape()};
  Tensor1<double> d_gamma{gamma.shape()};
  Tensor<std::int32_t, 1> targets{Shape{N}};

  /// Each function's input has a gradient and no other use.
  Variable<double, 1> loss(Tape<double>& tape) {
    const auto h = linear(tape.input(In<double, 2>(x)), tape.parameter(In<double, 2>(w), dw));
    const auto n = gelu(layer_norm(h, tape.parameter(In<double, 1>(gamma), d_gamma)));
    const auto q = split_heads(reshape(n, Shape{Index{1}, N, D}), 2);
    const auto o = reshape(merge_heads(attention(q, q, q)), Shape{N, D});
    return cross_entropy(linear(o, tape.parameter(In<double, 2>(head), d_head)),
                         In<std::int32_t, 1>(targets));
  }
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

/// x itself, slowly in both directions.
Variable<double, 2> slowly(const Variable<double, 2>& x) {
  return apply(
      x.shape(),
      [](In<double, 2> from, Out<double, 2> y) {
        copy(from, y);
        wait();
      },
      [](In<double, 2> dy, In<double, 2>, Out<double, 2> dx) {
        copy(dy, dx);
        wait();
      },
      x);
}

}  // namespace

TEST_CASE("a profile counts each call once, forward and backward, but no view and no leaf",
          "[autograd]") {
  TapeProfile profile;
  Tape<double> tape({}, &profile);
  Layers with;
  for (int step = 0; step < 3; ++step) {
    tape.backward(with.loss(tape));
    tape.clear();
  }
  CHECK(calls_of(profile) == Lines{"linear 6 0 6", "layer_norm 3 0 3", "activation 3 0 3",
                                   "attention 3 0 3", "cross_entropy 3 0 3"});
  CHECK(profile.total().forward.calls == 18);
  CHECK(profile.of("softmax").total().calls == 0);
  profile.reset();
  CHECK(profile.total().total().calls == 0);
  CHECK(profile.total().total().flops == 0);
  tape.backward(with.loss(tape));
  CHECK(profile.of("linear").backward.calls == 2);
}

TEST_CASE("FLOPs of a profile are those of the same operations called directly", "[autograd]") {
  TapeProfile profile;
  Layers with;
  {
    Tape<double> tape({}, &profile);
    tape.backward(with.loss(tape));
  }
  FlopTally tally;
  const Context context{.flops = &tally};
  const auto of = [&](auto&& call) {
    tally.reset();
    call();
    return tally.useful.load();
  };
  Tensor2<double> y({N, D}), dx({N, D}), logits({N, V});
  Tensor1<double> mean(Shape{N}), rstd(Shape{N});
  const In<double, 2> x = with.x;
  CHECK(profile.of("linear").forward.flops == of([&] {
          linear_forward<double>(x, with.w, {}, y, context);
          linear_forward<double>(x, with.head, {}, logits, context);
        }));
  CHECK(profile.of("linear").backward.flops == of([&] {
          linear_backward<double>(y, x, with.w, dx, with.dw, {}, context);
          linear_backward<double>(logits, x, with.head, dx, with.d_head, {}, context);
        }));
  CHECK(profile.of("linear").backward.flops == 4 * N * D * (D + V));
  CHECK(profile.of("layer_norm").forward.flops == of([&] {
          layer_norm_forward<double>(x, {with.gamma, {}}, 1e-5, y, {mean, rstd}, context);
        }));
  CHECK(profile.of("layer_norm").backward.flops == of([&] {
          layer_norm_backward<double>(y, x, with.gamma, {mean, rstd}, dx, {with.d_gamma, {}},
                                      context);
        }));
  CHECK(profile.of("activation").forward.flops ==
        of([&] { activation_forward<double>(Activation::gelu, x, y, context); }));
  CHECK(profile.of("activation").backward.flops ==
        of([&] { activation_backward<double>(Activation::gelu, y, x, dx, context); }));
  const auto heads = [](auto& t) {
    return split_heads(In<double, 3>(t.data(), Shape{Index{1}, N, D}), 2);
  };
  Tensor4<double> o({1, 2, N, D / 2}), lse({1, 2, N, 2});
  const auto q = heads(with.x);
  CHECK(profile.of("attention").forward.flops ==
        of([&] { flash_attention_forward<double>(q, q, q, {}, o, lse, context); }));
  // q, k and v are one variable: two of its three gradients are added to the first.
  CHECK(profile.of("attention").backward.flops ==
        2 * N * D + of([&] {
          Tensor4<double> dq(o.shape()), dk(o.shape()), dv(o.shape());
          flash_attention_backward<double>(o, {q, q, q}, o, lse, {}, {dq, dk, dv}, context);
        }));
  CHECK(profile.of("cross_entropy").forward.flops == N * (3 * V + 5));
  CHECK(profile.of("cross_entropy").backward.flops == N * (4 * V + 2));
}

TEST_CASE("a context's own tally is used, and has counted what the profile has", "[autograd]") {
  TapeProfile own, other;
  FlopTally tally;
  Layers with;
  Tape<double> plain({}, &own), counting({.flops = &tally}, &other);
  plain.backward(with.loss(plain));
  tally.add(1000, 1000);  // before
  counting.backward(with.loss(counting));
  CHECK(other.total().total().flops == tally.useful - 1000);
  for (const OpProfile& op : own.ops()) {
    CHECK(op.forward.flops == other.of(op.name).forward.flops);
    CHECK(op.backward.flops == other.of(op.name).backward.flops);
  }
}

TEST_CASE("the adding of gradients counts for the function whose backward gives the later part",
          "[autograd]") {
  TapeProfile profile;
  Tape<double> tape({}, &profile);
  Layers with;
  const auto h = scale(tape.input(In<double, 2>(with.x)), 0.5);
  tape.backward(sum(h + gelu(h)));
  CHECK(profile.of("activation").backward.flops == 10 * N * D + N * D);
  CHECK(profile.of("add").backward.flops == 0);
}

TEST_CASE("seconds of a profile are those of its functions, and no moment counts twice",
          "[autograd]") {
  TapeProfile profile;
  Tape<double> tape({}, &profile);
  Layers with;
  const auto begin = std::chrono::steady_clock::now();
  const auto x = tape.input(In<double, 2>(with.x));
  const auto y = checkpoint([](const auto& a) { return slowly(a); }, slowly(x));
  wait();  // nobody's
  tape.backward(sum(y));
  const double wall = seconds_since(begin);
  const OpProfile slow = profile.of("apply");
  CHECK(slow.forward.seconds >= 0.006);
  CHECK(slow.recomputed.seconds >= 0.003);
  CHECK(slow.backward.seconds >= 0.006);
  CHECK(profile.total().total().seconds <= wall - 0.003);
  for (const OpProfile& op : profile.ops()) {
    CHECK(op.forward.seconds > 0);
    CHECK(op.backward.seconds > 0);
  }
}

TEST_CASE("what a checkpoint runs again is counted apart, under the names of what it runs",
          "[autograd]") {
  TapeProfile profile;
  Tape<double> tape({}, &profile);
  Layers with;
  const auto layer = [](const auto& a) { return softmax(scale(a, 2.0)); };
  const auto twice = [&](const auto& a) { return checkpoint(layer, checkpoint(layer, a)); };
  tape.backward(sum(checkpoint(twice, scale(tape.input(In<double, 2>(with.x)), 0.5))));
  // The inner checkpoints run again as values with the outer one, and once more for their own
  // backward.
  CHECK(calls_of(profile) ==
        Lines{"scale 3 4 3", "checkpoint 3 2 3", "softmax 2 4 2", "sum 1 0 1"});
  const OpProfile softmax_cost = profile.of("softmax");
  CHECK(softmax_cost.recomputed.flops == 2 * softmax_cost.forward.flops);
  CHECK(profile.of("checkpoint").total().flops == 0);
}

TEST_CASE("under a NoGrad values count as forward", "[autograd]") {
  TapeProfile profile;
  Tape<double> tape({}, &profile);
  Layers with;
  const NoGrad<double> values_only(tape);
  (void)with.loss(tape);
  CHECK(calls_of(profile) == Lines{"linear 2 0 0", "layer_norm 1 0 0", "activation 1 0 0",
                                   "attention 1 0 0", "cross_entropy 1 0 0"});
  CHECK(profile.of("linear").forward.flops == 2 * N * D * (D + V));
}

TEST_CASE("a call that throws is no call, and what follows is counted as without it",
          "[autograd]") {
  TapeProfile profile;
  Tape<double> tape({}, &profile);
  Layers with;
  const auto x = scale(tape.input(In<double, 2>(with.x)), 0.5);
  const auto fails = [&](bool forward) {
    return apply(
        x.shape(),
        [=](In<double, 2> a, Out<double, 2> y) {
          if (forward) throw std::runtime_error("no");
          copy(a, y);
        },
        [](In<double, 2>, In<double, 2>, Out<double, 2>) { throw std::runtime_error("no"); }, x);
  };
  CHECK_THROWS_AS(fails(true), std::runtime_error);
  CHECK_THROWS_AS(linear(x, tape.constant(In<double, 2>(with.x))), ShapeError);
  CHECK_THROWS_AS(tape.backward(sum(fails(false))), std::runtime_error);
  CHECK(calls_of(profile) == Lines{"scale 1 0 0", "apply 1 0 0", "linear 0 0 0", "sum 1 0 1"});
  tape.clear();
  profile.reset();
  tape.backward(with.loss(tape));
  CHECK(profile.of("linear").forward.flops == 2 * N * D * (D + V));
  CHECK(profile.of("apply").total().seconds == 0);
  CHECK(profile.of("scale").total().seconds == 0);
}

TEST_CASE("calls that end in the order in which they began are counted apart", "[autograd]") {
  TapeProfile profile;
  Tape<double> tape({}, &profile);
  Layers with;
  const auto x = tape.input(In<double, 2>(with.x));
  const auto backward = [](BackwardPass<double>&, In<double, 2>) {};
  {
    Recording<double> first({"first"}, x);
    const auto y = first.output(x.shape());
    first.context().count_flops(1, 1);
    Recording<double> second({"second"}, x);
    const auto z = second.output(x.shape());
    second.context().count_flops(10, 10);
    (void)first.finish(In<double, 2>(y), backward);
    second.context().count_flops(100, 100);
    (void)second.finish(In<double, 2>(z), backward);
    tape.context().count_flops(1000, 1000);  // nobody's
  }
  CHECK(profile.of("first").forward.flops == 1);
  CHECK(profile.of("second").forward.flops == 110);
  CHECK(calls_of(profile) == Lines{"first 1 0 0", "second 1 0 0"});
}

TEST_CASE("a step whose functions are known to the profile takes no memory for it", "[autograd]") {
  TapeProfile profile;
  Layers with;
  const auto step = [&] {
    Tape<double> tape({}, &profile);
    tape.backward(with.loss(tape));
  };
  step();
  const auto* const place = profile.ops().data();
  const auto capacity = profile.ops().capacity();
  for (int n = 0; n < 20; ++n) step();
  CHECK(profile.ops().data() == place);
  CHECK(profile.ops().capacity() == capacity);
  CHECK(profile.of("linear").forward.calls == 42);
}

}  // namespace autograd_profile
