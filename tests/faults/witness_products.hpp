// Linear layers against sums in long double, weights of every instruction set against exp2, and
// the same bits on any number of threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "headwise/runtime/thread_pool.hpp"
#include "witness_attention.hpp"

namespace {

/// start [M, N] + a [M, K] b [K, N]
template <class A, class B>
Numbers add_product(Numbers start, Index M, Index N, Index K, const A& a, const B& b) {
  for (Index m = 0; m < M; ++m) {
    for (Index n = 0; n < N; ++n) {
      for (Index k = 0; k < K; ++k) at(start, m * N + n) += a(m, k) * b(k, n);
    }
  }
  return start;
}

/// y = x w + b and its gradients: x [N, K], w [K, O].
void check_linear(Index N, Index K, Index O, const Context& context) {
  const auto x = random_tensor<double>(Shape{N, K}), w = random_tensor<double>(Shape{K, O});
  const auto b = random_tensor<double>(Shape{O});
  const auto dy = random_tensor<double>(Shape{N, O});
  Tensor<double, 2> y(Shape{N, O}), dx(Shape{N, K}), dw = random_tensor<double>(Shape{K, O});
  for (Tensor<double, 2>* t : {&y, &dx}) fill(Out<double, 2>(*t), 777.0);
  const Numbers X = numbers_of(x), W = numbers_of(w), DY = numbers_of(dy);
  const Numbers old_dw = numbers_of(dw);
  Numbers bias(static_cast<std::size_t>(N * O));
  for (Index n = 0; n < N * O; ++n) at(bias, n) = static_cast<Real>(b(n % O));
  linear_forward(In<double, 2>(x), w, b, y, context);
  linear_backward(In<double, 2>(dy), x, w, dx, dw, {}, context);

  const std::string where = " of linear " + x.shape().format() + " " + w.shape().format();
  // A sum of K products of at most 1 is rounded K times.
  const auto tolerance = [](Index terms) {
    return static_cast<Real>(terms + 4) * static_cast<Real>(std::numeric_limits<double>::epsilon());
  };
  const auto in = [](const Numbers& numbers, Index row, Index column) {
    return [&numbers, row, column](Index i, Index j) { return at(numbers, i * row + j * column); };
  };
  check_close(numbers_of(y), add_product(bias, N, O, K, in(X, K, 1), in(W, O, 1)), tolerance(K),
              "y" + where);
  check_close(numbers_of(dx), add_product(Numbers(X.size()), N, K, O, in(DY, O, 1), in(W, 1, O)),
              tolerance(O), "dx" + where);
  check_close(numbers_of(dw), add_product(old_dw, K, O, N, in(X, 1, K), in(DY, O, 1)), tolerance(N),
              "dw" + where);
}

/// An operand of which neither rows nor columns are dense gives the bits of its dense copy.
void check_apart() {
  constexpr Index N = 7, K = 11, O = 37;
  const auto x = random_tensor<double>(Shape{N, K}), store = random_tensor<double>(Shape{K, 3 * O});
  const In<double, 2> w(store.data(), Shape{K, O}, Shape{3 * O, Index{3}});
  Tensor<double, 2> y(Shape{N, O}), dense(Shape{N, O});
  linear_forward(In<double, 2>(x), w, {}, y);
  linear_forward(In<double, 2>(x), contiguous(w), {}, dense);
  check_close(numbers_of(y), numbers_of(dense), 0, "y of linear with w of columns apart");
}

/// Sizes beyond the blocks of each extent (192 rows, 768 columns, an inner length of 384), and cut
/// for three workers.
void products() {
  for (const Index N : {1, 2, 3, 4, 5, 6, 7, 11}) check_linear(N, 5, 9, {});
  check_linear(400, 9, 7, {});
  check_linear(7, 400, 33, {});
  check_linear(5, 9, 805, {});
  check_linear(9, 205, 131, {});   // dw: x^T is read 96 rows at a time, the last tile of one row
  check_linear(20, 200, 131, {});  // dw: x^T is copied, of the last 96 rows there are eight
  check_apart();
  ThreadPool three(3);
  check_linear(300, 70, 61, {.executor = three});  // of a million multiply-adds, to be shared
  check_linear(101, 40, 421, {.executor = three});
}

/// 2^x in every instruction set, to some units in the last place, down to where it ends.
void weights() {
  using Limits = std::numeric_limits<double>;
  std::vector<double> x = {0.0, -Limits::infinity(), Limits::quiet_NaN()};
  const double lowest = Limits::min_exponent - 1;
  for (double value = -0.001; value > lowest; value *= 1.01) x.push_back(value);
  for (double value = lowest; value > lowest - 70; value -= 0.7) x.push_back(value);
  for (const auto set : {InstructionSet::generic, InstructionSet::avx2, InstructionSet::avx512}) {
    if (!is_supported(set)) continue;
    std::vector<double> y(x.size(), 777.0);
    kernels::vector_functions_of<double>(set).weights_of(x.data(), static_cast<Index>(x.size()),
                                                         y.data());
    for (std::size_t n = 0; n < x.size(); ++n) {
      const Real expected = std::exp2(static_cast<Real>(x[n])), got = static_cast<Real>(y[n]);
      const Real allowed = std::max(4 * expected * static_cast<Real>(Limits::epsilon()),
                                    x[n] < lowest ? static_cast<Real>(Limits::min()) : Real{0});
      const bool right = std::isnan(x[n]) ? std::isnan(got) : std::abs(got - expected) <= allowed;
      if (right && (x[n] != 0 || got == 1)) continue;
      check(false, "weight of " + std::to_string(x[n]) + " with " + std::string(name_of(set)) +
                       " is " + std::to_string(got));
      break;
    }
  }
}

/// Fails the program if it is not gone in time: threads that wait for each other never end.
class Deadline {
 public:
  explicit Deadline(std::chrono::seconds limit)
      : watch_([this, limit] {
          std::unique_lock lock(mutex_);
          if (gone_.wait_for(lock, limit, [this] { return done_; })) return;
          std::printf("FAILED: did not end in %d s\n", static_cast<int>(limit.count()));
          std::fflush(stdout);
          std::_Exit(1);
        }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    gone_.notify_one();
    watch_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable gone_;
  bool done_ = false;
  std::thread watch_;
};

/// Five blocks of keys add to dq, in the same order on four threads as on one.
void threads() {
  const Deadline deadline(std::chrono::seconds(30));
  const AttentionSizes n{1, 2, 1, 260, 1100, 4, 4};
  const auto q = random_tensor<double>(Shape{n.B, n.H, n.L, n.d});
  const auto k = random_tensor<double>(Shape{n.B, n.G, n.S, n.d});
  const auto v = random_tensor<double>(Shape{n.B, n.G, n.S, n.dv});
  const auto d_o = random_tensor<double>(Shape{n.B, n.H, n.L, n.dv});
  const auto same = [](const Tensor4<double>& a, const Tensor4<double>& b) {
    return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * 8) == 0;
  };
  ThreadPool four(4);
  for (const AttentionOptions<double>& options :
       {AttentionOptions<double>{}, AttentionOptions<double>{.mask = Mask::window(600)}}) {
    const Results one = run(Path::flash, {q, k, v}, d_o, options);
    bool right = true;
    for (int repeat = 0; repeat < 20 && right; ++repeat) {
      const Results y = run(Path::flash, {q, k, v}, d_o, options, {.executor = four});
      right = same(y.o, one.o) && same(y.dq, one.dq) && same(y.dk, one.dk) && same(y.dv, one.dv);
    }
    check(right, "four threads give other bits than one");
  }
}

}  // namespace
