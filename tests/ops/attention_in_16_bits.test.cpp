// Attention whose tensors are all kept in 16 bits: forward and backward are what floats give of the
// numbers that are stored, rounded to the nearest, to the bit.
#include <limits>

#include "headwise/ops/bf16_products.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/ops/packed_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/score/mask.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/bf16_units.hpp"
#include "support/catch.hpp"
#include "support/converted.hpp"

namespace ops_attention_in_16_bits {

using namespace headwise_tests;

namespace {

template <class U, int R>
bool same_numbers(const Tensor<U, R>& x, const Tensor<float, R>& expected) {
  const auto rounded = converted<U>(expected);
  return x.shape() == expected.shape() && std::equal(x.data(), x.data() + x.size(), rounded.data());
}

/// What a case reads and has: T is a type of 16 bits, or float.
template <class T, int R>
struct Tensors {
  Tensor<T, R> q, k, v, d_o, o, dq, dk, dv;
  Tensor<float, R> lse;
  Tensor<float, 1> d_scale = Tensor<float, 1>(Shape{1});
};

/// Where x lies: dense, with heads between rows, or with rows along columns.
template <class T, class View>
struct Laid {
  Tensor<T, 4> storage;
  View view;
};
template <class T, class View>
Laid<T, View> laid(const Tensor<T, 4>& x, int how) {
  const Shape<4> s = x.shape();
  if (how == 0) {
    Laid<T, View> y{x, {}};
    y.view = View(y.storage.data(), s, y.storage.strides());
    return y;
  }
  const int a = how == 1 ? 1 : 2, b = how == 1 ? 2 : 3;
  Shape<4> turned = s;
  std::swap(turned[a], turned[b]);
  Laid<T, View> y{Tensor<T, 4>(turned), {}};
  Shape<4> steps = y.storage.strides();
  std::swap(steps[a], steps[b]);
  y.view = View(y.storage.data(), s, steps);
  for_each_index(s, [&](const Shape<4>& at) {
    const Index n = at[0] * steps[0] + at[1] * steps[1] + at[2] * steps[2] + at[3] * steps[3];
    y.storage.data()[n] = x(at);
  });
  return y;
}
template <class T, class View>
Tensor<T, 4> dense(const Laid<T, View>& x) {
  Tensor<T, 4> y(x.view.shape());
  for_each_index(y.shape(), [&](const Shape<4>& at) { y(at) = x.view(at); });
  return y;
}

template <class U>
Tensors<U, 4> random_tensors(const Sizes& s, std::uint64_t seed) {
  Numbers numbers(seed);
  Tensors<U, 4> x;
  x.q = converted<U>(numbers.tensor<float>(Shape{s.B, s.H, s.L, s.d}));
  x.k = converted<U>(numbers.tensor<float>(Shape{s.B, s.G, s.S, s.d}));
  x.v = converted<U>(numbers.tensor<float>(Shape{s.B, s.G, s.S, s.dv}));
  x.d_o = converted<U>(numbers.tensor<float>(Shape{s.B, s.H, s.L, s.dv}));
  return x;
}

/// Forward and backward; `how` they lie.
template <class T>
void compute(Tensors<T, 4>& x, const AttentionOptions<float>& options, const Context& context,
             int how = 0) {
  using Read = In<T, 4>;
  using Written = Out<T, 4>;
  Shape<4> o_shape = x.q.shape(), lse_shape = o_shape;
  o_shape[3] = x.v.extent(3);
  lse_shape[3] = 2;
  const auto q = laid<T, Read>(x.q, how), k = laid<T, Read>(x.k, how), v = laid<T, Read>(x.v, how);
  const auto d_o = laid<T, Read>(x.d_o, how);
  const auto o = laid<T, Written>(Tensor<T, 4>(o_shape), how);
  const auto dq = laid<T, Written>(Tensor<T, 4>(x.q.shape()), how);
  const auto dk = laid<T, Written>(Tensor<T, 4>(x.k.shape()), how);
  const auto dv = laid<T, Written>(Tensor<T, 4>(x.v.shape()), how);
  x.lse = Tensor<float, 4>(lse_shape);
  flash_attention_forward(q.view, k.view, v.view, options, o.view, x.lse, context);
  if (x.o.absent()) x.o = dense(o);
  const auto kept = laid<T, Read>(x.o, how);
  AttentionGradients<float, T> gradients{dq.view, dk.view, dv.view};
  gradients.score.d_scale = x.d_scale;
  flash_attention_backward(d_o.view, {q.view, k.view, v.view}, kept.view, x.lse, options, gradients,
                           context);
  x.dq = dense(dq);
  x.dk = dense(dk);
  x.dv = dense(dv);
}

template <class U, int R>
void check_rounded(const Tensors<U, R>& x, const Tensors<float, R>& expected) {
  CHECK(bitwise_equal(x.lse, expected.lse));
  CHECK(same_numbers(x.dq, expected.dq));
  CHECK(same_numbers(x.dk, expected.dk));
  CHECK(same_numbers(x.dv, expected.dv));
  CHECK(bitwise_equal(x.d_scale, expected.d_scale));
}

/// The same by floats of the numbers that are stored. Backward gets o as it was stored.
template <class U>
Tensors<float, 4> by_floats(const Tensors<U, 4>& x, const AttentionOptions<float>& options,
                            const Context& context) {
  Tensors<float, 4> wide;
  wide.q = converted<float>(x.q);
  wide.k = converted<float>(x.k);
  wide.v = converted<float>(x.v);
  wide.d_o = converted<float>(x.d_o);
  Shape<4> o_shape = x.q.shape(), lse_shape = o_shape;
  o_shape[3] = x.v.extent(3);
  lse_shape[3] = 2;
  Tensor<float, 4> o(o_shape), lse(lse_shape);
  flash_attention_forward<float>(wide.q, wide.k, wide.v, options, o, lse, context);
  CHECK(same_numbers(x.o, o));
  wide.o = converted<float>(x.o);
  compute(wide, options, context);
  return wide;
}

template <class U>
void check_same(const Sizes& sizes, const AttentionOptions<float>& options, const Context& context,
                int how) {
  auto x = random_tensors<U>(sizes, static_cast<std::uint64_t>(sizes.L + 100 * sizes.S));
  compute(x, options, context, how);
  check_rounded(x, by_floats(x, options, context));
}

}  // namespace

TEMPLATE_TEST_CASE("attention of 16 bits is that of its numbers as floats, rounded", "[stored]",
                   BFloat16, Float16) {
  ThreadPool serial(1), threads(3);
  const Context alone{.executor = serial}, shared{.executor = threads};
  std::vector<AttentionOptions<float>> all(6);
  all[1].mask = {causal};
  all[2].mask = {causal, Mask::window(70).keeping_first(3)};
  all[3].dropout = {.rate = 0.3, .seed = 5};
  all[4].score.softcap = 2.0f;
  all[5].scale = 0.3f;
  for (const Sizes& sizes : {Sizes{2, 4, 2, 150, 300, 64, 72}, Sizes{1, 2, 1, 37, 41, 13, 5},
                             Sizes{1, 2, 2, 700, 520, 16, 16}, Sizes{2, 2, 1, 1, 60, 32, 32},
                             Sizes{1, 4, 2, 3, 1, 1, 1}, Sizes{1, 1, 1, 40, 33, 300, 200}}) {
    for (std::size_t n = 0; n < all.size(); ++n) {
      INFO("L " << sizes.L << ", S " << sizes.S << ", d " << sizes.d << ", options " << n);
      const int how = static_cast<int>(n + static_cast<std::size_t>(sizes.L)) % 3;
      check_same<TestType>(sizes, all[n], n % 2 == 0 ? shared : alone, how);
    }
  }
}

TEMPLATE_TEST_CASE("attention of 16 bits with products of bf16 is that of floats with them",
                   "[stored]", BFloat16, Float16) {
  AttentionOptions<float> options;
  options.mask = {causal};
  for (const Bf16Unit unit : supported_bf16_units()) {
    for (const Sizes& sizes : {Sizes{1, 4, 2, 150, 300, 64, 72}, Sizes{1, 2, 1, 37, 41, 13, 5}}) {
      INFO(name_of(unit) << ", L " << sizes.L);
      check_same<TestType>(sizes, options, {.products = bf16_products(unit)}, 1);
    }
  }
}

TEMPLATE_TEST_CASE("of 16 bits, what a query may not see does not reach it, nor its gradients",
                   "[stored]", BFloat16, Float16) {
  const Sizes sizes{1, 2, 1, 140, 150, 16, 24};
  AttentionOptions<float> options;
  options.mask = {causal};
  auto clean = random_tensors<TestType>(sizes, 3);
  auto x = clean;
  const TestType nan = convert_float<TestType>(std::numeric_limits<float>::quiet_NaN());
  for (Index c = 0; c < sizes.d; ++c) x.k(0, 0, 120, c) = nan;
  for (Index c = 0; c < sizes.dv; ++c) x.v(0, 0, 120, c) = nan;
  compute(clean, options, {});
  compute(x, options, {});
  // Query i sees key 120 from i + 10 >= 120 on.
  Index differ = 0, clean_numbers = 0;
  for (Index h = 0; h < sizes.H; ++h) {
    for (Index i = 0; i < sizes.L; ++i) {
      for (Index c = 0; c < sizes.dv; ++c) {
        if (i < 110) differ += x.o(0, h, i, c) == clean.o(0, h, i, c) ? 0 : 1;
        if (i >= 110 && convert_float<float>(x.o(0, h, i, c)) < 1e30f) ++clean_numbers;
      }
      for (Index c = 0; c < sizes.d && i < 110; ++c) {
        differ += x.dq(0, h, i, c) == clean.dq(0, h, i, c) ? 0 : 1;
      }
    }
  }
  CHECK(differ == 0);
  CHECK(clean_numbers == 0);
}

TEMPLATE_TEST_CASE("packed sequences of 16 bits are those of their numbers as floats, rounded",
                   "[stored]", BFloat16, Float16) {
  const std::vector<Index> queries{0, 40, 40, 190, 191}, keys{0, 40, 50, 310, 320};
  const Index H = 4, G = 2, d = 24, dv = 16;
  Numbers numbers(7);
  const auto q = converted<TestType>(numbers.tensor<float>(Shape{queries.back(), H, d}));
  const auto k = converted<TestType>(numbers.tensor<float>(Shape{keys.back(), G, d}));
  const auto v = converted<TestType>(numbers.tensor<float>(Shape{keys.back(), G, dv}));
  const auto d_o = converted<TestType>(numbers.tensor<float>(Shape{queries.back(), H, dv}));
  const auto wide_q = converted<float>(q), wide_k = converted<float>(k),
             wide_v = converted<float>(v), wide_d_o = converted<float>(d_o);
  ThreadPool threads(3);
  const Context context{.executor = threads};
  AttentionOptions<float> options;
  options.mask = {causal};
  Tensors<TestType, 3> x;
  Tensors<float, 3> y;
  const auto like = [](auto& of, const Shape<3>& o, const Shape<3>& lse, const auto& in) {
    using T = std::remove_cvref_t<decltype(of.o)>;
    of.o = T(o);
    of.dq = T(in.q.shape());
    of.dk = T(in.k.shape());
    of.dv = T(in.v.shape());
    of.lse = Tensor<float, 3>(lse);
  };
  const PackedSequences<TestType> narrow_in{q, k, v, queries, keys};
  const PackedSequences<float> wide_in{wide_q, wide_k, wide_v, queries, keys};
  const Shape<3> o_shape{queries.back(), H, dv}, lse_shape{queries.back(), H, Index{2}};
  like(x, o_shape, lse_shape, narrow_in);
  like(y, o_shape, lse_shape, wide_in);
  packed_attention_forward(narrow_in, options, x.o, x.lse, context);
  packed_attention_forward(wide_in, options, y.o, y.lse, context);
  CHECK(same_numbers(x.o, y.o));
  const auto kept = converted<float>(x.o);
  packed_attention_backward<TestType>(d_o, narrow_in, x.o, x.lse, options, {x.dq, x.dk, x.dv},
                                      context);
  packed_attention_backward<float>(wide_d_o, wide_in, kept, y.lse, options, {y.dq, y.dk, y.dv},
                                   context);
  check_rounded(x, y);
}

TEMPLATE_TEST_CASE("attention of 16 bits without keys, queries or heads has zeros", "[stored]",
                   BFloat16, Float16) {
  for (const Sizes& sizes :
       {Sizes{1, 2, 1, 3, 0, 4, 4}, Sizes{1, 2, 1, 0, 3, 4, 4}, Sizes{1, 0, 0, 3, 3, 4, 4},
        Sizes{0, 2, 1, 3, 3, 4, 4}, Sizes{1, 2, 1, 3, 3, 0, 4}, Sizes{1, 2, 1, 3, 3, 4, 0}}) {
    INFO("L " << sizes.L << ", S " << sizes.S << ", d " << sizes.d << ", dv " << sizes.dv);
    check_same<TestType>(sizes, {}, {}, 0);
  }
}

}  // namespace ops_attention_in_16_bits
