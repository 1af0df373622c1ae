// Cross-entropy wherever it runs and whatever it meets: the same bits, NaN and infinity, long sums,
// tallies.
#include <cmath>
#include <limits>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "ops/cross_entropy_case.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_cross_entropy_edges {

using namespace headwise_tests;

TEST_CASE(
    "cross_entropy has the same bits in place, strided, row by row, on any threads and of both "
    "token types",
    "[ops]") {
  for (Index V : {5, 65, 700}) {
    const Index N = 41;
    const auto logits = normal<float>(Shape{N, V}, 8, 2);
    const Targets targets = some_targets(N, V);
    const CrossEntropyOptions options{.reduction = Reduction::sum};
    const auto plain = run<float>(logits, targets, options);
    const auto same = [&](const Result<float>& other) {
      return other.loss == plain.loss && bitwise_equal(other.lse, plain.lse) &&
             bitwise_equal(other.d_logits, plain.d_logits);
    };
    for (Index threads : {2, 3, 16}) {
      ThreadPool pool(threads);
      CHECK(same(run<float, std::int64_t>(logits, targets, options, 1, {.executor = pool})));
    }
    Tensor1<std::int32_t> narrow(N);
    for (Index n = 0; n < N; ++n) narrow(n) = static_cast<std::int32_t>(targets(n));
    CHECK(same(run<float, std::int32_t>(logits, narrow, options)));

    Tensor2<float> in_place = logits, turned(Shape{V, N});
    cross_entropy_backward(1.0f, In<float, 2>(in_place), In<std::int64_t, 1>(targets), plain.lse,
                           options, in_place);
    CHECK(bitwise_equal(in_place, plain.d_logits));
    copy(logits, transpose(turned, 0, 1));
    const auto view = transpose(turned, 0, 1);
    CHECK(same(run<float, std::int64_t>(view, targets, options)));
    cross_entropy_backward(1.0f, In<float, 2>(view), In<std::int64_t, 1>(targets), plain.lse,
                           options, view);
    CHECK(bitwise_equal(In<float, 2>(view), In<float, 2>(plain.d_logits)));
    for (Index n : {0, 2, 40}) {
      const auto alone =
          run<float, std::int64_t>(slice(logits, 0, n, 1), slice(targets, 0, n, 1), options);
      CHECK(bitwise_equal(In<float, 1>(select(alone.d_logits, 0)),
                          In<float, 1>(select(plain.d_logits, n))));
      CHECK(alone.lse(0) == plain.lse(n));
    }
  }
}

TEST_CASE("cross_entropy shows NaN and overflow, and takes -infinity for a token that cannot be",
          "[ops]") {
  using Limits = std::numeric_limits<double>;
  const auto is_nan = [](double x) { return !(x == x); };
  for (Index V : {3, 65}) {
    for (Index place : {Index{0}, Index{1}, V - 1}) {
      CAPTURE(V, place);
      const Targets target(Shape{1}, {1});
      auto logits = normal<double>(Shape{Index{1}, V}, 9);
      for (double bad : {Limits::quiet_NaN(), Limits::infinity()}) {
        auto spoilt = logits;
        spoilt(0, place) = bad;
        const auto got = run<double>(spoilt, target);
        CHECK(is_nan(got.loss));
        bool shows = false;
        for (double d : got.d_logits) shows = shows || is_nan(d);
        CHECK(shows);
      }
      auto masked = logits;
      masked(0, place) = -Limits::infinity();
      const auto got = run<double>(masked, target);
      if (place == 1) {
        CHECK(got.loss == Limits::infinity());
        continue;
      }
      logits(0, place) = -1e5;
      const auto want = run<double>(logits, target);
      CHECK(got.loss == want.loss);
      CHECK(bitwise_equal(got.d_logits, want.d_logits));
      CHECK(got.d_logits(0, place) == 0);
    }
  }
}

TEST_CASE("the sum of a float's losses over many rows keeps its digits", "[ops]") {
  const Index N = 100000;
  Tensor2<float> logits(Shape{N, Index{2}});
  Targets targets(N);
  for (Index n = 0; n < N; ++n) logits(n, 0) = n % 2 == 0 ? 0.0f : 3.0f;
  const double of_each = (std::log(2.0) + std::log1p(std::exp(-3.0))) / 2;
  const double loss = static_cast<double>(run<float>(logits, targets).loss);
  CHECK(std::abs(loss - of_each) < 1.2e-7 * of_each);
}

TEST_CASE("cross_entropy tallies what a scalar that counts has counted", "[ops]") {
  auto logits = normal<Counting>(Shape{4, 21}, 10);
  const Targets targets(Shape{4}, {0, 3, 20, 7});
  for (Index n = 0; n < 4; ++n) logits(n, targets(n)) = Counting(-9);  // far from the greatest
  Tensor1<Counting> lse(4);
  FlopTally flops;
  auto counted = count_operations([&] {
    (void)cross_entropy_forward(In<Counting, 2>(logits), In<std::int64_t, 1>(targets), {}, lse,
                                {.flops = &flops});
  });
  CHECK(counted.total() == flops.useful);
  CHECK(flops.useful == 4 * (3 * 21 + 5));
  flops.reset();
  counted = count_operations([&] {
    cross_entropy_backward(Counting(1), In<Counting, 2>(logits), In<std::int64_t, 1>(targets), lse,
                           {.reduction = Reduction::sum}, logits, {.flops = &flops});
  });
  CHECK(counted.total() == flops.useful);
  CHECK(flops.useful == 4 * (4 * 21 + 2));
}

}  // namespace ops_cross_entropy_edges
