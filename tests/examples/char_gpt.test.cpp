// What char_gpt does around its model: the text, batches, the loop, its reports.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "../../examples/char_gpt/bigram_model.hpp"
#include "../../examples/char_gpt/progress.hpp"
#include "../../examples/char_gpt/report.hpp"
#include "../../examples/char_gpt/sample.hpp"
#include "../../examples/char_gpt/training.hpp"
#include "../io/written_files.hpp"

namespace examples_char_gpt {

using namespace char_gpt;
using headwise_tests::ContainsSubstring;
using headwise_tests::TemporaryFolder;

namespace {

/// A text of words in an order that a bigram model can learn a part of.
std::string words(std::size_t count) {
  std::string text;
  for (std::size_t n = 0; n < count; ++n) {
    text += n % 7 == 3 ? "\u00e9t\u00e9 " : n % 3 == 0 ? "one " : n % 5 == 1 ? "two\n" : "three ";
  }
  return text;
}

const Options small = {.steps = 12, .context = 5, .batch = 3, .seed = 4};

struct Run {
  Text text{words(300), small.context, "words"};
  BigramModel model{{.vocabulary = text.vocabulary()}};
  Training training;
  explicit Run(const Options& options = small) : training(model, text, options) {}
  Run(const Run&) = delete;
  void steps(Index count) {
    for (Index n = 0; n < count; ++n) training.step();
  }
  std::vector<float> values() {
    std::vector<float> all;
    for (const auto& p : model.parameters()) {
      headwise::for_each_index(p.view.shape(), [&](const auto& at) { all.push_back(p.view(at)); });
    }
    return all;
  }
};

}  // namespace

TEST_CASE("char_gpt: a text is its sorted characters, and comes back whole", "[examples]") {
  const std::string bytes = "b\u00e9a\u20ac\U0001F600ab\n" + std::string(20, 'a');
  const Text text(bytes, 1, "t");
  CHECK(encode_utf8(text.alphabet()) == "\nab\u00e9\u20ac\U0001F600");
  CHECK(text.vocabulary() == 6);
  CHECK(text.trained().size() == 25);
  CHECK(text.held_out().size() == 3);
  CHECK(text.decode(text.trained()) + text.decode(text.held_out()) == bytes);
  CHECK(text.encode(decode_utf8("ab", "t")) == std::vector<TokenId>{1, 2});
  CHECK_THROWS_AS(text.encode(decode_utf8("z", "t")), TextError);
}

TEST_CASE("char_gpt: a text that cannot be used is refused by its name", "[examples]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_text(folder / "none"), ContainsSubstring("none cannot be opened"));
  std::filesystem::create_directory(folder / "empty");
  CHECK_THROWS_WITH(read_text(folder / "empty"),
                    ContainsSubstring("empty holds no .hpp, .inc or .md file"));
  if (std::filesystem::exists("/proc/self/mem")) {  // opens, but holds nothing at 0 to read
    CHECK_THROWS_WITH(read_text("/proc/self/mem"), "/proc/self/mem cannot be read");
  }
  CHECK_THROWS_WITH(Text("", 4, "t"), "t is empty");
  CHECK_THROWS_WITH(
      Text(std::string(40, 'x'), 4, "t"),
      "t has 40 characters, expected a tenth of them to hold 5 (context and the next)");
  CHECK_NOTHROW(Text(std::string(50, 'x'), 4, "t"));
  for (const char* bad : {"ab\xFF", "ab\xC3", "ab\xC0\x80", "ab\xE0\x80\x80", "ab\xED\xA0\x80",
                          "ab\xF4\x90\x80\x80", "ab\x80", "ab\xE2\x82"}) {
    CHECK_THROWS_WITH(decode_utf8(bad, "t"), "t is not UTF-8 at byte 2");
  }
}

TEST_CASE("char_gpt: a folder is its sources and pages in the order of their paths", "[examples]") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const char* what) {
    std::ofstream(folder / name) << what;
  };
  write("b.hpp", "second ");
  write("a.md", "first ");
  write("c.inc", "third");
  write("d.txt", "not this");
  std::filesystem::create_directory(folder / "e.md");
  CHECK(read_text(folder / "") == "first second third");
}

TEST_CASE("char_gpt: a batch is a function of seed and step, from all of the text", "[examples]") {
  std::vector<TokenId> tokens;
  for (TokenId n = 0; n < 40; ++n) tokens.push_back(n);
  std::set<TokenId> starts;
  for (std::uint64_t step = 0; step < 200; ++step) {
    const Batch batch = draw_batch(tokens, {3, 7}, 1, step);
    const Batch again = draw_batch(tokens, {3, 7}, 1, step);
    CHECK(std::equal(batch.inputs.begin(), batch.inputs.end(), again.inputs.begin()));
    for (Index b = 0; b < 3; ++b) {
      starts.insert(batch.inputs(b, 0));
      for (Index i = 0; i < 7; ++i) {
        CHECK(batch.inputs(b, i) == batch.inputs(b, 0) + i);
        CHECK(batch.targets(b, i) == batch.inputs(b, i) + 1);
      }
    }
  }
  // Every place from which a window and its next character fit.
  CHECK(starts.size() == 33);
  CHECK(*starts.rbegin() == 32);
  const auto first = draw_batch(tokens, {3, 7}, 1, 0), other = draw_batch(tokens, {3, 7}, 2, 0);
  CHECK_FALSE(std::equal(first.inputs.begin(), first.inputs.end(), other.inputs.begin()));
}

TEST_CASE("char_gpt: the stand-in's gradients are the slopes of its loss", "[examples]") {
  Run run;
  const Batch batch = draw_batch(run.text.trained(), {3, 5}, 1, 1);
  const auto list = run.model.parameters();
  run.steps(2);
  zero_gradients(list);
  const double loss = run.model.loss_and_gradients(batch, {});
  CHECK(loss == run.model.loss(batch, {}));
  for (const auto& p : list) {
    for (const Index n : {0, 3, 7}) {
      float& value = p.view.data()[n];
      const float kept = value, step = 0.25f;
      value = kept + step;
      const double above = run.model.loss(batch, {});
      value = kept - step;
      const double below = run.model.loss(batch, {});
      value = kept;
      const double slope = static_cast<double>(p.gradient.data()[n]);
      CHECK(std::abs((above - below) / (2 * static_cast<double>(step)) - slope) < 2e-3);
    }
  }
}

TEST_CASE("char_gpt: training lowers the loss of what is held out", "[examples]") {
  Options longer = small;
  longer.steps = 400;
  Run run(longer);
  const double before = run.training.held_out_loss();
  CHECK(before == Approx(std::log(static_cast<double>(run.text.vocabulary()))));
  run.steps(400);
  CHECK(run.training.held_out_loss() < 0.9 * before);
  CHECK(run.training.losses().size() == 400);
}

TEST_CASE("char_gpt: a run that is cut in two gives the bits of one that is not", "[examples]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x").string();
  Run whole, first, second;
  whole.steps(12);
  first.steps(5);
  first.training.save(path);
  second.training.load(path);
  CHECK(second.training.steps() == 5);
  second.steps(7);
  CHECK(second.values() == whole.values());
  CHECK(second.training.held_out_loss() == whole.training.held_out_loss());
  Options written = small;
  written.sample = 30;
  CHECK(write_sample(second.model, second.text, written).text ==
        write_sample(whole.model, whole.text, written).text);
}

TEST_CASE("char_gpt: a checkpoint of another run is refused, by the option that differs",
          "[examples]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x").string();
  Run run;
  run.training.save(path);
  Options other = small;
  other.batch = 4;
  Run differs(other);
  CHECK_THROWS_WITH(differs.training.load(path),
                    ContainsSubstring("x was trained with --batch 3, here it is 4"));
  const Text text(words(299) + "!", small.context, "t");
  BigramModel model({.vocabulary = text.vocabulary()});
  Training training(model, text, small);
  CHECK_THROWS_WITH(training.load(path), ContainsSubstring("on a text of other characters"));
}

TEST_CASE("char_gpt: a checkpoint of another text of the same characters is refused",
          "[examples]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "x").string();
  Run run;
  run.training.save(path);
  std::string swapped = words(300);
  std::swap(swapped[700], swapped[701]);
  for (const std::string& other : {words(301), swapped}) {
    const Text text(other, small.context, "t");
    REQUIRE(text.vocabulary() == run.text.vocabulary());
    BigramModel model({.vocabulary = text.vocabulary()});
    Training training(model, text, small);
    CHECK_THROWS_WITH(training.load(path),
                      ContainsSubstring("x was trained on another text (" + run.text.fingerprint() +
                                        "), here it is one of " + text.fingerprint()));
  }
}

TEST_CASE("char_gpt: a step without a number changes neither parameters nor steps", "[examples]") {
  Run run;
  run.steps(3);
  const std::vector<float> before = run.values();
  float& bias = std::prev(run.model.parameters().end())->view.data()[0];
  const float good = bias;
  bias = std::nanf("");
  CHECK_THROWS_WITH(run.training.step(), "the loss is no number at step 4");
  bias = good;
  CHECK(run.values() == before);
  CHECK(run.training.steps() == 3);
  CHECK(run.training.losses().size() == 3);
  run.steps(1);
  CHECK(run.training.steps() == 4);
}

TEST_CASE("char_gpt: the report has every figure, and null for what is none", "[examples]") {
  const Report report{2.5, std::nan(""), 0.125, 10, 20, 2};
  CHECK(json_line(report) ==
        "{\"held_out_loss\": 2.5, \"last_train_loss\": null, \"step_s\": 0.125, "
        "\"parameters\": 10, \"steps\": 20, \"threads\": 2, \"tokens_s\": null}");
  CHECK_THAT(readable(report),
             ContainsSubstring("10 parameters, 20 steps on 2 threads, 125.00 ms"));
  CHECK(median({3, 1, 2, 9}) == 3);
  CHECK(std::isnan(median({})));
  CHECK(clock_text(75) == "1:15");
  CHECK(clock_text(3700) == "1:01:40");
  CHECK(progress_line({5, 10, 2.5, 1000, 75}) ==
        "step 5/10  loss 2.5000  1000 tokens/s  1:15 left");
}

TEST_CASE("char_gpt: the picture of the loss has its line and what is held out", "[examples]") {
  const std::vector<double> losses = {4, 2, 1};
  const std::string picture = loss_svg(losses, 100, 2);
  CHECK_THAT(picture, ContainsSubstring("points=\"0,0 320,160 640,240\""));
  CHECK_THAT(picture, ContainsSubstring("M0 160h640"));
  CHECK_THAT(picture, ContainsSubstring(">100</text>"));
  CHECK_THAT(picture, ContainsSubstring(">103</text>"));
  const std::vector<double> many(5000, 1.0);
  CHECK(loss_svg(many, 0, std::nan("")).size() < 20000);
  CHECK_THAT(loss_svg({}, 0, std::nan("")), ContainsSubstring("points=\"\""));
  CHECK_THROWS_WITH(write_loss_svg("/none/x.svg", losses, 0, 2), "cannot write /none/x.svg");
}

}  // namespace examples_char_gpt
