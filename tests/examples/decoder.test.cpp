// The model of char_gpt on the tape, held against PyTorch's numbers and against itself.
#include <fstream>
#include <nlohmann/json.hpp>

#include "../../examples/char_gpt/gpt.hpp"
#include "../../examples/char_gpt/training.hpp"
#include "headwise/runtime/num_threads.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

namespace examples_decoder {

using namespace char_gpt;
using nlohmann::json;

namespace {

/// The greatest difference from what a list says, relative to the greatest number of the list.
template <class View>
double error_of(const View& got, const json& wanted) {
  REQUIRE(static_cast<std::size_t>(got.size()) == wanted.size());
  double worst = 0, greatest = 0;
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    const double number = wanted[n].get<double>();
    worst = std::max(worst, std::abs(got.data()[n] - number));
    greatest = std::max(greatest, std::abs(number));
  }
  return worst / greatest;
}

Batch batch_of(const json& inputs, const json& targets) {
  const auto B = static_cast<Index>(inputs.size()), L = static_cast<Index>(inputs[0].size());
  Batch batch{Tensor<TokenId, 2>({B, L}), Tensor<TokenId, 2>({B, L})};
  for (Index b = 0; b < B; ++b) {
    for (Index i = 0; i < L; ++i) {
      const auto row = static_cast<std::size_t>(b), at = static_cast<std::size_t>(i);
      batch.inputs(b, i) = inputs[row][at].get<TokenId>();
      batch.targets(b, i) = targets[row][at].get<TokenId>();
    }
  }
  return batch;
}

std::string some_text() {
  std::string text;
  for (int n = 0; n < 400; ++n) text += n % 7 == 3 ? "sum " : n % 3 == 0 ? "row\n" : "head ";
  return text;
}

const Options small = {
    .steps = 50, .layers = 2, .heads = 2, .width = 24, .context = 17, .batch = 3, .seed = 5};

/// The state of a training run, as bits.
struct Run {
  Text text{some_text(), small.context, "some text"};
  Gpt model{{text.vocabulary(), small.layers, small.heads, small.width, small.context, 5}};
  Training training;
  explicit Run(const headwise::Context& context = {}) : training(model, text, small, context) {}
  Run(const Run&) = delete;

  std::vector<float> values() {
    std::vector<float> all;
    for (const auto& parameter : model.parameters()) {
      all.insert(all.end(), parameter.view.data(), parameter.view.data() + parameter.view.size());
    }
    return all;
  }
};

}  // namespace

TEST_CASE("a decoder of two layers has PyTorch's loss, gradients and parameters after five steps",
          "[examples]") {
  constexpr double tolerance = 1e-10;
  json expected;
  std::ifstream(HEADWISE_TEST_DATA "/decoder_steps.json") >> expected;
  Decoder<double> decoder({.vocabulary = expected["vocabulary"],
                           .layers = expected["layers"],
                           .heads = expected["heads"],
                           .width = expected["width"],
                           .context = expected["context"]});
  decoder.for_each([&](const std::string& name, auto& weight) {
    const auto start = expected["start"][name].get<std::vector<double>>();
    REQUIRE(static_cast<std::size_t>(weight.value.size()) == start.size());
    std::copy(start.begin(), start.end(), weight.value.data());
  });
  const auto parameters = decoder.parameters();
  AdamW<double> optimizer;
  const headwise::AdamWOptions recipe{.learning_rate = 1e-3, .beta2 = 0.99, .weight_decay = 0};
  headwise::AdamWOptions decaying = recipe;
  decaying.weight_decay = 0.1;
  optimizer.add_group(parameters.matrices(), decaying);
  optimizer.add_group(parameters.vectors(), recipe);

  for (std::size_t step = 0; step < 5; ++step) {
    const Batch batch = batch_of(expected["inputs"][step], expected["targets"][step]);
    zero_gradients(parameters);
    Tape<double> tape;
    const auto loss = decoder.loss(tape, batch);
    tape.backward(loss);
    CHECK(std::abs(loss.value()(0) - expected["losses"][step].get<double>()) < tolerance);
    if (step == 0) {
      decoder.for_each([&](const std::string& name, auto& weight) {
        CAPTURE(name);
        CHECK(error_of(weight.gradient, expected["gradients"][name]) < tolerance);
      });
    }
    optimizer.step(headwise::clip_factor(gradient_norm(parameters), 0.5));
  }
  decoder.for_each([&](const std::string& name, auto& weight) {
    CAPTURE(name);
    CHECK(error_of(weight.value, expected["end"][name]) < tolerance);
  });
}

TEST_CASE("char_gpt trains to the same bits on any number of threads", "[examples]") {
  Run alone;
  for (Index n = 0; n < small.steps; ++n) alone.training.step();
  for (const Index threads : {2, 3, 8}) {
    headwise::ThreadPool pool(threads);
    Run run({.executor = pool});
    for (Index n = 0; n < small.steps; ++n) run.training.step();
    CHECK(run.training.losses() == alone.training.losses());
    CHECK(run.values() == alone.values());
  }
}

TEST_CASE("the loss of a decoder falls, and what is held out is expected better", "[examples]") {
  Run run;
  const double before = run.training.held_out_loss();
  for (Index n = 0; n < small.steps; ++n) run.training.step();
  CHECK(run.training.held_out_loss() < 0.9 * before);
}

}  // namespace examples_decoder
