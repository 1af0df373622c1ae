// Attention over packed sequences on the tape: the slopes of its values, what is learned included,
// and the bits of its pair and of the module.
#include "headwise/autograd/packed_attention.hpp"

#include <optional>

#include "headwise/autograd/functions.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "support/taped.hpp"

namespace autograd_packed_attention {

using namespace headwise_tests;

namespace {

using Real = long double;
template <int R>
using V = Variable<Real, R>;
using Starts = std::vector<Index>;

}  // namespace

TEST_CASE("taped packed attention has the slopes of its values, of what is learned too",
          "[autograd]") {
  const Starts starts = {0, 3, 3, 5, 9}, key_starts = {0, 4, 5, 5, 11};
  auto q = normal<Real>(Shape{9, 4, 2}, 1);
  auto k = normal<Real>(Shape{11, 2, 2}, 2), v = normal<Real>(Shape{11, 2, 3}, 3);
  auto scale = normal<Real>(Shape{1}, 4, 1), slopes = normal<Real>(Shape{4}, 5),
       sinks = normal<Real>(Shape{4}, 6);
  auto table = normal<Real>(Shape{4, 5}, 7);
  auto bias = normal<Real>(Shape{4, 4, 1, 1}, 8);
  const auto of = [&](const V<3>& a, const V<3>& b, const V<3>& c, const V<1>& of_scale,
                      const V<1>& of_slopes, const V<1>& of_sinks, const V<2>& of_table,
                      const V<4>& of_bias) {
    AttentionOptions<Real> options{.mask = {causal}, .dropout = {.rate = 0.25, .seed = 5}};
    options.score.softcap = Real{2};
    return packed_attention(a, b, c, starts, key_starts, options,
                            {of_scale, of_slopes, of_table, of_sinks, of_bias});
  };
  CHECK(check_taped(of, q, k, v, scale, slopes, sinks, table, bias));
  auto x = normal<Real>(Shape{9, 2, 3}, 9);
  CHECK(check_taped([&](const V<3>& a) { return packed_attention(a, a, a, starts, starts); }, x));
}

TEST_CASE("taped attention has the slopes of the parameters of a score function", "[autograd]") {
  auto q = normal<Real>(Shape{2, 2, 3, 2}, 1), k = normal<Real>(Shape{2, 1, 4, 2}, 2),
       v = normal<Real>(Shape{2, 1, 4, 3}, 3);
  auto packed_q = normal<Real>(Shape{9, 2, 2}, 4), packed_k = normal<Real>(Shape{9, 1, 2}, 5);
  auto parameters = normal<Real>(Shape{2}, 6);
  const auto bent = [](auto s, const Position& at, const auto& w) {
    return s * (w[0] + w[1] * s) / decltype(s)(static_cast<Real>(1 + at.key));
  };
  std::optional<decltype(score_function(std::array<Real, 2>{}, bent))> function;
  const auto options = [&](const V<1>& w) {
    function.emplace(bent, std::array<Real, 2>{w.value()(0), w.value()(1)});
    AttentionOptions<Real> of{.mask = {causal}};
    of.score.function = *function;
    return of;
  };
  const auto path = GENERATE(Path::materialized, Path::flash);
  const auto of_batch = [&](const V<4>& a, const V<4>& b, const V<4>& c, const V<1>& w) {
    return attention(a, b, c, options(w), {.function = w}, path);
  };
  CHECK(check_taped(of_batch, q, k, v, parameters));
  const Starts starts = {0, 3, 3, 9};
  const auto of_packed = [&](const V<3>& a, const V<3>& b, const V<1>& w) {
    return packed_attention(a, b, b, starts, starts, options(w), {.function = w});
  };
  CHECK(check_taped(of_packed, packed_q, packed_k, parameters));
}

TEST_CASE("taped rotary positions of packed sequences have the slopes of their values",
          "[autograd]") {
  const Starts starts = {0, 3, 3, 7};
  auto x = normal<Real>(Shape{7, 2, 6}, 1);
  const RotaryOptions options{.width = 4, .pairing = RotaryPairing::interleaved, .offset = 2};
  CHECK(check_taped([&](const V<3>& a) { return packed_rotary(a, starts, options); }, x));
}

TEST_CASE("a taped packed attention gives the bits of its pair", "[autograd]") {
  const Starts starts = {0, 30, 31, 67};
  const auto q = normal<float>(Shape{67, 4, 5}, 1), k = normal<float>(Shape{67, 2, 5}, 2),
             v = normal<float>(Shape{67, 2, 6}, 3), d_o = normal<float>(Shape{67, 4, 6}, 4);
  const AttentionOptions<float> options{.mask = {causal, Mask::window(9)}};
  Tape<float> tape;
  const auto tq = tape.input(q), tk = tape.input(k), tv = tape.input(v);
  const auto y = packed_attention(tq, tk, tv, starts, starts, options);
  tape.backward(y, d_o);

  const PackedSequences<float> packed{q, k, v, starts, starts};
  Tensor3<float> o(d_o.shape()), lse(Shape{67, 4, 2}), dq(q.shape()), dk(k.shape()), dv(v.shape());
  packed_attention_forward(packed, options, o, lse);
  packed_attention_backward(d_o, packed, o, lse, options, {dq, dk, dv});
  CHECK(bitwise_equal(y.value(), In<float, 3>(o)));
  CHECK(bitwise_equal(tape.gradient(tq), In<float, 3>(dq)));
  CHECK(bitwise_equal(tape.gradient(tk), In<float, 3>(dk)));
  CHECK(bitwise_equal(tape.gradient(tv), In<float, 3>(dv)));
}

TEST_CASE("packed attention between projections on the tape has the bits of the module",
          "[autograd]") {
  const bool turns = GENERATE(false, true);
  const RotaryOptions rotary{.theta = 100, .width = 4};
  MultiHeadAttentionOptions options{.d_model = 24, .num_heads = 4, .num_kv_heads = 2};
  if (turns) options.rotary = rotary;
  CAPTURE(turns);
  const MultiHeadAttention<float> module(options);
  const MultiHeadAttentionOptions& o = module.options();
  const auto& p = module.parameters();
  const Starts starts = {0, 12, 40, 41};
  const auto x = normal<float>(Shape{1, 41, 24}, 1), dy = normal<float>(Shape{1, 41, 24}, 2);
  MultiHeadAttentionCall<float> call{.mask = {causal}};
  call.query_starts = starts;
  MultiHeadAttentionCache<float> cache;
  auto expected = module.zero_gradients(), got = module.zero_gradients();
  const auto y = module.forward(x, call, cache);
  const auto dx = module.backward(dy, cache, expected);

  Tape<float> tape;
  const auto tx = tape.input(x);
  const auto qkv = linear(tx, tape.parameter(p.w_qkv, got.w_qkv));
  const auto heads = [&](Index begin, Index width, Index count) {
    return transpose(select(split_heads(slice(qkv, 2, begin, width), count), 0), 0, 1);
  };
  const Index qw = o.q_width(), kw = o.k_width();
  auto q = heads(0, qw, 4), k = heads(qw, kw, 2);
  const auto v = heads(qw + kw, o.v_width(), 2);
  if (turns) q = packed_rotary(q, starts, rotary), k = packed_rotary(k, starts, rotary);
  const auto context = packed_attention(q, k, v, starts, starts, {.mask = {causal}});
  const auto ty = linear(reshape(context, Shape{1, 41, o.context_width()}),
                         tape.parameter(p.w_o, got.w_o), tape.parameter(p.b_o, got.b_o));
  tape.backward(ty, dy);
  CHECK(bitwise_equal(ty.value(), In<float, 3>(y)));
  CHECK(bitwise_equal(tape.gradient(tx), In<float, 3>(dx)));
  CHECK(bitwise_equal(In<float, 2>(got.w_qkv), In<float, 2>(expected.w_qkv)));
  CHECK(bitwise_equal(In<float, 2>(got.w_o), In<float, 2>(expected.w_o)));
  CHECK(bitwise_equal(In<float, 1>(got.b_o), In<float, 1>(expected.b_o)));
}

}  // namespace autograd_packed_attention
