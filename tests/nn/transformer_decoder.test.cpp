// TransformerDecoder: its modules in a row, their gradients, and decoding with the same bits.
#include "headwise/nn/transformer_decoder.hpp"

#include "headwise/nn/rms_norm.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "headwise/optim/adamw.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/catch.hpp"
#include "support/laid_out.hpp"

namespace nn_transformer_decoder {

using namespace headwise_tests;

namespace {

/// The decoder by its modules.
template <class T>
Tensor2<T> by_modules(const TransformerDecoder<T>& decoder, const Tensor2<std::int64_t>& tokens,
                      const TransformerDecoderCall& call) {
  const TransformerDecoderOptions& o = decoder.options();
  const TransformerDecoderParameters<T>& p = decoder.parameters();
  const Index B = tokens.extent(0), L = tokens.extent(1), D = o.block.d_model;
  Tensor3<T> h({B, L, D});
  for_each_index(h.shape(), [&](const Shape<3>& i) {
    h(i) = p.token(Index(tokens(i[0], i[1])), i[2]) + p.position(i[1], i[2]);
  });
  for (Index n = 0; n < o.num_blocks; ++n) {
    TransformerBlock<T> block(o.block);
    block.parameters() = p.blocks[std::size_t(n)];
    h = block.forward(h, call.block<T>(decoder.options(), n));
  }
  const Tensor2<T> rows = contiguous(In<T, 2>(merge_rows(h)));
  Embedding<T> head(o.vocabulary, D);
  head.parameters().table = p.token;
  if (!o.block.norm_first) return head.logits(rows);
  if (o.block.norm == NormKind::rms_norm) {
    RMSNorm<T> norm(D, true, o.block.norm_epsilon);
    norm.parameters().gamma = p.norm.gamma;
    return head.logits(norm.forward(rows));
  }
  LayerNorm<T> norm(D, true, o.block.norm_epsilon);
  norm.parameters() = p.norm;
  return head.logits(norm.forward(rows));
}

}  // namespace

TEMPLATE_TEST_CASE("a TransformerDecoder is its embeddings, blocks, norm and head in a row", "[nn]",
                   float, double) {
  using T = TestType;
  const bool norm_first = GENERATE(false, true);
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto decoder = drawn<T>(with(norm_first, norm));
  const auto tokens = some_tokens(2, 9);
  TransformerDecoderCall call = dropping();
  call.path = path;
  TransformerDecoderCache<T> cache;
  const auto logits = decoder.forward(tokens, call, cache);
  CHECK(logits.shape() == Shape{18, 7});
  CHECK(bitwise_equal(logits, by_modules(decoder, tokens, call)));
  CHECK(bitwise_equal(logits, decoder.forward(tokens, call)));
  CHECK(bitwise_equal(decoder.forward(tokens), by_modules(decoder, tokens, {})));
}

TEST_CASE("the gradients of a TransformerDecoder are its differences", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  auto options = with(norm_first, norm);
  options.max_length = 5;  // of which the last is not met
  auto decoder = drawn<double>(options);
  const auto tokens = some_tokens(2, 4);
  const auto d_logits = random_tensor<double>(Shape{8, 7}, 3);
  const TransformerDecoderCall call = norm_first ? dropping() : TransformerDecoderCall{};
  TransformerDecoderCache<double> cache;
  auto gradients = decoder.zero_gradients();
  (void)decoder.forward(tokens, call, cache);
  decoder.backward(d_logits, cache, gradients);
  // b_K has no gradient: its differences are what rounding leaves.
  GradientCheck<double> check({.tolerance = 1e-7, .stencil = Stencil::five_point});
  check_inputs(check, decoder.parameters(), gradients);
  const auto report =
      check.run([&] { return weighted_sum(d_logits, decoder.forward(tokens, call)); });
  CAPTURE(norm_first, static_cast<int>(norm), report);
  CHECK(report);
}

TEST_CASE("the parameters of a TransformerDecoder have names, and its gradients the same", "[nn]") {
  auto options = with(true, NormKind::layer_norm);
  options.block.attention_bias = options.block.feed_forward_bias = false;
  const TransformerDecoder<double> decoder(options);
  std::string blocks;
  for (const std::string block : {"m.blocks.0.", "m.blocks.1."}) {
    blocks += block + "norm1.gamma " + block + "norm1.beta " + block + "attention.W_Q " + block +
              "attention.W_K " + block + "attention.W_V " + block + "attention.W_O " + block +
              "norm2.gamma " + block + "norm2.beta " + block + "feed_forward.W_up " + block +
              "feed_forward.W_down ";
  }
  CHECK(names_of(decoder.parameters(), "m.") ==
        "m.token m.position " + blocks + "m.norm.gamma m.norm.beta ");
  CHECK(names_of(decoder.zero_gradients(), "m.") == names_of(decoder.parameters(), "m."));
  CHECK(values_of<double>(decoder.zero_gradients()) ==
        std::vector<double>(values_of<double>(decoder.parameters()).size()));
  options.block.norm_bias = false;
  const TransformerDecoder<double> plain(options);
  CHECK(names_of(plain.parameters()).ends_with("feed_forward.W_down norm.gamma "));
  const TransformerDecoder<double> post(with(false, NormKind::layer_norm));
  CHECK(names_of(post.parameters()).ends_with("feed_forward.b_down "));
}

TEST_CASE("a TransformerDecoder starts by seed, no two of its blocks alike", "[nn]") {
  auto options = with(true, NormKind::layer_norm);
  const TransformerDecoder<double> a(options), same(options);
  options.block.seed = 1;
  const TransformerDecoder<double> other(options);
  const auto values = values_of<double>(a.parameters());
  CHECK(same_bits(values, values_of<double>(same.parameters())));
  const auto w_o = [](const TransformerDecoder<double>& of, std::size_t n) {
    return of.parameters().blocks[n].attention.w_o(0, 0);
  };
  CHECK(w_o(a, 0) != w_o(a, 1));
  CHECK(w_o(a, 1) != w_o(other, 0));
  CHECK(w_o(a, 0) != w_o(other, 0));
  CHECK(a.parameters().token(0, 0) != other.parameters().token(0, 0));
  CHECK(a.parameters().token(0, 0) != a.parameters().position(0, 0));
  const TransformerBlock<double> block(a.options().block_options(1));
  CHECK(same_bits(values_of<double>(block.parameters()),
                  values_of<double>(a.parameters().blocks[1])));
  CHECK(a.parameters().norm.gamma(5) == 1);
}

TEST_CASE("each block of a TransformerDecoder drops by a mask of its own", "[nn]") {
  const auto call = dropping();
  const auto options = with(true, NormKind::layer_norm);
  const auto first = call.block<float>(options, 0), second = call.block<float>(options, 1);
  CHECK(first.output_dropout.seed != second.output_dropout.seed);
  CHECK(first.output_dropout.seed != first.hidden_dropout.seed);
  CHECK(first.output_dropout.seed == call.block<float>(options, 0).output_dropout.seed);
  CHECK(first.mask.is_causal());
}

TEST_CASE("a TransformerDecoder has the same bits for any strides and number of threads", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const auto decoder = drawn<float>(with(norm_first, NormKind::layer_norm, 48));
  const auto tokens = some_tokens(5, 37);  // so many that threads share them
  Tensor2<std::int32_t> turned({37, 5});
  for_each_index(tokens.shape(), [&](const Shape<2>& i) {
    turned(i[1], i[0]) = static_cast<std::int32_t>(tokens(i));
  });
  const auto d_logits = random_tensor<float>(Shape{185, 7}, 6);
  const LaidOut<float, 2> wide(In<float, 2>(d_logits), Layout::in_wider_rows);
  const auto run = [&](auto input, In<float, 2> flow, const Context& context) {
    TransformerDecoderCache<float> cache, moved;
    auto gradients = decoder.zero_gradients();
    const auto logits = decoder.forward(input, dropping(), cache, context);
    moved = std::move(cache);
    decoder.backward(flow, moved, gradients, context);
    auto values = values_of<float>(gradients);
    values.insert(values.end(), logits.begin(), logits.end());
    return values;
  };
  const In<std::int64_t, 2> dense = tokens;
  const auto plain = run(dense, d_logits, {});
  for (const Index threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(same_bits(plain, run(dense, d_logits, {.executor = pool})));
  }
  CHECK(same_bits(plain, run(In<std::int32_t, 2>(transpose(turned, 0, 1)), wide.view, {})));
}

TEST_CASE("backward of a TransformerDecoder adds to the gradients, zero sets them back", "[nn]") {
  const bool norm_first = GENERATE(false, true);
  const auto decoder = drawn<double>(with(norm_first, NormKind::layer_norm));
  const auto d_logits = random_tensor<double>(Shape{10, 7}, 7);
  TransformerDecoderCache<double> cache;
  (void)decoder.forward(some_tokens(2, 5), {}, cache);
  auto once = decoder.zero_gradients(), twice = decoder.zero_gradients();
  decoder.backward(d_logits, cache, once);
  for (int n = 0; n < 2; ++n) decoder.backward(d_logits, cache, twice);
  const auto a = values_of<double>(once), b = values_of<double>(twice);
  for (std::size_t n = 0; n < a.size(); ++n) {
    CHECK(std::abs(b[n] - 2 * a[n]) <= 1e-13 * (1 + std::abs(a[n])));
  }
  twice.zero();
  CHECK(same_bits(values_of<double>(twice), values_of<double>(decoder.zero_gradients())));
  for (const Shape<2> empty : {Shape{0, 5}, Shape{2, 0}}) {
    CHECK(decoder.forward(Tensor2<std::int64_t>(empty), {}, cache).shape() == Shape{0, 7});
    decoder.backward(Tensor2<double>({0, 7}), cache, once);
    CHECK(same_bits(values_of<double>(once), a));
  }
}

TEMPLATE_TEST_CASE(
    "a TransformerDecoder decodes with the bits of the whole, for any cut into steps", "[nn]",
    float, double) {
  using T = TestType;
  const bool norm_first = GENERATE(false, true);
  const NormKind norm = GENERATE(NormKind::layer_norm, NormKind::rms_norm);
  const Index B = 2, L = 37;
  const auto decoder = drawn<T>(with(norm_first, norm, 30));
  const auto tokens = some_tokens(B, L);
  const auto whole = decoder.forward(tokens);  // [B L, V]
  ThreadPool pool(3);
  auto state = decoder.state(B, L);
  for (const std::vector<Index>& cut :
       {std::vector<Index>(37, 1), {37}, {5, 1, 31}, {1, 36}, {18, 19}}) {
    state.clear();
    for (const Index n : cut) {
      const Index at = state.length();
      const Context context = n % 2 == 0 ? Context{.executor = pool} : Context{};
      const In<std::int64_t, 2> next = slice(tokens, 1, at, n);
      const auto logits = decoder.step(next, state, context);
      CAPTURE(at, n);
      REQUIRE(logits.shape() == Shape{B, 7});
      for (Index b = 0; b < B; ++b) {
        CHECK(bitwise_equal(In<T, 1>(select(logits, b)),
                            In<T, 1>(select(whole, b * L + at + n - 1))));
      }
    }
    CHECK(state.length() == L);
    CHECK(state.room() == 0);
  }
}

TEST_CASE("AdamW on what collect makes of a TransformerDecoder lowers the loss", "[nn]") {
  TransformerDecoder<float> decoder(
      {.vocabulary = 7, .max_length = 12, .num_blocks = 2, .block = {.d_model = 16}});
  auto gradients = decoder.zero_gradients();
  ParameterList<float> list;
  collect(list, "", decoder.parameters(), gradients);
  CHECK(list.size() == 2 + 2 * 16 + 2);
  CHECK(list[0].name == "token");
  AdamW<float> optimizer(list, {.learning_rate = 1e-2});
  Tensor2<std::int64_t> tokens({2, 12});
  Tensor1<std::int64_t> targets(24);
  for (Index n = 0; n < 24; ++n) {
    tokens.data()[n] = n % 7;
    targets(n) = (n + 1) % 7;
  }
  Tensor1<float> logsumexp(24);
  std::vector<float> losses;
  for (int step = 0; step < 10; ++step) {
    TransformerDecoderCache<float> cache;
    gradients.zero();
    auto logits = decoder.forward(tokens, {}, cache);
    losses.push_back(cross_entropy_forward(logits, targets, {}, logsumexp));
    Tensor2<float> d_logits(logits.shape());
    cross_entropy_backward(1, logits, targets, logsumexp, {}, d_logits);
    decoder.backward(d_logits, cache, gradients);
    optimizer.step();
  }
  CAPTURE(losses);
  CHECK(std::abs(losses.front() - std::log(7.0f)) < 0.05f);
  CHECK(losses.back() < 0.7f * losses.front());
}

}  // namespace nn_transformer_decoder
