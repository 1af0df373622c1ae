// What char_gpt --profile says of a step.
#include "../../examples/char_gpt/profile.hpp"

#include <set>
#include <sstream>

#include "../../examples/char_gpt/bigram_model.hpp"
#include "../../examples/char_gpt/gpt.hpp"
#include "support/catch.hpp"

namespace examples_profile {

using namespace char_gpt;
using headwise_tests::ContainsSubstring;

namespace {

constexpr Index steps = 3;
const Options small = {
    .steps = steps, .layers = 2, .heads = 2, .width = 24, .context = 17, .batch = 3};

std::string some_text() {
  std::string text;
  for (int n = 0; n < 400; ++n) text += n % 7 == 3 ? "sum " : n % 3 == 0 ? "row\n" : "head ";
  return text;
}

struct Run {
  Text text{some_text(), small.context, "some text"};
  TapeProfile profile;
  headwise::FlopTally tally;
  Gpt model{{text.vocabulary(), small.layers, small.heads, small.width, small.context, 5},
            &profile};
  Training training{model, text, small, {.flops = &tally}};
  Run() {
    for (Index n = 0; n < steps; ++n) training.step();
  }
  Run(const Run&) = delete;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("char_gpt: the profile of a step has all its functions, its time and its FLOPs",
          "[examples]") {
  Run run;
  double flops = 0, seconds = 0, wall = 0, longest = 1e9;
  std::set<std::string> names;
  const auto rows = profile_rows(run.training, run.profile);
  for (const ProfileRow& row : rows) {
    const double here = row.forward + row.backward;
    flops += row.flops;
    seconds += here;
    names.insert(row.name);
    if (row.name == "else") continue;
    CHECK(here <= longest);
    longest = here;
  }
  for (const double step : run.training.seconds()) wall += step;
  CHECK(names == std::set<std::string>{"linear", "attention", "activation", "layer_norm", "add",
                                       "embedding", "tied_head", "cross_entropy", "draw the batch",
                                       "zero gradients", "norm and AdamW", "else"});
  CHECK(rows.back().name == "else");
  CHECK(seconds == Approx(wall).epsilon(1e-9));
  CHECK(flops == static_cast<double>(run.tally.useful));
}

TEST_CASE("char_gpt: what is held out is no part of the profile of a step", "[examples]") {
  Run run;
  const auto before = run.profile.total().total();
  run.training.held_out_loss();
  CHECK(run.profile.total().total().calls == before.calls);
  CHECK(run.profile.of("attention").forward.calls == steps * small.layers);
}

TEST_CASE("char_gpt: the table of a profile has a line for each function, and the whole",
          "[examples]") {
  Run run;
  const auto lines = lines_of(profile_table(run.training, run.profile, 1e11));
  const auto rows = profile_rows(run.training, run.profile);
  REQUIRE(lines.size() == rows.size() + 3);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    CHECK_THAT(lines[n + 1], ContainsSubstring("  " + rows[n].name + " "));
    CHECK(lines[n + 1].size() == lines[0].size());
  }
  CHECK_THAT(lines[rows.size() + 1], ContainsSubstring("  a step"));
  CHECK_THAT(lines[rows.size() + 1], ContainsSubstring("100.0 %"));
  CHECK_THAT(lines.back(), ContainsSubstring("here: 100.0 GFLOP/s"));
  CHECK(memory_line(3 << 20, 7 << 19) ==
        "activations kept for backward: 3.00 MiB, peak 3.50 MiB\n");
}

TEST_CASE("char_gpt: a model without a tape has its part of a step in one line", "[examples]") {
  Text text{some_text(), small.context, "some text"};
  BigramModel model({.vocabulary = text.vocabulary()});
  Training training(model, text, small);
  const TapeProfile none;
  CHECK_THAT(profile_table(training, none, 1e11), ContainsSubstring("0.000 GFLOP a step"));
  training.step();
  const std::string table = profile_table(training, none, 1e11);
  for (const char* phase : phases) CHECK_THAT(table, ContainsSubstring("  " + std::string(phase)));
}

TEST_CASE("char_gpt: the best product is measured at least once", "[examples]") {
  CHECK(best_product_rate(0, 8) > 0);
}

}  // namespace examples_profile
