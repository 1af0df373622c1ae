// What a training step of char_gpt's decoder holds, by the formulas and by what it asks for.
#include "../../examples/char_gpt/cost.hpp"
#include "../../examples/char_gpt/gpt.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

namespace examples_decoder_memory {

using namespace char_gpt;
using headwise::MemoryTally;

namespace {

struct Case {
  Index B, L;
  ModelOptions model;
};

/// 1, primes, the recipe, and a vocabulary that is wider than all the rest.
std::vector<Case> cases() {
  return {{1, 1, {.vocabulary = 2, .layers = 1, .heads = 1, .width = 1, .context = 1}},
          {3, 7, {.vocabulary = 11, .layers = 1, .heads = 2, .width = 10, .context = 7}},
          {2, 5, {.vocabulary = 13, .layers = 0, .heads = 1, .width = 6, .context = 9}},
          {1, 31, {.vocabulary = 13, .layers = 2, .heads = 3, .width = 12, .context = 31}},
          {5, 16, {.vocabulary = 3000, .layers = 2, .heads = 4, .width = 16, .context = 17}},
          {2, 33, {.vocabulary = 17, .layers = 3, .heads = 3, .width = 24, .context = 33}},
          {12, 64, {.vocabulary = 96, .layers = 4, .heads = 4, .width = 128, .context = 64}}};
}

Batch some_batch(const Case& c) {
  Batch batch{Tensor<TokenId, 2>({c.B, c.L}), Tensor<TokenId, 2>({c.B, c.L})};
  for (Index n = 0; n < c.B * c.L; ++n) {
    batch.inputs.data()[n] = static_cast<TokenId>(n * 7 % c.model.vocabulary);
    batch.targets.data()[n] = static_cast<TokenId>(n * 5 % c.model.vocabulary);
  }
  return batch;
}

/// Bytes of a step beside the tape's own lists: a first step has made those.
struct Measured {
  std::int64_t kept = 0, peak = 0, left = 0;
};

template <class T>
Measured measure(const Case& c, headwise::ExecutorRef executor) {
  Decoder<T> decoder(c.model);
  const Batch batch = some_batch(c);
  MemoryTally memory;
  Measured measured;
  {
    Tape<T> tape({.executor = executor, .memory = &memory});
    tape.backward(decoder.loss(tape, batch));
    tape.clear();
    const std::int64_t lists = memory.live();
    memory.reset_peak();
    const auto loss = decoder.loss(tape, batch);
    measured.kept = memory.live() - lists;
    tape.backward(loss);
    measured.peak = memory.peak() - lists;
    measured.left = memory.live() - lists;
  }
  CHECK(memory.live() == 0);
  return measured;
}

template <class T>
void compare(const Case& c, Index threads) {
  CAPTURE(c.B, c.L, c.model.layers, c.model.width, sizeof(T), threads);
  headwise::ThreadPool pool(threads);
  const Measured measured = measure<T>(c, pool);
  const StepMemory<T> walked(c.model, c.B, c.L, threads);
  CHECK(measured.kept == activation_bytes<T>(c.model, c.B, c.L));
  CHECK(measured.kept == walked.kept());
  CHECK(measured.peak == walked.peak());
  CHECK(measured.left == walked.left());
}

}  // namespace

TEST_CASE("a step of a decoder keeps and peaks at the bytes that its sizes say, to the byte",
          "[examples]") {
  for (const Case& c : cases()) {
    for (const Index threads : {1, 3}) {
      compare<float>(c, threads);
      compare<double>(c, threads);
    }
  }
}

TEST_CASE("of a decoder's step only activations grow with the batch: a block's are 16 a width",
          "[examples]") {
  const auto of = [](Index layers, Index B) {
    return activation_bytes<float>(
        {.vocabulary = 96, .layers = layers, .heads = 4, .width = 128, .context = 64}, B, 64);
  };
  const Index N = Index{12} * 64;
  CHECK(of(2, 24) - of(1, 24) - (of(2, 12) - of(1, 12)) == 4 * N * (16 * 128 + 2 * 4 + 4));
}

}  // namespace examples_decoder_memory
