// Shapes, tensors, masks, and what a call runs with.
#include <cstdlib>
#include <memory_resource>

#include "headwise/runtime/instruction_set.hpp"
#include "headwise/runtime/num_threads.hpp"
#include "headwise/runtime/workspace.hpp"
#include "support/refusal_rules.hpp"

namespace bad_calls_tensor {

using namespace headwise_tests;

namespace {

const Index most = std::numeric_limits<Index>::max();

const Refusals shapes({
    shape_error("Shape: extents are [2, -1, 3], expected 0 or more",
                [](Witness&) {
                  (void)Shape{2, -1, 3}.size();
                }),
    shape_error("Shape: extents are [0, -4], expected 0 or more",
                [](Witness&) {
                  (void)Shape{0, -4}.size();
                }),
    shape_error("Shape: extents are [9223372036854775807, 2], expected a product below 2^63",
                [](Witness&) {
                  (void)Shape{most, 2}.size();
                }),
    shape_error("Shape: extents are [-1, 2], expected 0 or more",
                [](Witness&) {
                  Tensor2<float>(Shape{-1, 2});
                }),
    shape_error("Tensor: shape is [2305843009213693952], expected below 2^63 bytes",
                [](Witness&) { Tensor1<double>(Shape{Index{1} << 61}); }),
    shape_error("Tensor: values are 2, expected 6 (shape [2, 3])",
                [](Witness&) {
                  Tensor2<int>(Shape{2, 3}, {1, 2});
                }),
    shape_error("Tensor: values are 7, expected 6 (shape [2, 3])",
                [](Witness&) {
                  Tensor2<int>(Shape{2, 3}, {1, 2, 3, 4, 5, 6, 7});
                }),
    argument_error("Tensor: memory is null, expected a memory resource",
                   [](Witness&) { Tensor1<float>(Shape{2}, nullptr); }),
});

Refusal add(const std::string& message, void (*given)(AttentionMask<double>&, Witness&)) {
  return argument_error(message, [given](Witness& m) {
    static const std::vector<Index> lengths{1};
    auto& mask = m.make<AttentionMask<double>>(causal, Mask::key_lengths(lengths));
    for (int n = 0; n < 4; ++n) {
      mask.add(Mask::drop(m.bools(Shape{1, 1, 1, 1})));
      mask.add(Mask::bias(m.tensor(1, 1, 1, 1)));
    }
    m.keep(mask);
    given(mask, m);
  });
}
using M = AttentionMask<double>;
const std::vector<Index> one{1};
const Tensor2<Index> ids(Shape{1, 1}, {1});
const auto diagonal = mask_function([](const Position& at) { return at.query == at.key; });
const std::string fifth =
    "AttentionMask: keep and drop masks are 5, expected at most 4 (combine some into one tensor)";
const Refusals masks({
    add("Mask::window: size is 0, expected >= 1", [](M& x, Witness&) { x.add(Mask::window(0)); }),
    add("Mask::window: size is -3, expected >= 1", [](M& x, Witness&) { x.add(Mask::window(-3)); }),
    add("Mask::window: first_keys is -1, expected >= 0",
        [](M& x, Witness&) { x.add(Mask::window(2).keeping_first(-1)); }),
    add("AttentionMask: a window of 3 keeps the first 4 keys, one of 8 the first 2, expected no "
        "fewer (or one window)",
        [](M& x, Witness&) {
          x.add(M(Mask::window(8).keeping_first(2), Mask::window(3).keeping_first(4)));
        }),
    add("AttentionMask: key lengths are given twice, expected once",
        [](M& x, Witness&) { x.add(Mask::key_lengths(one)); }),
    add("AttentionMask: documents are given twice, expected once",
        [](M& x, Witness&) { x.add(M(Mask::documents(ids), Mask::documents(ids))); }),
    add(fifth,
        [](M& x, Witness& m) {
          x.add(Mask::keep(m.bools(Shape{1, 1, 1, 1})));
        }),
    add(fifth,
        [](M& x, Witness& m) {
          x.add(Mask::drop_keys(m.bools(Shape{1, 1})));
        }),
    add(fifth,
        [](M& x, Witness& m) {
          x.add(M(Mask::window(2), Mask::keep(m.bools(Shape{1, 1}))));
        }),
    add("AttentionMask: mask functions are 5, expected at most 4 (combine some into one callable)",
        [](M& x, Witness&) {
          x.add(M(Mask::function(diagonal), Mask::function(diagonal), Mask::function(diagonal),
                  Mask::function(diagonal), Mask::function(diagonal)));
        }),
    add("AttentionMask: biases are 5, expected at most 4 (add some up into one tensor)",
        [](M& x, Witness& m) { x.add(Mask::bias(m.tensor(1, 1))); }),
    shape_error("Shape: extents are [-2, -2], expected 0 or more",
                [](Witness&) { (void)causal_mask<double>(-2); }),
    shape_error(
        "own: Mask::bias is [1, 1, 2, 1], expected [1, 1, 1, 1] or 1 on an axis (scores are "
        "[B, H, L, S])",
        [](Witness& m) { M(Mask::bias(m.tensor(2, 1))).require_fits("own", 1, 1, 1, 1); }),
});

template <Index workers>
struct WithWorkers {
  Index concurrency() const { return workers; }
  void run(Index, TaskRef) const {}
};

/// The first call of a program that was started with HEADWISE_NUM_THREADS of this value.
void ask_for_threads(const char* value) {
  struct Put {
    const Index threads = detail::default_threads.exchange(0);
    ~Put() {
      ::unsetenv("HEADWISE_NUM_THREADS");
      detail::default_threads = threads;
    }
  } back;
  ::setenv("HEADWISE_NUM_THREADS", value, 1);
  (void)ExecutorRef();
}
Refusal bad_environment(const char* value, const std::string& is) {
  return argument_error(
      "num_threads: HEADWISE_NUM_THREADS is " + is + ", expected 1 to 65536 (environment)",
      [value](Witness&) { ask_for_threads(value); });
}

const Refusals runtime({
    bad_environment("0", "0"),
    bad_environment("-1", "-1"),
    bad_environment("65537", "65537"),
    bad_environment("99999999999999999999", "99999999999999999999"),
    bad_environment("four", "four"),
    bad_environment("4x", "4x"),
    bad_environment(" 4", " 4"),
    bad_environment("0x4", "0x4"),
    bad_environment("1e1", "1e1"),
    bad_environment("", "empty"),
    argument_error("set_num_threads: threads is 0, expected 1 to 65536",
                   [](Witness&) { set_num_threads(0); }),
    argument_error("set_num_threads: threads is -1, expected 1 to 65536",
                   [](Witness&) { set_num_threads(-1); }),
    argument_error("set_num_threads: threads is 65537, expected 1 to 65536",
                   [](Witness&) { set_num_threads(65537); }),
    argument_error("ThreadPool: threads is 0, expected 1 to 65536",
                   [](Witness&) { ThreadPool pool(0); }),
    argument_error("ThreadPool: threads is -3, expected 1 to 65536",
                   [](Witness&) { ThreadPool pool(-3); }),
    argument_error("ThreadPool: threads is 9223372036854775807, expected 1 to 65536",
                   [](Witness&) { ThreadPool pool(most); }),
    argument_error("ExecutorRef: concurrency of the executor is 0, expected 1 to 65536",
                   [](Witness&) {
                     WithWorkers<0> nobody;
                     (void)ExecutorRef(nobody);
                   }),
    argument_error("ExecutorRef: concurrency of the executor is 65537, expected 1 to 65536",
                   [](Witness&) {
                     WithWorkers<65537> too_many;
                     (void)ExecutorRef(too_many);
                   }),
    argument_error("HEADWISE_SIMD: it is \"avx\", expected generic, avx2 or avx512",
                   [](Witness&) { (void)choose_instruction_set("avx"); }),
    argument_error("HEADWISE_SIMD: it is \"AVX2\", expected generic, avx2 or avx512",
                   [](Witness&) { (void)choose_instruction_set("AVX2"); }),
    argument_error("HEADWISE_SIMD: it is \" generic\", expected generic, avx2 or avx512",
                   [](Witness&) { (void)choose_instruction_set(" generic"); }),
    argument_error("MemoryTally: upstream is null, expected a memory resource",
                   [](Witness&) { MemoryTally tally(nullptr); }),
    argument_error("Workspace: memory is null, expected a memory resource",
                   [](Witness&) { Workspace<double>(1, 8, nullptr); }),
    argument_error("Workspace: memory is null, expected a memory resource",
                   [](Witness& m) {
                     const auto x = m.tensor(2, 3), w = m.tensor(3, 3), y = m.tensor(2, 3);
                     Context context = m.context();
                     context.memory = nullptr;
                     linear_forward(In<double, 2>(x), w, {}, y, context);
                   }),
    argument_error("Trace::at: name is scores, expected one of: before",
                   [](Witness& m) { (void)m.context().trace->at("scores"); }),
    argument_error("Trace::at: name is Q, expected one of: before",
                   [](Witness& m) { (void)m.context().trace->view<2>("Q"); }),
    shape_error("Trace::view: before is [1], expected 2 axes",
                [](Witness& m) { (void)m.context().trace->view<2>("before"); }),
    shape_error("Trace::record: tensor is [2, 3] at a null address, expected its elements",
                [](Witness& m) { m.context().trace->record("Q", m.null(2, 3)); }),
});

const Refusals dropout_rates({
    argument_error("own: dropout rate is -0.1, expected 0 to 1",
                   [](Witness&) { Dropout{.rate = -0.1}.require_valid("own"); }),
    argument_error("own: dropout rate is 1.5, expected 0 to 1",
                   [](Witness&) { Dropout{.rate = 1.5}.require_valid("own"); }),
    argument_error("own: dropout rate is inf, expected 0 to 1",
                   [](Witness&) {
                     Dropout{.rate = std::numeric_limits<double>::infinity()}.require_valid("own");
                   }),
});

}  // namespace

TEST_CASE("shapes and tensors that cannot be are refused", "[bad_calls]") { shapes.check(); }

TEST_CASE("a mask refuses what does not go together and keeps what it has", "[bad_calls]") {
  masks.check();
}

TEST_CASE("what a call runs with refuses bad calls", "[bad_calls]") { runtime.check(); }

TEST_CASE("a dropout rate outside 0 to 1 is refused by name", "[bad_calls]") {
  dropout_rates.check();
}

}  // namespace bad_calls_tensor
