// Sinks, slopes and biases of distances as parameters of modules, blocks and decoders.
#include <cmath>

#include "headwise/nn/head_parallel.hpp"
#include "headwise/nn/transformer_block_step.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/score_tensors.hpp"

namespace nn_own_scores {

using namespace headwise_tests;

namespace {

constexpr Index H = 4, reach = 3;

/// Which of them are the module's own.
struct Own {
  bool sinks, slopes, table;
};
constexpr Own none{false, false, false}, all{true, true, true};

MultiHeadAttentionOptions options_with(const Own& own, bool self) {
  MultiHeadAttentionOptions o{.d_model = 12, .num_heads = H, .num_kv_heads = 2, .d_value = 5};
  o.sinks = own.sinks, o.alibi = own.slopes, o.relative_reach = own.table ? reach : 0;
  if (!self) o.kdim = 7, o.vdim = 3;
  return o;
}

/// Those that are not the module's, or are.
template <class T>
ScoreTensors<T> chosen(const ScoreTensors<T>& of, const Own& own, bool as_own) {
  ScoreTensors<T> some;
  if (own.sinks == as_own) some.sinks = of.sinks;
  if (own.slopes == as_own) some.slopes = of.slopes;
  if (own.table == as_own) some.table = of.table;
  return some;
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
struct OwnCase {
  Own own;
  MultiHeadAttention<T> with, without;
  Tensor3<T> x, key, value, dy;
  ScoreTensors<T> numbers;

  explicit OwnCase(bool self, const Own& which = all, Index B = 2)
      : own(which),
        with(options_with(own, self)),
        without(options_with(none, self)),
        x(random_tensor<T>(Shape{B, Index{19}, Index{12}}, 1)),
        key(random_tensor<T>(Shape{B, Index{23}, Index{7}}, 2)),
        value(random_tensor<T>(Shape{B, Index{23}, Index{3}}, 3)),
        dy(random_tensor<T>(x.shape(), 4)) {
    numbers.sinks = random_tensor<T>(Shape{H}, 5);
    numbers.slopes = random_tensor<T>(Shape{H}, 6);
    numbers.table = random_tensor<T>(Shape{H, 2 * reach + 1}, 7);
    auto& p = with.parameters();
    draw_all(p, 8);
    detail::for_each_of_both("OwnCase", "", without.parameters(), p,
                             [](auto to, auto from) { copy(In<T, decltype(to)::rank>(from), to); });
    const ScoreTensors<T> mine = chosen(numbers, own, true);
    if (own.sinks) p.sinks = mine.sinks;
    if (own.slopes) p.alibi_slopes = mine.slopes;
    if (own.table) p.relative_bias = mine.table;
  }

  Result<T> run(const MultiHeadAttention<T>& module, MultiHeadAttentionCall<T> call,
                const ScoreTensors<T>& given, ScoreTensors<T>& d_given) const {
    call.score = given.options({});
    MultiHeadAttentionCache<T> cache;
    Result<T> r{{}, {}, module.zero_gradients()};
    r.gradients.score = d_given.gradients();
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
void check_same(const Result<T>& own, const Result<T>& of_call) {
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
}

TransformerDecoderOptions decoder_with_own_scores(bool window) {
  auto options = with(true, NormKind::rms_norm);
  options.position_vectors = false;
  if (window) options.window = 5, options.first_keys = 2;
  options.block.sinks = options.block.alibi = true;
  options.block.relative_reach = 2;
  return options;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "what changes scores and is a module's own does what a call's does, to the bit, and has its "
    "gradient, on both paths and over packed sequences",
    "[nn]", float, double) {
  using T = TestType;
  const bool self = GENERATE(true, false), packed = GENERATE(false, true);
  const Path path = packed ? Path::flash : GENERATE(Path::flash, Path::materialized);
  const std::vector<Index> starts = {0, 7, 7, 19}, key_starts = {0, 3, 11, 23};
  MultiHeadAttentionCall<T> call{.mask = {causal}, .path = path};
  if (packed) {
    call.query_starts = starts;
    if (!self) call.key_starts = key_starts;
  }
  for (const Own& own :
       {all, Own{true, false, false}, Own{false, true, false}, Own{false, false, true}}) {
    CAPTURE(self, packed, path == Path::flash, own.sinks, own.slopes, own.table);
    const OwnCase<T> of(self, own, packed ? 1 : 2);
    ScoreTensors<T> d_all = of.numbers.zeros(), d_rest = chosen(d_all, own, false);
    const Result<T> of_call = of.run(of.without, call, of.numbers, d_all);
    const Result<T> mine = of.run(of.with, call, chosen(of.numbers, own, false), d_rest);
    check_same(mine, of_call);
    const auto& g = mine.gradients;
    const auto same = [](const auto& a, const auto& b) { CHECK(bitwise_equal(a, b)); };
    same(own.sinks ? g.grad_sinks() : In<T, 1>(d_rest.sinks), In<T, 1>(d_all.sinks));
    same(own.slopes ? g.grad_alibi_slopes() : In<T, 1>(d_rest.slopes), In<T, 1>(d_all.slopes));
    same(own.table ? g.grad_relative_bias() : In<T, 2>(d_rest.table), In<T, 2>(d_all.table));
  }
}

TEST_CASE("each of what changes a module's scores changes what it says", "[nn]") {
  const OwnCase<double> of(true);
  const auto y = of.with.forward(of.x);
  using Parameters = MultiHeadAttentionParameters<double>;
  const auto changed = [&](void (*change)(Parameters&)) {
    MultiHeadAttention<double> other = of.with;
    change(other.parameters());
    return other.forward(of.x);
  };
  CHECK_FALSE(close_to(changed([](Parameters& p) { p.sinks(1) += 1; }), y, 1e-6));
  CHECK_FALSE(close_to(changed([](Parameters& p) { p.alibi_slopes(1) += 1; }), y, 1e-6));
  CHECK_FALSE(close_to(changed([](Parameters& p) { p.relative_bias(1, reach) += 1; }), y, 1e-6));
}

TEST_CASE("a module adds the gradients of what changes its scores to what was there", "[nn]") {
  const OwnCase<double> of(true);
  MultiHeadAttentionCache<double> cache;
  (void)of.with.forward(of.x, {}, cache);
  auto once = of.with.zero_gradients(), twice = of.with.zero_gradients();
  (void)of.with.backward(of.dy, cache, once);
  (void)of.with.backward(of.dy, cache, twice);
  (void)of.with.backward(of.dy, cache, twice);
  for (Index h = 0; h < H; ++h) {
    CHECK(twice.sinks(h) == 2 * once.sinks(h));
    CHECK(twice.alibi_slopes(h) == 2 * once.alibi_slopes(h));
    CHECK(twice.relative_bias(h, 1) == 2 * once.relative_bias(h, 1));
    CHECK((once.sinks(h) != 0 && once.alibi_slopes(h) != 0 && once.relative_bias(h, 1) != 0));
  }
  twice.zero();
  CHECK(bitwise_equal(twice.sinks, Tensor1<double>(Shape{H})));
  CHECK(bitwise_equal(twice.relative_bias, Tensor2<double>(Shape{H, 2 * reach + 1})));
}

TEST_CASE("sinks and biases of distances begin with 0, slopes with those of their paper", "[nn]") {
  MultiHeadAttention<double> module(options_with(all, true));
  const auto& p = module.parameters();
  CHECK(bitwise_equal(p.sinks, Tensor1<double>(Shape{H})));
  CHECK(bitwise_equal(p.relative_bias, Tensor2<double>(Shape{H, 2 * reach + 1})));
  CHECK(bitwise_equal(p.alibi_slopes, Tensor1<double>({4}, {0.25, 0.0625, 0.015625, 0.00390625})));
  const TransformerBlock<double> block({.d_model = 8, .num_heads = 2, .alibi = true});
  CHECK(bitwise_equal(block.parameters().attention.alibi_slopes,
                      Tensor1<double>({2}, {0.0625, 0.00390625})));
}

TEST_CASE("a trace names the gradient of a module's sinks, of one call alone", "[nn]") {
  const OwnCase<double> of(true);
  MultiHeadAttentionCache<double> cache;
  Trace trace;
  auto gradients = of.with.zero_gradients();
  (void)of.with.forward(of.x, {}, cache, {.trace = &trace});
  (void)of.with.backward(of.dy, cache, gradients);
  (void)of.with.backward(of.dy, cache, gradients, {.trace = &trace});
  const In<double, 1> traced = trace.view<1>("dsinks");
  for (Index h = 0; h < H; ++h) CHECK(gradients.sinks(h) == 2 * traced(h));
  CHECK(trace.view<2>("drelative_bias").extent(1) == 2 * reach + 1);
  const In<double, 4> scores = trace.view<4>("A"), weights = trace.view<4>("AS");
  double kept = 0, of_keys = 0;
  for (Index j = 0; j < 19; ++j) {
    kept += weights(1, 2, 3, j);
    of_keys += std::exp(scores(1, 2, 3, j));
  }
  CHECK(kept == Approx(of_keys / (of_keys + std::exp(of.numbers.sinks(2)))));  // the sink's rest
}

TEST_CASE("shards have what changes the scores of their heads and sum to the whole", "[nn]") {
  const OwnCase<double> of(true);
  const MultiHeadAttentionCall<double> call{.mask = {causal}};
  const auto whole = of.with.forward(of.x, call);
  auto sum = head_shard(of.with, 0, 2).forward(of.x, call);
  const auto rest = head_shard(of.with, 2, 2).forward(of.x, call);
  for (Index n = 0; n < sum.size(); ++n) sum.data()[n] += rest.data()[n];
  CHECK(close_to(sum, whole, 1e-13));
}

TEST_CASE("the gradients of a decoder whose blocks have scores of their own are its differences",
          "[nn]") {
  auto decoder = drawn<double>(decoder_with_own_scores(GENERATE(true, false)));
  check_gradients(decoder, some_tokens(2, 7));
  std::string names;
  decoder.parameters().for_each([&](const std::string& name, auto) { names += name + ' '; });
  for (const std::string name : {"sinks", "alibi_slopes", "relative_bias"}) {
    CHECK(names.find(" blocks.1.attention." + name + " ") != std::string::npos);
  }
}

TEMPLATE_TEST_CASE(
    "a decoder whose blocks have scores of their own decodes with the bits of the whole", "[nn]",
    float, double) {
  const auto decoder = drawn<TestType>(decoder_with_own_scores(GENERATE(true, false)));
  const auto tokens = some_tokens(2, 37);
  for (const std::vector<Index>& cut : {std::vector<Index>(37, 1), {9, 1, 27}}) {
    check_steps(decoder, tokens, cut, decoder.state(2));
  }
}

TEMPLATE_TEST_CASE(
    "a block with scores of its own decodes sequences of different lengths with their bits", "[nn]",
    float, double) {
  using T = TestType;
  TransformerBlockOptions options = decoder_with_own_scores(false).block;
  options.alibi = GENERATE(true, false);
  if (!options.alibi) options.relative_reach = 0;  // sinks alone: all in one call
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

}  // namespace nn_own_scores
