// char_gpt without its tape: generation from a cache, sampling, and the weights that are drawn.
#include <sstream>

#include "../../examples/char_gpt/bigram_model.hpp"
#include "../../examples/char_gpt/gpt.hpp"
#include "../../examples/char_gpt/report.hpp"
#include "../../examples/char_gpt/sample.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

using namespace char_gpt;
using headwise_tests::ContainsSubstring;

namespace {

/// Widths that are no multiples of a vector or of the panels of a product.
const ModelOptions odd = {
    .vocabulary = 37, .layers = 3, .heads = 3, .width = 39, .context = 23, .seed = 5};

/// A decoder that is far from where training starts: heads that attend, norms that are not 1.
template <class T>
Decoder<T> trained_decoder(const ModelOptions& options) {
  Decoder<T> decoder(options);
  decoder.for_each([&](const std::string&, auto& weight) {
    for (Index n = 0; n < weight.value.size(); ++n) {
      weight.value.data()[n] = T(7) * weight.value.data()[n] + T(0.001) * static_cast<T>(n % 13);
    }
  });
  return decoder;
}

std::vector<TokenId> some_tokens(Index count) {
  std::vector<TokenId> tokens;
  for (Index n = 0; n < count; ++n) tokens.push_back(static_cast<TokenId>((n * n + 3 * n) % 37));
  return tokens;
}

template <class T>
std::vector<T> numbers(const In<T, 1>& row) {
  return {row.data(), row.data() + row.size()};
}

/// The logits behind each of the tokens, by the tape.
template <class T>
std::vector<std::vector<T>> taped_logits(Decoder<T>& decoder, std::span<const TokenId> tokens) {
  Tape<T> tape;
  const headwise::NoGrad<T> values_only(tape);
  const auto all = decoder.logits(tape, {tokens.data(), Shape{Index{1}, std::ssize(tokens)}});
  std::vector<std::vector<T>> rows;
  for (Index n = 0; n < std::ssize(tokens); ++n) {
    rows.push_back(numbers<T>(headwise::select(all.value(), n)));
  }
  return rows;
}

/// What a generator says behind the tokens, in steps of `first` and then of `step` tokens.
template <class T>
std::vector<std::vector<T>> generated_logits(const Decoder<T>& decoder,
                                             std::span<const TokenId> tokens, std::size_t first,
                                             std::size_t step, const Context& context = {}) {
  DecoderGenerator<T> generator(decoder, context);
  std::vector<std::vector<T>> rows;
  for (std::size_t at = 0; at < tokens.size();) {
    const std::size_t count = std::min(at == 0 ? first : step, tokens.size() - at);
    rows.push_back(numbers<T>(generator.append(tokens.subspan(at, count))));
    at += count;
  }
  return rows;
}

/// The window whose last token is number n, by the rule as it reads: a token for which there is no
/// position begins a new one behind half of the last.
std::vector<TokenId> window_of(std::span<const TokenId> tokens, std::size_t n, Index context) {
  std::vector<TokenId> window;
  for (std::size_t at = 0; at <= n; ++at) {
    if (std::ssize(window) == context) window.erase(window.begin(), window.end() - context / 2);
    window.push_back(tokens[at]);
  }
  return window;
}

template <class T>
void check_every_cut() {
  Decoder<T> decoder = trained_decoder<T>(odd);
  const auto tokens = some_tokens(odd.context);
  const auto taped = taped_logits<T>(decoder, tokens);
  for (std::size_t prompt = 1; prompt <= tokens.size(); ++prompt) {
    CAPTURE(prompt);
    const auto generated = generated_logits<T>(decoder, tokens, prompt, 1);
    REQUIRE(generated.size() == tokens.size() - prompt + 1);
    for (std::size_t n = 0; n < generated.size(); ++n) CHECK(generated[n] == taped[n + prompt - 1]);
  }
  for (const std::size_t step : {2u, 5u, 7u}) {
    CHECK(generated_logits<T>(decoder, tokens, 3, step).back() == taped.back());
  }
}

const char* const sentence = "the sum of a row, the head of a row, the sum of heads. ";

std::string some_text() {
  std::string text;
  for (int n = 0; n < 30; ++n) text += sentence;
  return text;
}

const Options small = {
    .steps = 5, .layers = 2, .heads = 3, .width = 24, .context = 11, .batch = 3, .seed = 5};

ModelOptions model_options(const Text& text, const Options& o) {
  return {text.vocabulary(), o.layers, o.heads, o.width, o.context, 5};
}

}  // namespace

TEMPLATE_TEST_CASE("generation has the bits of the tape for any prompt and any steps behind it",
                   "[examples]", float, double) {
  check_every_cut<TestType>();
}

TEMPLATE_TEST_CASE("generation has the same bits on any number of threads", "[examples]", float,
                   double) {
  Decoder<TestType> decoder = trained_decoder<TestType>(odd);
  const auto tokens = some_tokens(3 * odd.context);
  const auto alone = generated_logits<TestType>(decoder, tokens, 6, 1);
  for (const Index threads : {2, 3, 8}) {
    headwise::ThreadPool pool(threads);
    CHECK(generated_logits<TestType>(decoder, tokens, 6, 1, {.executor = pool}) == alone);
  }
}

TEST_CASE("generation beyond the context goes on from half of it, for any cut into steps",
          "[examples]") {
  for (const Index context : {1, 2, 3, 8, 23}) {
    CAPTURE(context);
    ModelOptions options = odd;
    options.context = context;
    Decoder<float> decoder = trained_decoder<float>(options);
    const auto tokens = some_tokens(3 * context + 5);
    const auto generated = generated_logits<float>(decoder, tokens, 1, 1);
    for (std::size_t n = 0; n < tokens.size(); ++n) {
      CAPTURE(n);
      CHECK(generated[n] == taped_logits<float>(decoder, window_of(tokens, n, context)).back());
    }
    for (const std::size_t first : {2u, 9u, 40u, 200u}) {
      for (const std::size_t step : {1u, 4u, 30u}) {
        CHECK(generated_logits<float>(decoder, tokens, first, step).back() == generated.back());
      }
    }
  }
}

TEST_CASE("generation takes no fresh memory behind its first windows", "[examples]") {
  headwise::RecycledMemory memory;  // what it keeps grows by each block that it has to ask for
  const Decoder<float> decoder = trained_decoder<float>(odd);
  DecoderGenerator<float> generator(decoder, {.memory = &memory});
  const auto tokens = some_tokens(5 * odd.context);
  std::size_t kept = 0;
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    generator.append({&tokens[n], 1});
    if (std::ssize(tokens) < static_cast<Index>(n) + 3 * odd.context)
      CHECK(memory.kept_bytes() == kept);
    kept = memory.kept_bytes();
  }
  CHECK(kept > 0);
}

TEST_CASE("generation refuses no token and one that has no row", "[examples]") {
  const Decoder<float> decoder(odd);
  DecoderGenerator<float> generator(decoder);
  CHECK_THROWS_WITH(generator.append({}),
                    "DecoderGenerator::append: tokens are none, expected one at least");
  const TokenId outside = 37;
  CHECK_THROWS_AS(generator.append({&outside, 1}), headwise::ArgumentError);
}

TEST_CASE("a sample is a function of the options, and of its prompt", "[examples]") {
  const Text text(some_text(), small.context, "text");
  Gpt model(model_options(text, small));
  Options options = small;
  options.sample = 40;
  options.prompt = "the sum of a row, the";
  const Sample sample = write_sample(model, text, options);
  CHECK(sample.text.starts_with(options.prompt));
  CHECK(sample.text.size() == options.prompt.size() + 40);
  CHECK(sample.tokens_s > 0);
  headwise::ThreadPool pool(3);
  CHECK(write_sample(model, text, options, {.executor = pool}).text == sample.text);
  Options other = options;
  other.seed = 6;
  CHECK(write_sample(model, text, other).text != sample.text);
  other = options;
  other.prompt = "row";
  CHECK(write_sample(model, text, other).text.substr(3) != sample.text.substr(21));
  options.sample = 0;
  CHECK(write_sample(model, text, options).text.empty());
  CHECK(std::isnan(write_sample(model, text, options).tokens_s));
}

TEST_CASE("temperature 0 and one of the likeliest write the greatest logits", "[examples]") {
  const Text text(some_text(), small.context, "text");
  Gpt model(model_options(text, small));
  Options options = small;
  options.sample = 30;
  Options likeliest = options, one = options;
  likeliest.temperature = 0;
  one.top_k = 1;
  const std::string written = write_sample(model, text, likeliest).text;
  CHECK(write_sample(model, text, one).text == written);
  CHECK(write_sample(model, text, options).text != written);

  const auto generator = model.generator({});
  TokenId last = text.held_out().front();
  std::string expected;
  for (int n = 0; n < 30; ++n) {
    const auto logits = numbers<float>(generator->append({&last, 1}));
    last = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    expected += text.decode({&last, 1});
  }
  CHECK(written == expected);
}

TEST_CASE("a model of pairs of characters writes what follows the last one", "[examples]") {
  const Text text(some_text(), small.context, "text");
  BigramModel model({.vocabulary = text.vocabulary()});
  Options options = small;
  options.sample = 25;
  CHECK(write_sample(model, text, options).text.size() == 25);
  model.parameters().begin()->view.data()[3] = 50;  // the first character is followed by number 3
  const TokenId first = 0, other = 1;
  const auto generator = model.generator({});
  CHECK(generator->append({&first, 1})(3) == 50.0f);
  CHECK(generator->append({&other, 1})(3) == 0.0f);
}

TEST_CASE("a prompt of characters that the text does not have is refused by the first of them",
          "[examples]") {
  const Text text(some_text(), small.context, "text");
  Options options = small;
  options.sample = 1;
  options.prompt = "the \u00e9t\u00e9";
  CHECK_THROWS_WITH(prompt_tokens(text, options),
                    "--prompt holds \"\u00e9\" (U+00E9), expected characters of the text");
  options.prompt = "the\n";
  CHECK_THROWS_WITH(prompt_tokens(text, options),
                    "--prompt holds \"\u21b5\" (U+000A), expected characters of the text");
  options.prompt = "the\xFF";
  CHECK_THROWS_WITH(prompt_tokens(text, options), "--prompt is not UTF-8 at byte 3");
  options.prompt = "the head";
  CHECK(text.decode(prompt_tokens(text, options)) == "the head");
  options.prompt = "";
  CHECK(prompt_tokens(text, options) == std::vector<TokenId>{text.held_out().front()});
}

TEST_CASE("the options of a sample are what the command line says, or are refused", "[examples]") {
  const auto parsed = [](std::vector<const char*> arguments) { return parse_options(arguments); };
  const Options o = parsed({"--sample", "9", "--prompt", "a b", "--temperature", "0.5", "--top-k",
                            "4", "--heads-svg", "x.svg"});
  CHECK(o.prompt == "a b");
  CHECK(o.temperature == 0.5);
  CHECK(o.top_k == 4);
  CHECK(o.heads_svg == "x.svg");
  CHECK(parsed({}).temperature == 1);
  CHECK(parsed({"--temperature", "1e-2"}).temperature == 0.01);
  for (const char* bad : {"", "warm", "-1", "nan", "inf", "1,5", "1.5 ", "1e999"}) {
    CHECK_THROWS_WITH(parsed({"--temperature", bad}), "--temperature is \"" + std::string(bad) +
                                                          "\", expected a number of 0 or more");
  }
  CHECK_THROWS_WITH(parsed({"--top-k", "-1"}),
                    "--top-k is \"-1\", expected a whole number of 0 or more");
  CHECK_THROWS_WITH(parsed({"--prompt", "a"}),
                    "--prompt is given, expected a --sample beside it: how much to write");
}

TEST_CASE("the report has how fast a sample was written, and null without one", "[examples]") {
  const Report report{.held_out_loss = 2, .tokens_s = 1250};
  CHECK_THAT(json_line(report), ContainsSubstring(", \"tokens_s\": 1250}"));
  CHECK_THAT(json_line(Report{}), ContainsSubstring(", \"tokens_s\": null}"));
}

TEST_CASE("attention weights of a decoder sum to 1 and are 0 above the diagonal", "[examples]") {
  const Decoder<double> decoder = trained_decoder<double>(odd);
  for (const Index length : {1, 13, 23}) {
    const auto weights = attention_weights<double>(decoder, some_tokens(length));
    REQUIRE(weights.shape() == Shape{odd.layers, odd.heads, length, length});
    headwise::for_each_index(Shape{odd.layers, odd.heads, length}, [&](const Shape<3>& at) {
      double sum = 0;
      for (Index j = 0; j < length; ++j) {
        const double p = weights(at[0], at[1], at[2], j);
        if (j > at[2]) CHECK(p == 0);
        sum += p;
      }
      CHECK(std::abs(sum - 1) < 1e-12);
    });
  }
}

TEST_CASE("heads of the first layer attend by their queries and keys", "[examples]") {
  // softmax(q k^T / sqrt(d)) of the layer norm of token and position, head by head, in plain loops.
  const Decoder<double> decoder = trained_decoder<double>(odd);
  const Index L = 9, D = odd.width, d = D / odd.heads;
  const auto tokens = some_tokens(L);
  const auto weights = attention_weights<double>(decoder, tokens);
  const Block<double>& block = decoder.blocks().front();
  std::vector<std::vector<double>> projected;
  for (Index i = 0; i < L; ++i) {
    std::vector<double> x, row(static_cast<std::size_t>(2 * D));
    double mean = 0, variance = 0;
    for (Index n = 0; n < D; ++n) {
      x.push_back(decoder.token()(tokens[static_cast<std::size_t>(i)], n) +
                  decoder.position()(i, n));
      mean += x.back() / static_cast<double>(D);
    }
    for (const double value : x)
      variance += (value - mean) * (value - mean) / static_cast<double>(D);
    for (Index n = 0; n < D; ++n) {
      const double normed = (x[static_cast<std::size_t>(n)] - mean) / std::sqrt(variance + 1e-5) *
                            block.norm1.value(n);
      for (Index c = 0; c < 2 * D; ++c) {
        row[static_cast<std::size_t>(c)] += normed * block.qkv.value(n, c);
      }
    }
    projected.push_back(row);
  }
  for (Index h = 0; h < odd.heads; ++h) {
    for (Index i = 0; i < L; ++i) {
      std::vector<double> p;
      double sum = 0;
      for (Index j = 0; j <= i; ++j) {
        double score = 0;
        for (Index t = h * d; t < (h + 1) * d; ++t) {
          score += projected[static_cast<std::size_t>(i)][static_cast<std::size_t>(t)] *
                   projected[static_cast<std::size_t>(j)][static_cast<std::size_t>(D + t)];
        }
        p.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        sum += p.back();
      }
      for (Index j = 0; j <= i; ++j) {
        const double wanted = p[static_cast<std::size_t>(j)] / sum;
        CHECK(std::abs(weights(0, h, i, j) - wanted) < 1e-12);
      }
    }
  }
}

TEST_CASE("heads are drawn on what is held out, from the first word that begins in it",
          "[examples]") {
  const Text text(some_text(), small.context, "text");
  const std::size_t all = text.held_out().size();
  CHECK(text.decode(text.held_out().first(11)) == "the sum of ");
  CHECK(text.decode(window_to_draw(text, 7)) == "sum of ");
  CHECK(text.decode(window_to_draw(text, all - 4)).starts_with("sum of "));
  CHECK(text.decode(window_to_draw(text, all - 3)).starts_with("the sum of "));
  const Text one_word(std::string(200, 'x'), small.context, "text");
  CHECK(text.decode(window_to_draw(one_word, 12)).size() == 12);
}

TEST_CASE("the picture of the heads has a panel a head, and the characters at its edges",
          "[examples]") {
  const Text text("a<b\n " + some_text() + "a<b\n ", small.context, "text");
  const Gpt model(model_options(text, small));
  const auto tokens = text.held_out().first(11);
  const auto panels = attention_panels(model.attention_weights(tokens, {}));
  REQUIRE(panels.size() == 6);
  CHECK(panels[4].title == "layer 1, head 1");
  CHECK(panels[4].values(0, 0) == 1);
  CHECK(headwise::examples::is_masked(panels[4].values(3, 4)));
  CHECK(headwise::examples::any_masked(panels));

  std::ostringstream picture;
  const std::vector<std::string> names = {"a",
                                          visible(U' '),
                                          visible(U'\n'),
                                          visible(U'\t'),
                                          visible(U'<'),
                                          visible(1),
                                          "g",
                                          "h",
                                          "i",
                                          "j",
                                          "k"};
  headwise::examples::write_svg(picture, panels, {.panels_a_row = 3, .names = names});
  for (const char* name : {"a", "\u00b7", "\u21b5", "\u2192", "&lt;", "\u25a1", "k"}) {
    CHECK_THAT(picture.str(), ContainsSubstring("\">" + std::string(name) + "</text>"));
  }
  CHECK(picture.str().find("\">10</text>") == std::string::npos);
}
