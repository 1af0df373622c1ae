// char_gpt without its tape: generation from a cache, and sampling.
#include "../../examples/char_gpt/bigram_model.hpp"
#include "../../examples/char_gpt/gpt.hpp"
#include "../../examples/char_gpt/report.hpp"
#include "../../examples/char_gpt/sample.hpp"
#include "generation_case.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

namespace examples_generation {

using namespace char_gpt;
using headwise_tests::ContainsSubstring;

namespace {

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

TEST_CASE("a decoder refuses tokens that do not lie one behind the other", "[examples]") {
  Decoder<float> decoder(odd);
  const auto tokens = some_tokens(8);
  Tape<float> tape;
  CHECK_THROWS_WITH(decoder.logits(tape, In<TokenId, 2>(tokens.data(), Shape{2, 3}, Shape{4, 1})),
                    "Decoder::logits: inputs have gaps or another order, expected them dense");
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
  CHECK(parsed({"--sample", "1", "--temperature", "1e-2"}).temperature == 0.01);
  for (const char* bad : {"", "warm", "-1", "nan", "inf", "1,5", "1.5 ", "1e999"}) {
    CHECK_THROWS_WITH(parsed({"--temperature", bad}), "--temperature is \"" + std::string(bad) +
                                                          "\", expected a number of 0 or more");
  }
  CHECK_THROWS_WITH(parsed({"--top-k", "-1"}),
                    "--top-k is \"-1\", expected a whole number of 0 or more");
  for (const char* name : {"--prompt", "--temperature", "--top-k"}) {
    const std::string why = " is given, expected a --sample beside it: how much to write";
    CHECK_THROWS_WITH(parsed({name, "1"}), name + why);
    CHECK_NOTHROW(parsed({name, "1", "--sample", "2"}));
  }
}

TEST_CASE("the report has how fast a sample was written, and null without one", "[examples]") {
  const Report report{.held_out_loss = 2, .tokens_s = 1250};
  CHECK_THAT(json_line(report), ContainsSubstring(", \"tokens_s\": 1250}"));
  CHECK_THAT(json_line(Report{}), ContainsSubstring(", \"tokens_s\": null}"));
}

}  // namespace examples_generation
