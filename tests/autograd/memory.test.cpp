// What the tape holds and when it lets go of it, counted by the memory resource of its context.
#include <memory_resource>
#include <new>
#include <vector>

#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/checkpoint.hpp"
#include "headwise/autograd/functions.hpp"
#include "headwise/runtime/recycled_memory.hpp"
#include "support/taped.hpp"

namespace autograd_memory {

using namespace headwise_tests;

namespace {

constexpr Index rows = 64, width = 64;
constexpr std::int64_t value_bytes = rows * width * static_cast<Index>(sizeof(float)) + 64;
constexpr std::int64_t few_bytes = 200000;  // blocks of closures and nodes

struct Layers {
  Tensor2<float> w = normal<float>(Shape{width, width}, 2), dw{w.shape()};
  Tensor2<float> x = normal<float>(Shape{rows, width}, 1);

  template <class Wrap>
  Variable<float, 1> loss(Tape<float>& tape, int count, Wrap&& wrap) {
    const auto weights = tape.parameter(w, dw);
    const auto layer = [&, weights](const Variable<float, 2>& a) {
      return layer_norm(a + softmax(linear(softmax(linear(a, weights)), weights)));
    };
    Variable<float, 2> h = tape.input(x);
    for (int n = 0; n < count; ++n) h = wrap(layer, h);
    return mean(h * h);
  }
};

/// Memory of which one request is refused.
class FailingMemory : public std::pmr::memory_resource {
 public:
  /// The request with this number, from now on, fails; none for -1.
  void fail(int number) { left_ = number; }
  std::int64_t live() const { return tally_.live(); }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (left_ >= 0 && left_-- == 0) throw std::bad_alloc();
    return tally_.allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    tally_.deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  MemoryTally tally_;
  int left_ = -1;
};

const auto plainly = [](const auto& layer, const auto& h) { return layer(h); };
const auto checkpointed = [](const auto& layer, const auto& h) { return checkpoint(layer, h); };

}  // namespace

TEST_CASE("a value that no backward reads is released as soon as no variable holds it",
          "[autograd]") {
  MemoryTally memory;
  Layers with;
  {
    Tape<float> tape({.memory = &memory});
    auto h = scale(tape.input(with.x), 2.0f);
    for (int n = 0; n < 50; ++n) h = h + scale(h, 0.5f);
    CHECK(memory.live() < value_bytes + few_bytes);
    auto kept = h;
    for (int n = 0; n < 50; ++n) kept = softmax(kept);  // its backward reads what it gave
    CHECK(memory.live() > 50 * value_bytes);
  }
  CHECK(memory.live() == 0);
}

TEST_CASE("without a node nothing is kept: memory does not grow with the depth", "[autograd]") {
  MemoryTally memory;
  Layers with;
  Tape<float> tape({.memory = &memory});
  const NoGrad guard(tape);
  (void)with.loss(tape, 1, plainly);
  const auto of_one = memory.peak();
  memory.reset_peak();
  (void)with.loss(tape, 40, plainly);
  CHECK(memory.peak() <= of_one + value_bytes);
}

TEST_CASE("the sweep releases what a node kept, and its gradient, as soon as it has passed it",
          "[autograd]") {
  MemoryTally memory;
  Layers with;
  Tape<float> tape({.memory = &memory});
  std::vector<std::int64_t> live;  // seen from the layers, last to first
  const auto observed = [&](const auto& layer, const auto& h) {
    return apply(
        h.shape(), [](In<float, 2> x, Out<float, 2> y) { copy(x, y); },
        [&](In<float, 2> dy, In<float, 2>, Out<float, 2> dx) {
          live.push_back(memory.live());
          copy(dy, dx);
        },
        layer(h));
  };
  tape.backward(with.loss(tape, 10, observed));
  REQUIRE(live.size() == 10);
  for (std::size_t n = 1; n < live.size(); ++n) CHECK(live[n] < live[n - 1] - 3 * value_bytes);
  CHECK(memory.live() < 2 * value_bytes + few_bytes);  // the gradient of the input
  tape.clear();
  CHECK(memory.live() < few_bytes);
}

TEST_CASE("checkpoints bound the peak by a layer's memory and one value a layer", "[autograd]") {
  constexpr int depth = 24;
  const auto peak_of = [&](auto wrap, int layers) {
    MemoryTally memory;
    Layers with;
    {
      Tape<float> tape({.memory = &memory});
      tape.backward(with.loss(tape, layers, wrap));
    }
    CHECK(memory.live() == 0);
    return memory.peak();
  };
  const auto plain = peak_of(plainly, depth), kept = peak_of(checkpointed, depth);
  const auto of_one_layer = peak_of(plainly, 1);
  CAPTURE(plain, kept, of_one_layer);
  CHECK(plain > 4 * depth * value_bytes);
  CHECK(kept < of_one_layer + (depth + 3) * value_bytes);
}

TEST_CASE("steps of one shape need no more memory than the first, and nothing from the system",
          "[autograd]") {
  RecycledMemory recycled;
  MemoryTally memory(&recycled);
  Layers with;
  {
    Tape<float> tape({.memory = &memory});
    const auto step = [&] {
      tape.backward(with.loss(tape, 3, checkpointed));
      const auto x = tape.size();
      tape.clear();
      return x;
    };
    step();
    const auto kept = recycled.kept_bytes();
    const auto live = memory.live(), peak = memory.peak();
    bool same = true;
    for (int n = 0; n < 1000; ++n) {
      step();
      same =
          same && recycled.kept_bytes() == kept && memory.live() == live && memory.peak() == peak;
    }
    CHECK(same);  // whatever had been taken anew would be kept beside it
  }
  CHECK(memory.live() == 0);
}

/// A number of which there are no more than three at a time.
struct Scarce {
  static inline int made = 0;

  Scarce() {
    if (made == 3) throw std::bad_alloc();
    ++made;
  }
  ~Scarce() { --made; }
};

TEST_CASE("where a number of a value cannot be made, none is left and the memory goes back",
          "[autograd]") {
  FailingMemory memory;
  CHECK_THROWS_AS(detail::StorageRef<Scarce>::make(5, &memory), std::bad_alloc);
  CHECK(Scarce::made == 0);
  CHECK(memory.live() == 0);
}

TEST_CASE("a variable outlives clear and keeps its value", "[autograd]") {
  MemoryTally memory;
  Layers with;
  {
    Tape<float> tape({.memory = &memory});
    const auto loss = with.loss(tape, 2, plainly);
    const float before = loss.value()(0);
    tape.backward(loss);
    tape.clear();
    (void)with.loss(tape, 2, plainly);
    CHECK(loss.value()(0) == before);
  }
  CHECK(memory.live() == 0);
}

TEST_CASE("memory that runs out in forward leaves the tape as it was, whichever request it is",
          "[autograd]") {
  Layers with;
  int refused = 0;
  const auto check = [&](const auto& function) {
    for (int number = 0;; ++number) {
      FailingMemory memory;
      Tape<float> tape({.memory = &memory});
      const auto h = scale(tape.input(with.x), 2.0f);
      const Index nodes = tape.size();
      const auto live = memory.live();
      memory.fail(number);
      try {
        tape.backward(sum(function(h)));
        return;
      } catch (const std::bad_alloc&) {
        ++refused;
      }
      memory.fail(-1);
      if (tape.size() > nodes) continue;  // the sum, or backward
      // What grew are the lists that are kept for the next node.
      CHECK(memory.live() <= live + 70000);
      tape.backward(sum(function(h)));
    }
  };
  check([](const auto& h) { return softmax(h); });
  check([](const auto& h) { return layer_norm(h); });
  check([](const auto& h) { return checkpoint([](const auto& x) { return x * x; }, h); });
  CHECK(refused > 12);
}

TEST_CASE("memory that runs out in backward leaves a tape that can be cleared and used again",
          "[autograd]") {
  Layers with;
  FailingMemory memory;
  {
    Tape<float> tape({.memory = &memory});
    tape.backward(with.loss(tape, 2, checkpointed));
    const Tensor2<float> expected = with.dw;
    tape.clear();
    int failures = 0;
    for (int number = 0; number < 400; number += 7) {
      const auto loss = with.loss(tape, 2, checkpointed);
      memory.fail(number);
      try {
        tape.backward(loss);
      } catch (const std::bad_alloc&) {
        ++failures;
        CHECK(error_of([&] { tape.backward(loss); }));
      }
      memory.fail(-1);
      tape.clear();
      fill(with.dw, 0.0f);
      tape.backward(with.loss(tape, 2, checkpointed));
      tape.clear();
      REQUIRE(bitwise_equal(with.dw, expected));
      fill(with.dw, 0.0f);
    }
    CHECK(failures > 5);
  }
  CHECK(memory.live() == 0);
}

}  // namespace autograd_memory
