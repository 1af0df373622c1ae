// Norms and rotary positions of queries and keys within a module: against the definition in plain
// loops, and what follows from it.
#include <cmath>
#include <complex>

#include "headwise/nn/head_parallel.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/ops/rms_norm_heads.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/parameter_values.hpp"

namespace nn_multi_head_attention_positions {

using namespace headwise_tests;

namespace {

using Real = long double;
using Options = MultiHeadAttentionOptions;

template <class T>
MultiHeadAttention<T> drawn(const Options& options) {
  MultiHeadAttention<T> module(options);
  draw_all(module.parameters(), 5);
  return module;
}

/// Rows of d elements normalised and turned, one at a time. Pairs as complex numbers.
std::vector<Real> placed(std::vector<Real> x, const Options& o, const std::vector<Real>& gain,
                         Index position) {
  const auto d = static_cast<Index>(x.size());
  const auto at = [&](Index n) -> Real& { return x[static_cast<std::size_t>(n)]; };
  if (o.qk_norm) {
    Real squares = 0;
    for (const Real value : x) squares += value * value;
    const Real rms = std::sqrt(squares / static_cast<Real>(d) + Real{o.qk_norm_epsilon});
    for (Index n = 0; n < d; ++n) at(n) *= gain[static_cast<std::size_t>(n)] / rms;
  }
  if (!o.rotary) return x;
  const Index width = o.rotary->width == 0 ? d : o.rotary->width;
  for (Index t = 0; t < width / 2; ++t) {
    const bool halves = o.rotary->pairing == RotaryPairing::halves;
    Real &a = at(halves ? t : 2 * t), &b = at(halves ? t + width / 2 : 2 * t + 1);
    const Real frequency =
        o.rotary->frequencies.absent()
            ? std::pow(Real{o.rotary->theta}, -2 * static_cast<Real>(t) / static_cast<Real>(width))
            : Real{o.rotary->frequencies(t)};
    const auto turned =
        std::complex<Real>(a, b) *
        std::polar(Real{1}, frequency * static_cast<Real>(o.rotary->offset + position));
    a = turned.real(), b = turned.imag();
  }
  return x;
}

/// Causal attention of x [B, L, D] to itself, or to keys and values of their own, unmasked.
template <class T>
Tensor3<Real> expected(const MultiHeadAttention<T>& module, In<T, 3> x, In<T, 3> key,
                       In<T, 3> value, bool is_causal) {
  const Options& o = module.options();
  const MultiHeadAttentionParameters<T>& p = module.parameters();
  const auto row = [](In<T, 3> in, Index b, Index i, In<T, 2> w, In<T, 1> bias, Index begin,
                      Index width) {
    std::vector<Real> y;
    for (Index n = begin; n < begin + width; ++n) {
      Real sum = bias.absent() ? Real{0} : static_cast<Real>(bias(n));
      for (Index m = 0; m < in.extent(2); ++m) {
        sum += static_cast<Real>(in(b, i, m)) * static_cast<Real>(w(m, n));
      }
      y.push_back(sum);
    }
    return y;
  };
  const auto gain = [&](const Tensor<T, 1>& of) {
    std::vector<Real> all(static_cast<std::size_t>(o.d_head), 1);
    for (Index n = 0; n < of.size(); ++n)
      all[static_cast<std::size_t>(n)] = static_cast<Real>(of(n));
    return all;
  };
  const Index B = x.extent(0), L = x.extent(1), S = key.extent(1), dv = o.d_value;
  Tensor3<Real> y({B, L, o.d_model});
  for_each_index(Shape{B, L}, [&](const Shape<2>& at) {
    const auto [b, i] = at.extents;
    for (Index n = 0; n < o.d_model; ++n) y(b, i, n) = o.o_bias ? static_cast<Real>(p.b_o(n)) : 0;
    for (Index h = 0; h < o.num_heads; ++h) {
      const Index g = h / (o.num_heads / o.num_kv_heads), d = o.d_head;
      const auto q = placed(row(x, b, i, p.W_Q(), p.b_q, h * d, d), o, gain(p.gamma_q), i);
      std::vector<Real> context(static_cast<std::size_t>(dv));
      Real mass = 0;
      for (Index j = 0; j < (is_causal ? i + 1 : S); ++j) {
        const auto k = placed(row(key, b, j, p.W_K(), p.b_k, g * d, d), o, gain(p.gamma_k), j);
        const auto v = row(value, b, j, p.W_V(), p.b_v, g * dv, dv);
        Real score = 0;
        for (std::size_t n = 0; n < q.size(); ++n) score += q[n] * k[n];
        const Real weight = std::exp(score / std::sqrt(static_cast<Real>(d)));
        mass += weight;
        for (std::size_t n = 0; n < v.size(); ++n) context[n] += weight * v[n];
      }
      for (Index n = 0; n < o.d_model; ++n) {
        for (Index m = 0; m < dv; ++m) {
          y(b, i, n) +=
              context[static_cast<std::size_t>(m)] / mass * static_cast<Real>(p.w_o(h * dv + m, n));
        }
      }
    }
  });
  return y;
}

const std::vector<double> given_frequencies = {0.7, -0.2};
const std::vector<Options> placements = {
    {.qk_norm = true},
    {.qk_norm = true, .qk_norm_affine = false, .rotary = RotaryOptions{}},
    {.rotary = RotaryOptions{.theta = 50, .width = 4, .offset = 6}},
    {.qk_norm = true,
     .qk_norm_epsilon = 0.3,
     .rotary = RotaryOptions{.pairing = RotaryPairing::interleaved}},
    {.rotary = RotaryOptions{.width = 4, .frequencies = given_frequencies}}};

Options grouped(Options o) {
  o.d_model = 10, o.num_heads = 4, o.num_kv_heads = 2, o.d_head = 6, o.d_value = 3;
  o.q_bias = true;
  return o;
}

template <class T>
void check_definition(const Options& options, double bound) {
  const auto module = drawn<T>(options);
  const Options& o = module.options();
  const auto x = random_tensor<T>(Shape{2, 7, o.d_model}, 1);
  const auto key = random_tensor<T>(Shape{2, 5, o.kdim}, 2),
             value = random_tensor<T>(Shape{2, 5, o.vdim}, 3);
  for (const Path path : {Path::flash, Path::materialized}) {
    MultiHeadAttentionCall<T> call{.mask = {causal}, .path = path};
    if (o.fused()) {
      const auto y = module.forward(x, call);
      CHECK(close_to(convert<Real>(In<T, 3>(y)), expected<T>(module, x, x, x, true), bound));
      MultiHeadAttentionCache<T> cache;
      CHECK(bitwise_equal(module.forward(x, call, cache), y));
    }
    call.mask = {};
    const auto y = module.forward(x, key, value, call);
    CHECK(close_to(convert<Real>(In<T, 3>(y)), expected<T>(module, x, key, value, false), bound));
    MultiHeadAttentionCache<T> cache;
    CHECK(bitwise_equal(module.forward(x, key, value, call, cache), y));
  }
}

}  // namespace

TEST_CASE("queries and keys are normalised, then turned, by the definition, on both paths",
          "[nn]") {
  for (std::size_t n = 0; n < placements.size(); ++n) {
    CAPTURE(n);
    Options o = grouped(placements[n]);
    check_definition<double>(o, 1e-13);
    check_definition<float>(o, 2e-5);
    o.kdim = 4, o.vdim = 9;
    check_definition<double>(o, 1e-13);
  }
}

TEST_CASE("a module with rotary positions knows distances alone", "[nn]") {
  Options near = grouped({.rotary = RotaryOptions{}}), far = near;
  far.rotary->offset = 1000;
  const auto x = random_tensor<double>(Shape{1, 12, 10}, 4);
  const auto y = drawn<double>(near).forward(x);
  CHECK(close_to(drawn<double>(far).forward(x), y, 1e-11));
  near.rotary.reset();
  CHECK_FALSE(close_to(drawn<double>(near).forward(x), y, 1e-3));
}

TEST_CASE("a module keeps the frequencies that it is given, whatever becomes of theirs", "[nn]") {
  Tensor1<double> numbers({3}, {1.0, 0.25, 0.5});
  Options o = grouped({.rotary = RotaryOptions{.frequencies = In<double, 1>(numbers)}});
  const auto module = drawn<double>(o);
  const auto copied = module;
  const auto x = random_tensor<double>(Shape{1, 8, 10}, 5);
  const auto y = module.forward(x);
  fill(Out<double, 1>(numbers), std::numeric_limits<double>::quiet_NaN());
  CHECK(bitwise_equal(module.forward(x), y));
  CHECK(bitwise_equal(copied.forward(x), y));
  CHECK(bitwise_equal(convert<double>(module).forward(x), y));
  CHECK(module.options().rotary->frequencies(1) == 0.25);
  o.rotary->frequencies = std::vector<double>{1, 0.25, 0.5};
  CHECK(bitwise_equal(drawn<double>(o).forward(x), y));
}

TEST_CASE("rotary positions take no tensor of a cache, the norm one of queries and one of keys",
          "[nn]") {
  const auto x = random_tensor<double>(Shape{2, 5, 10}, 6);
  for (const Options& placement : placements) {
    const auto module = drawn<double>(grouped(placement));
    MultiHeadAttentionCache<double> cache;
    (void)module.forward(x, {}, cache);
    CHECK(cache.q_normed.absent() == !placement.qk_norm);
    CHECK(cache.k_normed.absent() == !placement.qk_norm);
    CHECK(cache.q_rstd.size() == (placement.qk_norm ? 2 * 4 * 5 : 0));
    CHECK(cache.k_rstd.size() == (placement.qk_norm ? 2 * 2 * 5 : 0));
  }
}

TEST_CASE("the gains of queries and keys are parameters that start at 1", "[nn]") {
  const MultiHeadAttention<float> module(
      Options{.d_model = 8, .num_heads = 2, .o_bias = false, .qk_norm = true});
  CHECK(names_of(module.parameters(), "m.") == "m.W_Q m.W_K m.W_V m.W_O m.gamma_Q m.gamma_K ");
  CHECK(bitwise_equal(module.parameters().gamma_q, Tensor1<float>({4}, {1, 1, 1, 1})));
  CHECK(bitwise_equal(module.parameters().gamma_k, module.parameters().gamma_q));
  CHECK(module.zero_gradients().grad_gamma_K().extent(0) == 4);
  const MultiHeadAttention<float> plain(Options{
      .d_model = 8, .num_heads = 2, .o_bias = false, .qk_norm = true, .qk_norm_affine = false});
  CHECK(names_of(plain.parameters()) == "W_Q W_K W_V W_O ");
}

TEST_CASE("the trace names queries and keys before and behind norm and rotation, and gradients",
          "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto module = drawn<double>(grouped({.qk_norm = true, .rotary = RotaryOptions{}}));
  const Options& o = module.options();
  const auto x = random_tensor<double>(Shape{2, 5, 10}, 7);
  Trace trace;
  Context context;
  context.trace = &trace;
  MultiHeadAttentionCache<double> cache;
  auto gradients = module.zero_gradients();
  (void)module.forward(x, {.path = path}, cache, context);
  (void)module.backward(x, cache, gradients, context);
  for (const auto& [letter, gain, dgain] :
       {std::tuple{std::string("Q"), In<double, 1>(module.parameters().gamma_q), "dgamma_Q"},
        {"K", module.parameters().gamma_k, "dgamma_K"}}) {
    const In<double, 4> plain = trace.view<4>(letter), normed = trace.view<4>(letter + "_norm"),
                        turned = trace.view<4>(letter + "_rotary");
    Tensor4<double> y(plain.shape());
    Tensor3<double> rstd({plain.extent(0), plain.extent(1), plain.extent(2)});
    Tensor1<double> dgamma(o.d_head);
    rms_norm_forward(plain, gain, o.qk_norm_epsilon, y, rstd);
    CHECK(bitwise_equal(normed, In<double, 4>(y)));
    rotary_forward(normed, *o.rotary, y);
    CHECK(bitwise_equal(turned, In<double, 4>(y)));
    rotary_backward(trace.view<4>("d" + letter + "_rotary"), *o.rotary, y);
    CHECK(bitwise_equal(trace.view<4>("d" + letter + "_norm"), In<double, 4>(y)));
    rms_norm_backward(In<double, 4>(y), plain, gain, rstd, y, dgamma);
    CHECK(bitwise_equal(trace.view<4>("d" + letter), In<double, 4>(y)));
    CHECK(bitwise_equal(trace.view<1>(dgain), In<double, 1>(dgamma)));
  }
  const auto q = trace.view<4>("Q_rotary"), k = trace.view<4>("K_rotary"), a = trace.view<4>("A");
  for_each_index(a.shape(), [&](const Shape<4>& at) {
    double dot = 0;
    for (Index n = 0; n < 6; ++n) dot += q(at[0], at[1], at[2], n) * k(at[0], at[1] / 2, at[3], n);
    CHECK(a(at) == Approx(dot / std::sqrt(6.0)).epsilon(1e-12).margin(1e-13));
  });
}

TEST_CASE("shards of heads with norms and positions sum to the whole", "[nn]") {
  const auto whole = drawn<double>(grouped({.qk_norm = true, .rotary = RotaryOptions{}}));
  const auto x = random_tensor<double>(Shape{2, 6, 10}, 8);
  auto sum = head_shard(whole, 0, 2).forward(x);
  const auto rest = head_shard(whole, 2, 2).forward(x);
  for (Index n = 0; n < sum.size(); ++n) sum.data()[n] += rest.data()[n];
  CHECK(close_to(sum, whole.forward(x), 1e-13));
}

TEST_CASE("a cache of a module without norm or positions is refused by one that has them", "[nn]") {
  const auto x = random_tensor<double>(Shape{1, 3, 10}, 9);
  const auto plain = drawn<double>(grouped({}));
  MultiHeadAttentionCache<double> cache;
  (void)plain.forward(x, {}, cache);
  for (const Options& placement : placements) {
    const auto module = drawn<double>(grouped(placement));
    auto gradients = module.zero_gradients();
    CHECK_THROWS_AS(module.backward(x, cache, gradients), ArgumentError);
  }
}

}  // namespace nn_multi_head_attention_positions
