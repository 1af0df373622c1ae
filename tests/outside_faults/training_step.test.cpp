// A training step of char_gpt asks the system for nothing once it has run.
#include "../../examples/char_gpt/gpt.hpp"
#include "../../examples/char_gpt/training.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "outside_faults/allocations.hpp"

namespace outside_faults_training_step {

using namespace char_gpt;
using namespace headwise_tests;

namespace {

std::string some_text() {
  std::string text;
  for (int n = 0; n < 400; ++n) text += n % 7 == 3 ? "sum " : n % 3 == 0 ? "row\n" : "head ";
  return text;
}

struct Run {
  Options options;
  Text text{some_text(), options.context, "some text"};
  Gpt model;
  Training training;

  explicit Run(const Options& of, headwise::ExecutorRef executor = {})
      : options(of),
        model({text.vocabulary(), of.layers, of.heads, of.width, of.context, 5}),
        training(model, text, of, {.executor = executor}) {}
  Run(const Run&) = delete;
};

}  // namespace

TEST_CASE("from its third step on a training asks the system for no memory", "[outside]") {
  if (!headwise::detail::recycles()) return;
  const Index threads = GENERATE(1, 3), batch = GENERATE(1, 3);
  CAPTURE(threads, batch);
  headwise::ThreadPool pool(threads);
  Run run({.steps = 20, .layers = 2, .heads = 2, .width = 24, .context = 17, .batch = batch}, pool);
  run.training.step();
  run.training.step();
  for (int n = 0; n < 10; ++n) {
    reset_allocations();
    run.training.step();
    CHECK(allocations().count == 0);
  }
}

TEST_CASE("a training of 1,000 steps holds after each as many bytes as after the tenth",
          "[outside]") {
  Run run({.steps = 1000, .layers = 1, .heads = 2, .width = 8, .context = 6, .batch = 2});
  for (int n = 0; n < 10; ++n) run.training.step();
  const std::size_t kept = headwise::recycled_memory().kept_bytes();
  const Allocations tenth = allocations();  // and of the call above, where nothing is recycled
  bool same = true;
  while (run.training.steps() < 1000) {
    run.training.step();
    const Allocations now = allocations();
    same = same && now.live == tenth.live && now.live_blocks == tenth.live_blocks &&
           headwise::recycled_memory().kept_bytes() == kept;
  }
  CHECK(same);
}

}  // namespace outside_faults_training_step
