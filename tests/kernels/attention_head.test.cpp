// The readable path on a scalar that counts: what the tallies call useful is what was computed. Its
// vectors have width 1, so that no column is computed for padding.
#include <cstdint>

#include "headwise/ops/attention.hpp"
#include "headwise/tensor/philox.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace kernels_attention_head {

using namespace headwise;
using headwise_tests::count_operations;
using headwise_tests::Counting;
using headwise_tests::Operations;

namespace {

Tensor4<Counting> normal(const Shape<4>& shape, std::uint64_t seed) {
  Tensor4<Counting> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = Counting(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

struct Counts {
  Operations forward, backward;
  FlopTally forward_tally, backward_tally;
};

void count_attention(Index B, Index H, Index L, Index S, Index d, Index dv, Counts& counts) {
  const auto q = normal(Shape{B, H, L, d}, 1), k = normal(Shape{B, H, S, d}, 2);
  const auto v = normal(Shape{B, H, S, dv}, 3), d_o = normal(Shape{B, H, L, dv}, 4);
  // The scale is given: 1 / sqrt(d) would count as two operations a head.
  const AttentionOptions<Counting> options{.scale = Counting(0.5)};
  Tensor4<Counting> weights(Shape{B, H, L, S}), o(d_o.shape()), dq(q.shape()), dk(k.shape()),
      d_v(v.shape());
  counts.forward = count_operations(
      [&] { attention_forward(q, k, v, options, weights, o, {.flops = &counts.forward_tally}); });
  counts.backward = count_operations([&] {
    attention_backward(d_o, {q, k, v}, weights, options, {dq, dk, d_v},
                       {.flops = &counts.backward_tally});
  });
}

}  // namespace

TEST_CASE("attention without a mask does B H L S (2 (d + dv) + 5) operations", "[kernels]") {
  for (Index S : {1, 6, 7, 256}) {
    for (Index d : {2, 4}) {
      const Index B = 2, H = 3, L = 5, dv = 6;
      CAPTURE(S, d);
      Counts counts;
      count_attention(B, H, L, S, d, dv, counts);
      const std::int64_t pairs = B * H * L * S;
      CHECK(counts.forward_tally.useful == pairs * (2 * (d + dv) + 5));
      // Beyond 64 keys a chain of p v joins those before it.
      const std::int64_t joins = B * H * L * dv * ((S - 1) / 64);
      CHECK(counts.forward.total() == counts.forward_tally.useful + joins);
      CHECK(counts.forward.divisions == pairs);
      CHECK(counts.forward.functions == pairs);
    }
  }
}

TEST_CASE("the attention backward without a mask does B H L S (4 (d + dv) + 5) operations",
          "[kernels]") {
  for (Index S : {1, 6, 7, 256}) {
    for (Index d : {2, 4}) {
      const Index B = 2, H = 3, L = 5, dv = 6;
      CAPTURE(S, d);
      Counts counts;
      count_attention(B, H, L, S, d, dv, counts);
      CHECK(counts.backward_tally.useful == B * H * L * S * (4 * (d + dv) + 5));
      const std::int64_t joins = B * H * L * d * ((S - 1) / 64);  // of dq = ds k
      CHECK(counts.backward.total() == counts.backward_tally.useful + joins);
      CHECK(counts.backward.divisions == 0);
      CHECK(counts.backward.functions == 0);
    }
  }
}

TEST_CASE("attention executes what its tally says it executes", "[kernels]") {
  for (Index S : {1, 7, 8}) {
    Counts counts;
    count_attention(1, 2, 5, S, 3, 5, counts);
    CAPTURE(S);
    CHECK(counts.forward.total() == counts.forward_tally.executed);
    CHECK(counts.backward.total() == counts.backward_tally.executed);
  }
}

}  // namespace kernels_attention_head
