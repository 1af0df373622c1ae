// Cross-attention step by step over keys and values that were projected once.
#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/nn/cross_attention_step.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/failing_memory.hpp"
#include "support/parameter_values.hpp"
#include "support/poisoned_memory.hpp"

namespace nn_cross_attention_step {

using namespace headwise_tests;

namespace {

constexpr Index L = 21, D = 12, K = 7, V = 9, H = 4;

/// Two query heads a key head, widths of their own for keys and values; `placed`: everything that
/// a module does to queries and keys, too.
template <class T>
MultiHeadAttention<T> drawn_module(bool placed) {
  MultiHeadAttentionOptions options{.d_model = D,
                                    .num_heads = H,
                                    .num_kv_heads = 2,
                                    .d_head = 6,
                                    .d_value = 5,
                                    .kdim = K,
                                    .vdim = V,
                                    .q_bias = placed,
                                    .v_bias = true,
                                    .layer_norm = placed,
                                    .qk_norm = placed,
                                    .sinks = placed};
  if (placed) options.rotary = RotaryOptions{.theta = 100, .width = 4, .offset = 2};
  MultiHeadAttention<T> module(options);
  draw_all(module.parameters(), 3);
  return module;
}

template <class T>
struct Inputs {
  Tensor3<T> query, key, value;
  Inputs(Index B, Index S)
      : query(random_tensor<T>(Shape{B, L, D}, 1)),
        key(random_tensor<T>(Shape{B, S, K}, 2)),
        value(random_tensor<T>(Shape{B, S, V}, 3)) {}

  /// Rows begin ... begin + n - 1 of keys and values, into a cache.
  void append(const MultiHeadAttention<T>& module, Index begin, Index n, KeyValueCache<T>& cache,
              const Context& context = {}) const {
    cross_attention_append(module, slice(key, 1, begin, n), slice(value, 1, begin, n), cache,
                           context);
  }
};

}  // namespace

TEMPLATE_TEST_CASE(
    "cross-attention over kept keys has the bits of the whole call, for any pieces of queries and "
    "keys",
    "[nn]", float, double) {
  using T = TestType;
  const bool placed = GENERATE(false, true);
  const Index threads = GENERATE(1, 3), S = GENERATE(1, 37, 300);
  const auto module = drawn_module<T>(placed);
  const Inputs<T> in(2, S);
  ThreadPool pool(threads);
  PoisonedMemory memory;
  const Context context{.executor = pool, .memory = &memory};

  auto keep = Tensor4<bool>({2, 1, L, S});
  for (Index n = 0; n < keep.size(); ++n) keep.data()[n] = (n * 7 + n / 5) % 3 != 0;
  const auto bias = random_tensor<T>(Shape{Index{1}, H, L, S}, 4);
  const std::vector<Index> lengths = {S, S / 2};
  const auto hides =
      mask_function([](const auto& at) { return (at.query + at.key + at.head) % Index{4} != 0; });
  MultiHeadAttentionCall<T> inference{.scale = T(0.7), .score = {.softcap = T(3)}};
  inference.mask = {Mask::keep(keep), Mask::bias(bias), Mask::key_lengths(lengths),
                    Mask::function(hides)};
  auto whole = inference;
  whole.output_dropout = {.rate = 0.25, .seed = 5};
  const auto all = module.forward(in.query, in.key, in.value, whole);
  const auto y = module.forward(in.query, in.key, in.value, inference);

  for (const Index piece : {S, Index{1}, Index{50}}) {
    auto cache = key_value_cache(module, 2, 300, &memory);
    for (Index j = 0; j < S; j += piece) {
      in.append(module, j, std::min<Index>(piece, S - j), cache, context);
    }
    CAPTURE(piece);
    CHECK(cache.length() == S);
    CHECK(bitwise_equal(In<T, 3>(cross_attention_step(module, in.query, whole, cache, context)),
                        In<T, 3>(all)));
    for (const Index n : {Index{1}, Index{4}}) {
      for (Index i = 0; i < L; i += n) {
        const Index m = std::min<Index>(n, L - i);
        auto call = inference;
        call.mask = {Mask::keep(In<bool, 4>(slice(keep, 2, i, m))),
                     Mask::bias(In<T, 4>(slice(bias, 2, i, m))), Mask::key_lengths(lengths),
                     Mask::function(hides)};
        call.origin.query = i;
        const auto step =
            cross_attention_step(module, slice(in.query, 1, i, m), call, cache, context);
        CAPTURE(n, i);
        CHECK(bitwise_equal(In<T, 3>(step), In<T, 3>(slice(y, 1, i, m))));
      }
    }
  }
}

TEST_CASE("each piece of queries is a call of its own where the last query meets the last key",
          "[nn]") {
  const auto module = drawn_module<float>(true);
  const Inputs<float> in(2, 37);
  auto cache = key_value_cache(module, 2, 37);
  in.append(module, 0, 37, cache);
  const auto slopes = random_tensor<float>(Shape{H}, 6);
  for (const Index i : {Index{0}, Index{9}}) {
    const auto piece = slice(in.query, 1, i, 9);
    for (const int kind : {0, 1, 2, 3}) {
      MultiHeadAttentionCall<float> call{.origin = {.query = i}};
      if (kind == 0) call.mask = causal;
      if (kind == 1) call.mask = {causal, Mask::window(20).keeping_first(2)};
      if (kind == 2) call.score.alibi_slopes = slopes;
      if (kind == 3) call.output_dropout = {.rate = 0.5, .seed = 2};
      CAPTURE(i, kind);
      CHECK(bitwise_equal(In<float, 3>(cross_attention_step(module, piece, call, cache)),
                          In<float, 3>(module.forward(piece, in.key, in.value, call))));
    }
  }
}

TEST_CASE("what each sequence of a batch attends to may have a length of its own", "[nn]") {
  const auto module = drawn_module<float>(true);
  const std::vector<Index> lengths = {40, 0, 17};
  Inputs<float> in(3, 40);
  const auto y = module.forward(in.query, in.key, in.value, {.mask = Mask::key_lengths(lengths)});
  for (Index b = 0; b < 3; ++b) {  // what is behind them reaches nothing
    const Index length = lengths[static_cast<std::size_t>(b)];
    for (Tensor3<float>* x : {&in.key, &in.value}) {
      fill(Out<float, 3>(slice(slice(*x, 0, b, 1), 1, length, 40 - length)),
           std::numeric_limits<float>::quiet_NaN());
    }
  }
  PoisonedMemory memory;
  auto cache = key_value_cache(module, 3, 50, &memory);
  cross_attention_append(module, in.key, in.value, lengths, cache);
  CHECK_FALSE(cache.same_lengths());
  CHECK(
      bitwise_equal(In<float, 3>(cross_attention_step(module, in.query, cache)), In<float, 3>(y)));

  // A key more of the last, behind its own.
  const std::vector<Index> one_more = {0, 0, 1}, longer = {40, 0, 18};
  const auto key = random_tensor<float>(Shape{3, 1, K}, 8);
  const auto value = random_tensor<float>(Shape{3, 1, V}, 9);
  cross_attention_append(module, key, value, one_more, cache);
  copy(In<float, 2>(select(key, 2)), slice(select(in.key, 2), 0, 17, 1));
  copy(In<float, 2>(select(value, 2)), slice(select(in.value, 2), 0, 17, 1));
  for (const Index b : {Index{1}, Index{2}}) {
    const Index length = longer[static_cast<std::size_t>(b)];
    for (Tensor3<float>* x : {&in.key, &in.value}) {
      fill(Out<float, 3>(slice(slice(*x, 0, b, 1), 1, length, 40 - length)), 0.0f);
    }
  }
  CHECK(bitwise_equal(In<float, 3>(cross_attention_step(module, in.query, cache)),
                      In<float, 3>(module.forward(in.query, in.key, in.value,
                                                  {.mask = Mask::key_lengths(longer)}))));
}

TEST_CASE("a cache without keys gives rows of b_O", "[nn]") {
  const auto module = drawn_module<double>(false);
  const auto cache = key_value_cache(module, 2, 5);
  const auto y = cross_attention_step(module, random_tensor<double>(Shape{2, 3, D}, 1), cache);
  for (Index i = 0; i < 3; ++i) {
    CHECK(bitwise_equal(In<double, 1>(select(select(y, 1), i)),
                        In<double, 1>(module.parameters().b_o)));
  }
}

TEMPLATE_TEST_CASE("cross-attention of 16 bits has the bits of its numbers as floats", "[stored]",
                   BFloat16, Float16) {
  using U = TestType;
  const auto module = drawn_module<float>(true);
  const Inputs<float> in(2, 33);
  const auto narrow = [](const Tensor3<float>& x) {
    Tensor<U, 3> y(x.shape());
    for (Index n = 0; n < x.size(); ++n) y.data()[n] = convert_float<U>(x.data()[n]);
    return y;
  };
  const auto query = narrow(in.query), key = narrow(in.key), value = narrow(in.value);
  const auto whole = module.forward(In<U, 3>(query), In<U, 3>(key), In<U, 3>(value));
  auto cache = key_value_cache(module, 2, 40);
  cross_attention_append(module, In<U, 3>(slice(key, 1, 0, 20)), slice(value, 1, 0, 20), cache);
  cross_attention_append(module, In<U, 3>(slice(key, 1, 20, 13)), slice(value, 1, 20, 13),
                         std::vector<Index>{13, 13}, cache);
  const Tensor<U, 3> y = cross_attention_step(module, In<U, 3>(query), cache);
  CHECK(bitwise_equal(In<U, 3>(y), In<U, 3>(whole)));

  // Kept in 16 bits: the same for any pieces, and near to floats.
  Tensor3<float> first;
  const auto of_floats = module.forward(in.query, in.key, in.value);
  for (const Index piece : {Index{33}, Index{2}}) {
    auto stored = key_value_cache(
        module, {.batch_size = 2, .capacity = 33, .stored_as = headwise::detail::stored_as<U>});
    for (Index j = 0; j < 33; j += piece) {
      in.append(module, j, std::min<Index>(piece, 33 - j), stored);
    }
    auto z = cross_attention_step(module, in.query, stored);
    if (first.size() == 0) first = z;
    CHECK(bitwise_equal(In<float, 3>(z), In<float, 3>(first)));
    // Half a last bit of each key, which scores of a few multiply, and of each value.
    constexpr float half_bit = std::same_as<U, BFloat16> ? 0x1p-9f : 0x1p-12f;
    float worst = 0, greatest = 0;
    for (Index n = 0; n < z.size(); ++n) {
      worst = std::max(worst, std::abs(z.data()[n] - of_floats.data()[n]));
      greatest = std::max(greatest, std::abs(of_floats.data()[n]));
    }
    CHECK(worst <= 4 * half_bit * greatest);
    CHECK_FALSE(bitwise_equal(In<float, 3>(z), In<float, 3>(of_floats)));
  }
}

TEST_CASE("keys that find no memory leave the cache as it was", "[nn]") {
  const auto module = drawn_module<float>(true);
  const Inputs<float> in(2, 33);
  auto cache = key_value_cache(module, 2, 40);
  in.append(module, 0, 20, cache);
  const auto y = cross_attention_step(module, in.query, cache);
  const int failed =
      fail_in_turn([&](auto* memory) { in.append(module, 20, 13, cache, {.memory = memory}); },
                   [&] { return cache.length() == 20; });
  CHECK(failed > 0);
  CHECK(cache.length() == 33);
  cache.rollback(13);
  CHECK(
      bitwise_equal(In<float, 3>(cross_attention_step(module, in.query, cache)), In<float, 3>(y)));
}

}  // namespace nn_cross_attention_step
