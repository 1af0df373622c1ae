// Modules over packed sequences against each sequence alone: outputs and gradients of inputs to the
// bit, gradients of parameters as the sum of theirs.
#include <string>
#include <vector>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"
#include "support/parameter_values.hpp"

namespace nn_packed_sequences {

using namespace headwise_tests;

namespace {

using Starts = std::vector<Index>;

/// Rows starts[b] ... starts[b + 1] - 1 of x [1, N, D].
template <class T>
In<T, 3> sequence(const Tensor3<T>& x, const Starts& starts, std::size_t b) {
  return slice(In<T, 3>(x), 1, starts[b], starts[b + 1] - starts[b]);
}

template <class T>
MultiHeadAttention<T> drawn_module(const MultiHeadAttentionOptions& options) {
  MultiHeadAttention<T> module(options);
  draw_all(module.parameters(), 5);
  return module;
}

/// y, dx (of cross-attention dx, dk and dv) and the gradients of a call.
template <class T>
struct Outcome {
  Tensor3<T> y;
  CrossAttentionGradients<T> inputs;
  std::vector<T> gradients;
};

/// `key` {} for self-attention.
template <class T>
Outcome<T> run(const MultiHeadAttention<T>& module, In<T, 3> x, In<T, 3> key, In<T, 3> dy,
               const MultiHeadAttentionCall<T>& call, const Context& context = {}) {
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  Tensor1<T> d_slopes(Shape{4}), d_sinks(Shape{4});
  if (!call.score.sinks.absent()) {
    gradients.score.d_alibi_slopes = d_slopes;
    gradients.score.d_sinks = d_sinks;
  }
  Outcome<T> result;
  if (key.absent()) {
    result.y = module.forward(x, call, cache, context);
    CHECK(bitwise_equal(result.y, module.forward(x, call, context)));
    result.inputs.query = module.backward(dy, cache, gradients, context);
  } else {
    result.y = module.forward(x, key, key, call, cache, context);
    CHECK(bitwise_equal(result.y, module.forward(x, key, key, call, context)));
    result.inputs = module.backward_cross(dy, cache, gradients, context);
  }
  result.gradients = values_of<T>(gradients);
  for (const Tensor1<T>* learned : {&d_slopes, &d_sinks}) {
    result.gradients.insert(result.gradients.end(), learned->begin(), learned->end());
  }
  return result;
}

/// Numbers that scores are changed by, and calls that have them.
template <class T>
struct Calls {
  Tensor1<T> slopes = random_tensor<T>(Shape{4}, 6), sinks = random_tensor<T>(Shape{4}, 7);
  std::vector<MultiHeadAttentionCall<T>> all() const {
    MultiHeadAttentionCall<T> plain, masked, changed;
    masked.mask = {causal, Mask::window(5).keeping_first(2)};
    masked.weight_dropout = {.rate = 0.2, .seed = 9};
    changed.mask = {causal};
    changed.scale = T(0.3);
    changed.score = {.softcap = T(2), .alibi_slopes = slopes, .sinks = sinks};
    return {plain, masked, changed};
  }
};

std::vector<MultiHeadAttentionOptions> kinds() {
  MultiHeadAttentionOptions plain{.d_model = 12, .num_heads = 4};
  MultiHeadAttentionOptions full{.d_model = 12,
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .d_head = 6,
                                 .d_value = 5,
                                 .q_bias = true,
                                 .v_bias = true,
                                 .layer_norm = true,
                                 .qk_norm = true,
                                 .rotary = RotaryOptions{.width = 4, .offset = 7}};
  MultiHeadAttentionOptions turned = plain;
  turned.d_head = 4;
  turned.rotary = RotaryOptions{.pairing = RotaryPairing::interleaved};
  return {plain, full, turned};
}

/// Each sequence of the packed call against a call for it alone.
template <class T>
void check_sequences(const MultiHeadAttention<T>& module, const Tensor3<T>& x,
                     const Tensor3<T>& key, const Tensor3<T>& dy, MultiHeadAttentionCall<T> call,
                     const Starts& starts, const Starts& key_starts, const Context& context) {
  const bool self = key.absent();
  call.query_starts = starts;
  if (!self) call.key_starts = key_starts;
  const Outcome<T> packed = run<T>(module, x, key, dy, call, context);
  std::vector<T> sum(packed.gradients.size(), T(0));
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    CAPTURE(b);
    call.query_starts = {}, call.key_starts = {};
    call.origin.batch = static_cast<Index>(b);
    const In<T, 3> own_key = self ? In<T, 3>() : sequence(key, key_starts, b);
    const Outcome<T> alone =
        run<T>(module, sequence(x, starts, b), own_key, sequence(dy, starts, b), call);
    CHECK(bitwise_equal(sequence(packed.y, starts, b), In<T, 3>(alone.y)));
    CHECK(bitwise_equal(sequence(packed.inputs.query, starts, b), In<T, 3>(alone.inputs.query)));
    if (!self) {
      CHECK(bitwise_equal(sequence(packed.inputs.key, key_starts, b), In<T, 3>(alone.inputs.key)));
      CHECK(bitwise_equal(sequence(packed.inputs.value, key_starts, b),
                          In<T, 3>(alone.inputs.value)));
    }
    for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += alone.gradients[n];
  }
  const Shape<1> all(static_cast<Index>(sum.size()));
  const double tolerance = std::is_same_v<T, float> ? 3e-5 : 1e-12;
  CHECK(close_to(In<T, 1>(packed.gradients.data(), all), In<T, 1>(sum.data(), all), tolerance));
}

}  // namespace

TEMPLATE_TEST_CASE("a module's packed sequences have the bits that they have alone", "[nn]", float,
                   double) {
  using T = TestType;
  const Starts starts = {0, 5, 5, 6, 73, 86};
  const auto x = random_tensor<T>(Shape{1, 86, 12}, 1), dy = random_tensor<T>(Shape{1, 86, 12}, 2);
  ThreadPool pool(3);
  const Calls<T> calls;
  for (const MultiHeadAttentionOptions& options : kinds()) {
    const auto module = drawn_module<T>(options);
    for (const MultiHeadAttentionCall<T>& call : calls.all()) {
      CAPTURE(options.layer_norm, options.rotary.has_value(), call.weight_dropout.rate);
      check_sequences<T>(module, x, {}, dy, call, starts, {}, {});
      check_sequences<T>(module, x, {}, dy, call, starts, {}, {.executor = pool});
    }
  }
}

TEMPLATE_TEST_CASE("packed queries meet the packed keys of their own sequence", "[nn]", float,
                   double) {
  using T = TestType;
  const Starts starts = {0, 5, 5, 6, 40}, key_starts = {0, 9, 11, 12, 79};
  const auto x = random_tensor<T>(Shape{1, 40, 12}, 1), key = random_tensor<T>(Shape{1, 79, 12}, 3),
             dy = random_tensor<T>(Shape{1, 40, 12}, 2);
  const Calls<T> calls;
  for (const MultiHeadAttentionOptions& options : kinds()) {
    const auto module = drawn_module<T>(options);
    for (const MultiHeadAttentionCall<T>& call : calls.all()) {
      CAPTURE(options.layer_norm, options.rotary.has_value(), call.weight_dropout.rate);
      check_sequences<T>(module, x, key, dy, call, starts, key_starts, {});
    }
  }
}

TEST_CASE("one packed sequence is a batch of one, and none is nothing", "[nn]") {
  const auto module = drawn_module<double>(kinds()[1]);
  const auto x = random_tensor<double>(Shape{1, 21, 12}, 1);
  const Starts whole = {0, 21}, none = {0};
  MultiHeadAttentionCall<double> call{.mask = {causal}};
  const auto y = module.forward(x, call);
  call.query_starts = whole;
  CHECK(bitwise_equal(module.forward(x, call), y));
  call.query_starts = none;
  const Tensor3<double> empty({1, 0, 12});
  MultiHeadAttentionCache<double> cache;
  CHECK(module.forward(empty, call, cache).shape() == Shape{1, 0, 12});
  auto gradients = module.zero_gradients();
  CHECK(module.backward(empty, cache, gradients).shape() == Shape{1, 0, 12});
  for (const double value : values_of<double>(gradients)) CHECK(value == 0);
}

TEST_CASE("NaN in one packed sequence of a module reaches no other", "[nn]") {
  const auto module = drawn_module<double>(kinds()[1]);
  auto x = random_tensor<double>(Shape{1, 40, 12}, 1);
  const Starts starts = {0, 11, 30, 40};
  MultiHeadAttentionCall<double> call;
  call.query_starts = starts;
  const auto clean = module.forward(x, call);
  for (Index i = 11; i < 30; ++i) x(0, i, 3) = std::numeric_limits<double>::quiet_NaN();
  const auto y = module.forward(x, call);
  CHECK(bitwise_equal(sequence(y, starts, 0), sequence(clean, starts, 0)));
  CHECK(bitwise_equal(sequence(y, starts, 2), sequence(clean, starts, 2)));
  CHECK(std::isnan(y(0, 11, 0)));
}

TEST_CASE("the trace of a packed call has all but scores and weights", "[nn]") {
  const auto module = drawn_module<double>({.d_model = 8, .num_heads = 2});
  const auto x = random_tensor<double>(Shape{1, 9, 8}, 1);
  const Starts starts = {0, 4, 9};
  const auto names = [&](std::span<const Index> of) {
    Trace trace;
    MultiHeadAttentionCall<double> call;
    call.query_starts = of;
    (void)module.forward(x, call, {.trace = &trace});
    std::string all;
    for (const Trace::Entry& entry : trace.entries()) all += entry.name + ' ';
    return all;
  };
  std::string expected = names({});
  expected.erase(expected.find("A AS "), 5);
  CHECK(names(starts) == expected);
}

TEMPLATE_TEST_CASE("a decoder's packed sequences have the logits that they have alone", "[nn]",
                   float, double) {
  using T = TestType;
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  const bool positions = GENERATE(false, true);
  auto options = with(true, norm, 12);
  options.position_vectors = positions;
  if (!positions) options.block.rotary = RotaryOptions{};
  const auto decoder = drawn<T>(options);
  const Starts starts = {0, 3, 3, 40, 44};  // each within max_length 40, all of them not
  const auto tokens = some_tokens(1, 44);
  const auto d_logits = random_tensor<T>(Shape{44, 7}, 3);
  TransformerDecoderCache<T> cache;
  auto gradients = decoder.zero_gradients();
  Tensor2<T> logits;
  {
    const Starts gone = starts;  // the cache has a copy
    TransformerDecoderCall call;
    call.starts = gone;
    logits = decoder.forward(tokens, call, cache);
    CHECK(bitwise_equal(logits, decoder.forward(tokens, call)));
  }
  auto sum = decoder.zero_gradients();
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    CAPTURE(b);
    const Index first = starts[b], n = starts[b + 1] - first;
    TransformerDecoderCache<T> own;
    const auto alone = decoder.forward(slice(In<std::int64_t, 2>(tokens), 1, first, n), {}, own);
    CHECK(bitwise_equal(slice(In<T, 2>(logits), 0, first, n), In<T, 2>(alone)));
    decoder.backward(slice(In<T, 2>(d_logits), 0, first, n), own, sum);
  }
  decoder.backward(d_logits, cache, gradients);
  const auto got = values_of<T>(gradients), expected = values_of<T>(sum);
  const Shape<1> all(static_cast<Index>(got.size()));
  const double tolerance = std::is_same_v<T, float> ? 1e-4 : 1e-11;
  CHECK(close_to(In<T, 1>(got.data(), all), In<T, 1>(expected.data(), all), tolerance));
}

TEST_CASE("a block takes packed sequences", "[nn]") {
  TransformerBlock<double> block({.d_model = 12, .num_heads = 3, .d_hidden = 7});
  draw_all(block.parameters(), 4);
  const auto x = random_tensor<double>(Shape{1, 20, 12}, 1);
  const Starts starts = {0, 8, 20};
  TransformerBlockCall<double> call{.mask = {causal}};
  call.starts = starts;
  const auto y = block.forward(x, call);
  call.starts = {};
  for (const std::size_t b : {0u, 1u}) {
    CHECK(bitwise_equal(sequence(y, starts, b),
                        In<double, 3>(block.forward(sequence(x, starts, b), call))));
  }
}

}  // namespace nn_packed_sequences
