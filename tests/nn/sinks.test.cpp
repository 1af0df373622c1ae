// Sinks as parameters of modules, blocks and decoders.
#include <cmath>

#include "headwise/nn/head_parallel.hpp"
#include "headwise/nn/transformer_block_step.hpp"
#include "nn/transformer_decoder_case.hpp"

namespace nn_sinks {

using namespace headwise_tests;

namespace {

constexpr Index H = 4;

MultiHeadAttentionOptions options_with(bool sinks, bool self) {
  MultiHeadAttentionOptions o{
      .d_model = 12, .num_heads = H, .num_kv_heads = 2, .d_value = 5, .sinks = sinks};
  if (!self) o.kdim = 7, o.vdim = 3;
  return o;
}

/// What one call and its backward leave.
template <class T>
struct Result {
  Tensor3<T> y;
  CrossAttentionGradients<T> d;
  MultiHeadAttentionGradients<T> gradients;
};

/// Tensors that every run of a case shares.
template <class T>
struct SinksCase {
  MultiHeadAttention<T> with, without;
  Tensor3<T> x, key, value, dy;
  Tensor1<T> given;

  explicit SinksCase(bool self, Index B = 2, Index L = 19)
      : with(options_with(true, self)),
        without(options_with(false, self)),
        x(random_tensor<T>(Shape{B, L, Index{12}}, 1)),
        key(random_tensor<T>(Shape{B, Index{23}, Index{7}}, 2)),
        value(random_tensor<T>(Shape{B, Index{23}, Index{3}}, 3)),
        dy(random_tensor<T>(x.shape(), 4)),
        given(random_tensor<T>(Shape{H}, 5)) {
    draw_all(with.parameters(), 6);
    detail::for_each_of_both("SinksCase", "", without.parameters(), with.parameters(),
                             [](auto to, auto from) { copy(In<T, decltype(to)::rank>(from), to); });
    copy(In<T, 1>(given), Out<T, 1>(with.parameters().sinks));
  }

  Result<T> run(const MultiHeadAttention<T>& module, const MultiHeadAttentionCall<T>& call,
                InOut<T, 1> d_sinks = {}) const {
    MultiHeadAttentionCache<T> cache;
    Result<T> r{{}, {}, module.zero_gradients()};
    r.gradients.score.d_sinks = d_sinks;
    if (module.options().fused()) {
      r.y = module.forward(x, call, cache);
      r.d.query = module.backward(dy, cache, r.gradients);
    } else {
      r.y = module.forward(x, key, value, call, cache);
      r.d = module.backward_cross(dy, cache, r.gradients);
    }
    return r;
  }
};

template <class T>
void check_same(const Result<T>& own, const Result<T>& of_call, const Tensor1<T>& d_given) {
  CHECK(bitwise_equal(own.y, of_call.y));
  CHECK(bitwise_equal(own.d.query, of_call.d.query));
  CHECK(bitwise_equal(own.d.key, of_call.d.key));
  CHECK(bitwise_equal(own.d.value, of_call.d.value));
  Index compared = 0;
  detail::for_each_of_both("check_same", "", of_call.gradients, own.gradients,
                           [&](auto expected, auto got) {
                             constexpr int rank = decltype(got)::rank;
                             CHECK(bitwise_equal(In<T, rank>(got), In<T, rank>(expected)));
                             ++compared;
                           });
  CHECK(compared == 5);  // four matrices and b_O
  CHECK(bitwise_equal(own.gradients.grad_sinks(), In<T, 1>(d_given)));
}

TransformerDecoderOptions decoder_with_sinks(bool positions) {
  auto options = with(true, NormKind::rms_norm);
  options.position_vectors = positions;
  if (!positions) {
    options.block.rotary = RotaryOptions{.theta = 100};
    options.window = 5, options.first_keys = 2;
  }
  options.block.sinks = true;
  return options;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "a module's own sinks do what a call's do, to the bit, and have their gradient, on both paths "
    "and over packed sequences",
    "[nn]", float, double) {
  using T = TestType;
  const bool self = GENERATE(true, false), packed = GENERATE(false, true);
  const Path path = packed ? Path::flash : GENERATE(Path::flash, Path::materialized);
  CAPTURE(self, packed, path == Path::flash);
  const SinksCase<T> of(self, packed ? 1 : 2);
  const std::vector<Index> starts = {0, 7, 7, 19}, key_starts = {0, 3, 11, 23};
  MultiHeadAttentionCall<T> call{.mask = {causal}, .path = path};
  if (packed) {
    call.query_starts = starts;
    if (!self) call.key_starts = key_starts;
  }
  MultiHeadAttentionCall<T> giving = call;
  giving.score.sinks = of.given;
  Tensor1<T> d_given(Shape{H});
  const Result<T> of_call = of.run(of.without, giving, d_given);
  check_same(of.run(of.with, call), of_call, d_given);
  CHECK_FALSE(bitwise_equal(of.run(of.without, call).y, of_call.y));
}

TEST_CASE("a module that makes its sinks' gradients adds to what was there", "[nn]") {
  const SinksCase<double> of(true);
  MultiHeadAttentionCache<double> cache;
  (void)of.with.forward(of.x, {}, cache);
  auto once = of.with.zero_gradients(), twice = of.with.zero_gradients();
  (void)of.with.backward(of.dy, cache, once);
  (void)of.with.backward(of.dy, cache, twice);
  (void)of.with.backward(of.dy, cache, twice);
  for (Index h = 0; h < H; ++h) CHECK(twice.sinks(h) == 2 * once.sinks(h));
  twice.zero();
  CHECK(bitwise_equal(twice.sinks, Tensor1<double>(Shape{H})));
}

TEST_CASE("sinks begin with 0 and take the weight of a key whose score is 0", "[nn]") {
  MultiHeadAttention<double> module(options_with(true, true));
  CHECK(bitwise_equal(module.parameters().sinks, Tensor1<double>(Shape{H})));
  fill(module.parameters().W_Q(), 0.0);  // every score is 0
  const SinksCase<double> of(true);
  MultiHeadAttentionCache<double> cache;
  (void)module.forward(of.x, {.path = Path::materialized}, cache);
  for (const double weight : cache.weights) CHECK(weight == Approx(1.0 / 20));
}

TEST_CASE("a trace names the gradient of a module's sinks, of one call alone", "[nn]") {
  const SinksCase<double> of(true);
  MultiHeadAttentionCache<double> cache;
  Trace trace;
  auto gradients = of.with.zero_gradients();
  (void)of.with.forward(of.x, {}, cache, {.trace = &trace});
  (void)of.with.backward(of.dy, cache, gradients);
  (void)of.with.backward(of.dy, cache, gradients, {.trace = &trace});
  const In<double, 1> traced = trace.view<1>("dsinks");
  for (Index h = 0; h < H; ++h) CHECK(gradients.sinks(h) == 2 * traced(h));
  const In<double, 4> scores = trace.view<4>("A"), weights = trace.view<4>("AS");
  double kept = 0, of_keys = 0;
  for (Index j = 0; j < 19; ++j)
    kept += weights(1, 2, 3, j), of_keys += std::exp(scores(1, 2, 3, j));
  CHECK(kept == Approx(of_keys / (of_keys + std::exp(of.given(2)))));  // the sink has the rest
}

TEST_CASE("shards of a module with sinks have those of their heads and sum to the whole", "[nn]") {
  const SinksCase<double> of(true);
  MultiHeadAttentionCall<double> call{.mask = {causal}};
  const auto whole = of.with.forward(of.x, call);
  auto sum = head_shard(of.with, 0, 2).forward(of.x, call);
  const auto shard = head_shard(of.with, 2, 2);
  CHECK(shard.parameters().sinks(1) == of.given(3));
  const auto rest = shard.forward(of.x, call);
  for (Index n = 0; n < sum.size(); ++n) sum.data()[n] += rest.data()[n];
  CHECK(close_to(sum, whole, 1e-13));
}

TEST_CASE("the gradients of a decoder with sinks are its differences, and sinks are among them",
          "[nn]") {
  auto decoder = drawn<double>(decoder_with_sinks(GENERATE(true, false)));
  check_gradients(decoder, some_tokens(2, 7));
  std::string names;
  decoder.parameters().for_each([&](const std::string& name, auto) { names += name + ' '; });
  CHECK(names.find(" blocks.1.attention.sinks ") != std::string::npos);
}

TEMPLATE_TEST_CASE("a decoder with sinks decodes with the bits of the whole", "[nn]", float,
                   double) {
  const auto decoder = drawn<TestType>(decoder_with_sinks(GENERATE(true, false)));
  const auto tokens = some_tokens(2, 37);
  for (const std::vector<Index>& cut : {std::vector<Index>(37, 1), {9, 1, 27}}) {
    check_steps(decoder, tokens, cut, decoder.state(2));
  }
}

TEMPLATE_TEST_CASE("a block with sinks decodes sequences of different lengths with their bits",
                   "[nn]", float, double) {
  using T = TestType;
  TransformerBlockOptions options = with(true, NormKind::layer_norm).block;
  options.sinks = true;
  TransformerBlock<T> block(options);
  draw_all(block.parameters(), 3);
  const auto x = random_tensor<T>(Shape{2, 9, 6}, 1);
  auto cache = key_value_cache<T>(block.options().attention(), 2, 9);
  (void)transformer_block_step(block, slice(x, 1, 0, 6), std::vector<Index>{6, 2}, cache);
  auto next = contiguous(slice(x, 1, 6, 1));
  copy(In<T, 2>(slice(select(x, 1), 0, 2, 1)), Out<T, 2>(select(next, 1)));
  const auto y = transformer_block_step(block, next, cache);
  for (const Index b : {0, 1}) {
    const Index length = b == 0 ? 7 : 3;
    const auto alone = block.forward(slice(slice(x, 0, b, 1), 1, 0, length), {.mask = {causal}});
    CHECK(bitwise_equal(In<T, 1>(select(select(y, b), 0)),
                        In<T, 1>(select(select(alone, 0), length - 1))));
  }
}

}  // namespace nn_sinks
