// Keys that lie transposed give the bits that they give as rows: few queries and many, whatever is
// done to scores.
#include "headwise/ops/bf16_products.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/converted.hpp"
#include "support/transposed_copy.hpp"

namespace ops_transposed_keys {

using namespace headwise_tests;

namespace {

template <class T>
struct Outputs {
  Tensor4<T> o, lse;
  std::int64_t useful_flops = 0, executed_flops = 0;
};
template <class T, class Keys, class U>
Outputs<T> forward(const Tensor4<T>& q, const Keys& k, const Tensor<U, 4>& v,
                   const AttentionOptions<T>& options, Context context = {}) {
  Outputs<T> y{Tensor4<T>(Shape{q.extent(0), q.extent(1), q.extent(2), v.extent(3)}),
               Tensor4<T>(Shape{q.extent(0), q.extent(1), q.extent(2), Index{2}})};
  FlopTally flops;
  context.flops = &flops;
  flash_attention_forward(q, k, v, options, y.o, y.lse, context);
  y.useful_flops = flops.useful, y.executed_flops = flops.executed;
  return y;
}
template <class T>
void check_same(const Outputs<T>& a, const Outputs<T>& b) {
  CHECK(same_bits(a.o, b.o));
  CHECK(same_bits(a.lse, b.lse));
  CHECK(a.useful_flops == b.useful_flops);
}

/// Of keys and values that are stored as U.
template <class T, class U = T>
void check_lengths_and_options() {
  ThreadPool threads(3);
  Numbers numbers(21);
  for (const Index L : {1, 3, 4, 5, 70}) {
    for (const Index S : {1, 5, 127, 128, 129, 300, 720}) {
      const Index B = 2, G = 2, H = L == 1 ? 10 : 4, d = S % 2 == 0 ? 64 : 13, dv = 24;
      const auto q = numbers.tensor<T>(Shape{B, H, L, d});
      const auto k = converted<U>(numbers.tensor<T>(Shape{B, G, S, d}));
      const auto v = converted<U>(numbers.tensor<T>(Shape{B, G, S, dv}));
      const TransposedCopy<U> blocks(k);
      const auto bias = numbers.tensor<T>(Shape{Index{1}, H, L, S});
      const std::vector<Index> lengths{S, S / 2};
      std::vector<AttentionOptions<T>> all(7);
      all[1].mask = {causal};
      all[2].mask = {causal, Mask::window(150).keeping_first(3)};
      all[3].dropout = {.rate = 0.3, .seed = 5};
      all[4].score.softcap = T(2);
      all[5].mask = {Mask::bias(bias)};
      all[6].mask = {Mask::key_lengths(lengths)};
      for (std::size_t n = 0; n < all.size(); ++n) {
        INFO("L " << L << ", S " << S << ", d " << d << ", options " << n);
        const auto expected = forward(q, k, v, all[n]);
        const auto y = forward(q, blocks.keys, v, all[n]);
        check_same(y, expected);
        const auto shared = forward(q, blocks.keys, v, all[n], {.executor = threads});
        check_same(shared, expected);
        CHECK(shared.executed_flops == y.executed_flops);
      }
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("keys that lie transposed give the bits of rows", "[ops]", float, double) {
  check_lengths_and_options<TestType>();
}

TEMPLATE_TEST_CASE("keys of 16 bits that lie transposed give the bits of rows", "[stored]",
                   BFloat16, Float16) {
  check_lengths_and_options<float, TestType>();
}

TEMPLATE_TEST_CASE("queries of 16 bits find keys that lie transposed as those of rows", "[stored]",
                   BFloat16, Float16) {
  Numbers numbers(25);
  for (const Index L : {1, 6, 70}) {
    const auto of = [&](Index heads, Index length) {
      return converted<TestType>(numbers.tensor<float>(Shape{Index{2}, heads, length, Index{20}}));
    };
    const auto q = of(4, L), k = of(2, 150), v = of(2, 150);
    Tensor<TestType, 4> o(q.shape()), expected(q.shape());
    const AttentionOptions<float> options{.mask = {causal}};
    flash_attention_forward<TestType>(q, k, v, options, expected, {});
    flash_attention_forward<TestType>(q, TransposedCopy<TestType>(k).keys, v, options, o, {});
    CHECK(same_bits(o, expected));
  }
}

TEST_CASE("keys of a type without vectors that lie transposed give the bits of rows", "[ops]") {
  Numbers numbers(22);
  const auto q = numbers.tensor<long double>(Shape{1, 2, 3, 5});
  const auto k = numbers.tensor<long double>(Shape{1, 1, 150, 5}), v = k;
  const auto y = forward(q, TransposedCopy<long double>(k).keys, v, {.mask = causal});
  const auto expected = forward(q, k, v, {.mask = causal});
  CHECK(std::equal(y.o.begin(), y.o.end(), expected.o.begin()));
  CHECK(std::equal(y.lse.begin(), y.lse.end(), expected.lse.begin()));
}

TEST_CASE("products of bf16 find keys that lie transposed as those of rows", "[ops]") {
  Numbers numbers(23);
  for (const Index L : {1, 6, 70}) {
    const auto q = numbers.tensor<float>(Shape{Index{1}, Index{2}, L, Index{40}});
    const auto k = numbers.tensor<float>(Shape{1, 2, 200, 40}), v = k;
    const Context context{.products = bf16_products()};
    check_same(forward(q, TransposedCopy<float>(k).keys, v, {.mask = causal}, context),
               forward(q, k, v, {.mask = causal}, context));
  }
}

TEST_CASE("transposed keys are told by their indices and copied as rows", "[ops]") {
  Numbers numbers(24);
  const auto k = numbers.tensor<float>(Shape{2, 3, 130, 4});
  const TransposedCopy<float> blocks(k);
  CHECK(blocks.keys.shape() == k.shape());
  CHECK(blocks.keys(1, 2, 129, 3) == k(1, 2, 129, 3));
  CHECK(same_bits(blocks.keys.rows(), k));
  const TransposedKeys<float> none{{nullptr, Shape{1, 2, 0, 4, 128}}, 0};
  CHECK(none.size() == 0);
  const auto q = numbers.tensor<float>(Shape{1, 2, 3, 4});
  const auto y = forward(q, none, Tensor4<float>(Shape{1, 2, 0, 5}), {});
  for (const float x : y.o) CHECK(x == 0.0f);
}

}  // namespace ops_transposed_keys
