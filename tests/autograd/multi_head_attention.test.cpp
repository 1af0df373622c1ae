// Multi-head attention put together on the tape is the module, to the bit.
#include "headwise/nn/multi_head_attention.hpp"

#include "autograd/rounded.hpp"
#include "headwise/autograd/functions.hpp"
#include "headwise/ops/bf16_products.hpp"
#include "headwise/ops/saved_in.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/bf16_units.hpp"
#include "support/taped.hpp"

namespace autograd_multi_head_attention {

using namespace headwise_tests;

namespace {

/// y, dx and the gradients of all parameters.
template <class T>
struct Outcome {
  Tensor3<T> y, dx;
  MultiHeadAttentionGradients<T> gradients;
};

template <class T>
class Comparison {
 public:
  Comparison(const MultiHeadAttentionOptions& options, const MultiHeadAttentionCall<T>& call)
      : module_(options), call_(call) {
    std::uint64_t seed = 10;
    module_.parameters().for_each([&](const std::string&, auto view) {
      constexpr int rank = decltype(view)::rank;
      copy(In<T, rank>(normal<T>(view.shape(), seed++, 0.1)), Out<T, rank>(view));
    });
  }

  Outcome<T> by_module(const Context& context) const {
    MultiHeadAttentionCache<T> cache;
    Outcome<T> result{{}, {}, module_.zero_gradients()};
    result.y = module_.forward(x_, call_, cache, context);
    result.dx = module_.backward(dy_, cache, result.gradients, context);
    return result;
  }

  Outcome<T> by_tape(const Context& context) const {
    Outcome<T> result{Tensor3<T>(x_.shape()), Tensor3<T>(x_.shape()), module_.zero_gradients()};
    const auto& p = module_.parameters();
    auto& d = result.gradients;
    const auto& o = module_.options();
    Tape<T> tape(context);
    const auto with = [&](const auto& value, auto& gradient) {
      return value.absent() ? decltype(tape.parameter(value, gradient))()
                            : tape.parameter(value, gradient);
    };
    const auto x = tape.input(x_);
    const bool keeps = std::same_as<T, float> && call_.path == Path::flash;
    const Saved saved = keeps ? context.saved : Saved();
    const auto save = [&](const auto& tensor) { return rounded(tensor, saved); };
    const auto xn =
        save(layer_norm(x, with(p.gamma, d.gamma), with(p.beta, d.beta), T(o.layer_norm_epsilon)));
    Variable<T, 1> bias;
    if (!p.b_q.absent()) {
      bias = concatenate(0, with(p.b_q, d.b_q), with(p.b_k, d.b_k), with(p.b_v, d.b_v));
    }
    const auto projected = linear(xn, with(p.w_qkv, d.w_qkv), bias);
    const auto qkv = o.qk_norm ? save(projected) : projected;  // what the norms read
    const Index qw = o.q_width(), kw = o.k_width(), vw = o.v_width();
    auto q = split_heads(slice(qkv, 2, 0, qw), o.num_heads);
    auto k = split_heads(slice(qkv, 2, qw, kw), o.num_kv_heads);
    if (o.qk_norm) {
      q = rms_norm(q, with(p.gamma_q, d.gamma_q), T(o.qk_norm_epsilon));
      k = rms_norm(k, with(p.gamma_k, d.gamma_k), T(o.qk_norm_epsilon));
    }
    if (o.rotary) q = rotary(q, *o.rotary), k = rotary(k, *o.rotary);
    const auto v = split_heads(slice(qkv, 2, qw + kw, vw), o.num_kv_heads);
    const LearnedScores<T> learned{.alibi_slopes = with(p.alibi_slopes, d.alibi_slopes),
                                   .relative_bias = with(p.relative_bias, d.relative_bias),
                                   .sinks = with(p.sinks, d.sinks)};
    const auto heads = attention(save(q), save(k), save(v), call_.attention(), learned, call_.path);
    const auto y = dropout(linear(merge_heads(heads), with(p.w_o, d.w_o), with(p.b_o, d.b_o)),
                           call_.output_dropout);
    const Index calls = p.b_q.absent() ? 4 : 5;  // and no views
    const Index leaves = (p.b_q.absent() ? 5 : 9) + (p.sinks.absent() ? 0 : 3);
    const Index placed = (o.qk_norm ? 2 : 0) + (p.gamma_q.absent() ? 0 : 2) + (o.rotary ? 2 : 0);
    if (context.saved.exact()) {
      CHECK(tape.size() == calls + leaves + placed + (call_.output_dropout.active() ? 1 : 0));
    }
    tape.backward(y, dy_);
    copy(y.value(), result.y);
    copy(tape.gradient(x), result.dx);
    return result;
  }

  void check(const Context& context = {}) const {
    const Outcome<T> module = by_module(context), tape = by_tape(context);
    CHECK(bitwise_equal(tape.y, module.y));
    CHECK(bitwise_equal(tape.dx, module.dx));
    module.gradients.for_each([&](const std::string& name, auto expected) {
      constexpr int rank = decltype(expected)::rank;
      tape.gradients.for_each([&](const std::string& other, auto got) {
        if constexpr (rank == decltype(got)::rank) {
          CAPTURE(name);
          if (name == other) CHECK(bitwise_equal(In<T, rank>(got), In<T, rank>(expected)));
        }
      });
    });
  }

 private:
  MultiHeadAttention<T> module_;
  MultiHeadAttentionCall<T> call_;
  Tensor3<T> x_ = normal<T>(Shape{3, 37, 24}, 1), dy_ = normal<T>(Shape{3, 37, 24}, 2);
};

template <class T>
void compare_all(const Context& context) {
  for (const Path path : {Path::flash, Path::materialized}) {
    for (const bool bias : {false, true}) {
      for (const bool dropped : {false, true}) {
        CAPTURE(sizeof(T), path == Path::flash, bias, dropped);
        const MultiHeadAttentionOptions options{.d_model = 24,
                                                .num_heads = 4,
                                                .num_kv_heads = 2,
                                                .d_value = 5,
                                                .q_bias = bias,
                                                .k_bias = bias,
                                                .v_bias = bias,
                                                .o_bias = bias,
                                                .layer_norm = true,
                                                .seed = 3};
        MultiHeadAttentionCall<T> call{.mask = {causal}, .path = path};
        if (dropped) {
          call.weight_dropout = {.rate = 0.2, .seed = 4};
          call.output_dropout = {.rate = 0.1, .seed = 5};
        }
        Comparison<T>(options, call).check(context);
      }
    }
  }
}

}  // namespace

TEST_CASE("multi-head attention composed on the tape has the bits of the module", "[autograd]") {
  compare_all<float>({});
  compare_all<double>({});
}

TEST_CASE(
    "norms and rotary positions of heads, and scores of their own, composed on the tape have the "
    "bits of the module",
    "[autograd]") {
  for (const Path path : {Path::flash, Path::materialized}) {
    for (const bool affine : {false, true}) {
      for (const bool turned : {false, true}) {
        CAPTURE(path == Path::flash, affine, turned);
        MultiHeadAttentionOptions options{.d_model = 24,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .o_bias = false,
                                          .layer_norm = true,
                                          .qk_norm = true,
                                          .qk_norm_affine = affine,
                                          .sinks = affine,
                                          .alibi = affine,
                                          .relative_reach = affine ? 3 : 0};
        if (turned) options.rotary = RotaryOptions{.width = 4, .offset = 7};
        ThreadPool pool(3);
        Comparison<float>(options, {.mask = {causal}, .path = path}).check();
        Comparison<float>(options, {.mask = {causal}, .path = path}).check({.executor = pool});
        options.qk_norm = false;
        Comparison<double>(options, {.mask = {causal}, .path = path}).check();
      }
    }
  }
}

TEST_CASE("changed scores composed on the tape have the bits of the module, and change it",
          "[autograd]") {
  const auto slopes = normal<float>(Shape{4}, 6), sinks = normal<float>(Shape{4}, 7);
  const auto table = normal<float>(Shape{4, 9}, 8);
  const MultiHeadAttentionOptions options{
      .d_model = 24, .num_heads = 4, .o_bias = false, .layer_norm = true};
  for (const Path path : {Path::flash, Path::materialized}) {
    CAPTURE(path == Path::flash);
    MultiHeadAttentionCall<float> call{.mask = {causal}, .path = path};
    const Comparison<float> plain(options, call);
    call.score = {.softcap = 2.0f, .alibi_slopes = slopes, .relative_bias = table, .sinks = sinks};
    const Comparison<float> changed(options, call);
    changed.check();
    CHECK_FALSE(close_to(changed.by_module({}).y, plain.by_module({}).y, 1e-2).ok);
    for (const int left_out : {0, 1, 2, 3}) {  // each of them reaches attention
      MultiHeadAttentionCall<float> less = call;
      if (left_out == 0) less.score.softcap = {};
      if (left_out == 1) less.score.alibi_slopes = {};
      if (left_out == 2) less.score.relative_bias = {};
      if (left_out == 3) less.score.sinks = {};
      CAPTURE(left_out);
      CHECK_FALSE(
          bitwise_equal(Comparison<float>(options, less).by_module({}).y, changed.by_module({}).y)
              .ok);
    }
  }
}

TEST_CASE("multi-head attention on the tape has the module's bits on any number of threads",
          "[autograd]") {
  for (const Index threads : {2, 3}) {
    ThreadPool pool(threads);
    compare_all<float>({.executor = pool});
  }
}

TEST_CASE("multi-head attention on the tape has the module's bits by products of bf16",
          "[autograd]") {
  for (const Bf16Unit unit : supported_bf16_units()) {
    CAPTURE(name_of(unit));
    compare_all<float>({.products = bf16_products(unit)});
  }
}

TEST_CASE("caches in 16 bits have the bits of the tape with that rounding between its operations",
          "[autograd]") {
  for (const Saved& saved : {saved_in<BFloat16>(), saved_in<Float16>()}) {
    CAPTURE(saved.as() == StoredAs::bf16);
    compare_all<float>({.saved = saved});
    compare_all<double>({.saved = saved});
    for (const bool turned : {false, true}) {
      for (const bool normed : {false, true}) {
        CAPTURE(turned, normed);
        MultiHeadAttentionOptions options{.d_model = 24,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .o_bias = false,
                                          .layer_norm = true,
                                          .qk_norm = normed};
        if (turned) options.rotary = RotaryOptions{.width = 4, .offset = 7};
        Comparison<float>(options, {.mask = {causal}}).check({.saved = saved});
      }
    }
  }
}

TEST_CASE("gradients of q, k and v are written into that of one projection, side by side",
          "[autograd]") {
  const auto x = normal<float>(Shape{2, 5, 12}, 1);
  MemoryTally memory;
  Tape<float> tape({.memory = &memory});
  const auto projection = scale(tape.input(x), 1.0f);
  const auto part = [&](Index at) { return split_heads(slice(projection, 2, at, 4), 2); };
  const auto y = merge_heads(attention(part(0), part(4), part(8)));
  const Tensor3<float> dy(y.shape());
  const auto before = memory.allocations();
  tape.watch(projection);
  tape.backward(y, dy);
  // The gradients of y, of the projection and of x, two requests for the list of pieces, and what
  // flash attention asks for itself.
  MemoryTally direct;
  {
    Tensor4<float> o({2, 2, 5, 2}), lse({2, 2, 5, 2}), dq({2, 2, 5, 2}), dk({2, 2, 5, 2}),
        dv({2, 2, 5, 2});
    const auto heads = [&](Index at) { return In<float, 4>(split_heads(slice(x, 2, at, 4), 2)); };
    flash_attention_forward(heads(0), heads(4), heads(8), {}, o, lse);
    flash_attention_backward(o, {heads(0), heads(4), heads(8)}, o, lse, {}, {dq, dk, dv},
                             {.memory = &direct});
  }
  CHECK(memory.allocations() - before == direct.allocations() + 5);
}

}  // namespace autograd_multi_head_attention
