// Keys and values of 16 bits give the bits that their numbers give as floats: few queries and many,
// whatever is done to scores.
#include <cmath>

#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/converted.hpp"

namespace ops_stored_attention {

using namespace headwise_tests;

namespace {

struct Outputs {
  Tensor4<float> o, lse;
};
template <class U>
Outputs forward(const Tensor4<float>& q, const In<U, 4>& k, const In<U, 4>& v,
                const AttentionOptions<float>& options, const Context& context = {}) {
  Outputs y{Tensor4<float>(Shape{q.extent(0), q.extent(1), q.extent(2), v.extent(3)}),
            Tensor4<float>(Shape{q.extent(0), q.extent(1), q.extent(2), Index{2}})};
  flash_attention_forward(q, k, v, options, y.o, y.lse, context);
  return y;
}
void check_same(const Outputs& a, const Outputs& b) {
  CHECK(same_bits(a.o, b.o));
  CHECK(same_bits(a.lse, b.lse));
}

}  // namespace

TEMPLATE_TEST_CASE("attention over keys and values of 16 bits has the bits of their numbers",
                   "[stored]", BFloat16, Float16) {
  ThreadPool threads(3);
  const Context shared{.executor = threads};
  Numbers numbers(16);
  for (const Index L : {1, 2, 3, 4, 5, 37, 200}) {
    for (const Index d : {64, 16, 13, 1}) {
      const Index B = 2, G = 2, H = 4, S = 300, dv = d == 64 ? 72 : d;
      const auto q = numbers.tensor<float>(Shape{B, H, L, d});
      const auto k = converted<TestType>(numbers.tensor<float>(Shape{B, G, S, d}));
      const auto v = converted<TestType>(numbers.tensor<float>(Shape{B, G, S, dv}));
      const auto wide_k = converted<float>(k), wide_v = converted<float>(v);
      std::vector<AttentionOptions<float>> all(5);
      all[1].mask = {causal};
      all[2].mask = {causal, Mask::window(150).keeping_first(3)};
      all[3].dropout = {.rate = 0.3, .seed = 5};
      all[4].score.softcap = 2.0f;
      for (std::size_t n = 0; n < all.size(); ++n) {
        INFO("L " << L << ", d " << d << ", options " << n);
        const auto expected = forward<float>(q, wide_k, wide_v, all[n]);
        check_same(forward<TestType>(q, k, v, all[n]), expected);
        check_same(forward<TestType>(q, k, v, all[n], shared), expected);
      }
    }
  }
}

TEMPLATE_TEST_CASE("every number of 16 bits becomes the float that it is", "[stored]", BFloat16,
                   Float16) {
  constexpr Index all = 1 << 16;
  for (const Index L : {1, 5}) {
    const Index S = L;  // query i sees key i alone
    Tensor4<float> q(Shape{Index{1}, Index{1}, L, Index{1}});
    Tensor<TestType, 4> k(Shape{Index{1}, Index{1}, S, Index{1}});
    Tensor<TestType, 4> v(Shape{Index{1}, Index{1}, S, all});
    for (Index s = 0; s < S; ++s) {
      for (Index c = 0; c < all; ++c) v(0, 0, s, c).bits = static_cast<std::uint16_t>(c);
    }
    const auto y = forward<TestType>(q, k, v, {.mask = {causal, Mask::window(1)}});
    for (Index i = 0; i < L; ++i) {
      Index wrong = 0;
      for (Index c = 0; c < all; ++c) {
        const float x = convert_float<float>(v(0, 0, i, c)), o = y.o(0, 0, i, c);
        if (std::isnan(x) ? !std::isnan(o) : x != o) ++wrong;
      }
      INFO("L " << L << ", row " << i);
      CHECK(wrong == 0);
    }
  }
}

TEMPLATE_TEST_CASE("what lies behind keys of 16 bits, or is hidden, is never read", "[stored]",
                   BFloat16, Float16) {
  Numbers numbers(17);
  const TestType nan = convert_float<TestType>(std::numeric_limits<float>::quiet_NaN());
  const Index S = 200, held = 140, d = 32;
  for (const Index L : {1, 4, 9}) {
    const auto q = numbers.tensor<float>(Shape{Index{1}, Index{2}, L, d});
    auto k = converted<TestType>(numbers.tensor<float>(Shape{Index{1}, Index{2}, S, d}));
    auto v = converted<TestType>(numbers.tensor<float>(Shape{Index{1}, Index{2}, S, d}));
    const std::vector<Index> lengths{held - 20};
    const AttentionOptions<float> options{.mask = {Mask::key_lengths(lengths)}};
    const auto seen = [&](const Tensor<TestType, 4>& x) {
      return In<TestType, 4>(slice(In<TestType, 4>(x), 2, 0, held));
    };
    const auto expected = forward<TestType>(q, seen(k), seen(v), options);
    for (Index g = 0; g < 2; ++g) {
      for (Index s = held - 20; s < S; ++s) {
        for (Index c = 0; c < d; ++c) k(0, g, s, c) = v(0, g, s, c) = nan;
      }
    }
    INFO("L " << L);
    check_same(forward<TestType>(q, seen(k), seen(v), options), expected);
  }
}

TEMPLATE_TEST_CASE("a NaN of 16 bits reaches those who see it and nobody else", "[stored]",
                   BFloat16, Float16) {
  Numbers numbers(18);
  const Index S = 150, d = 16;
  for (const Index L : {1, 4, 9, 140}) {
    const auto q = numbers.tensor<float>(Shape{Index{1}, Index{1}, L, d});
    const auto k = converted<TestType>(numbers.tensor<float>(Shape{Index{1}, Index{1}, S, d}));
    auto v = converted<TestType>(numbers.tensor<float>(Shape{Index{1}, Index{1}, S, d}));
    const AttentionOptions<float> options{.mask = {causal}};
    const auto expected = forward<TestType>(q, k, v, options);
    v(0, 0, S - 1, 3) = convert_float<TestType>(std::numeric_limits<float>::quiet_NaN());
    const auto y = forward<TestType>(q, k, v, options);
    INFO("L " << L);
    CHECK(std::isnan(y.o(0, 0, L - 1, 3)));
    const auto before = [&](const Tensor4<float>& o) {
      return In<float, 4>(slice(In<float, 4>(o), 2, 0, L - 1));
    };
    CHECK(same_bits(before(y.o), before(expected.o)));
  }
}

}  // namespace ops_stored_attention
