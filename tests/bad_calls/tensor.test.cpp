// Shapes, tensors, views of views, masks, and what a call runs with.
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

Refusal at_null(const std::string& argument, const std::string& is, Action<Witness&> call) {
  return shape_error(argument + " is " + is + " at a null address, expected its elements",
                     std::move(call));
}

const Refusals views({
    shape_error("slice: begin is 2 and count 2, expected a part of axis 0 of [3, 5]",
                [](Witness& m) { slice(m.tensor(3, 5), 0, 2, 2); }),
    shape_error("slice: begin is -1 and count 2, expected a part of axis 1 of [3, 5]",
                [](Witness& m) { slice(m.tensor(3, 5), 1, -1, 2); }),
    shape_error("slice: begin is 3 and count -1, expected a part of axis 1 of [3, 5]",
                [](Witness& m) { slice(m.tensor(3, 5), 1, 3, -1); }),
    shape_error("slice: begin is 6 and count 0, expected a part of axis 1 of [3, 5]",
                [](Witness& m) { slice(m.tensor(3, 5), 1, 6, 0); }),
    shape_error("slice: begin is 1 and count 9223372036854775807, expected a part of axis 0 of "
                "[3, 5]",
                [](Witness& m) { slice(m.tensor(3, 5), 0, 1, most); }),
    argument_error("slice: axis is 2, expected 0 to 1",
                   [](Witness& m) { slice(m.tensor(3, 5), 2, 0, 1); }),
    argument_error("slice: axis is -1, expected 0 to 1",
                   [](Witness& m) { slice(m.tensor(3, 5), -1, 0, 1); }),
    argument_error("transpose: axis is -1, expected 0 to 1",
                   [](Witness& m) { transpose(m.tensor(3, 5), -1, 0); }),
    argument_error("transpose: axis is 2, expected 0 to 1",
                   [](Witness& m) { transpose(m.tensor(3, 5), 0, 2); }),
    shape_error("select: index is 3, expected one of axis 0 of [3, 5]",
                [](Witness& m) { select(m.tensor(3, 5), 3); }),
    shape_error("select: index is -1, expected one of axis 0 of [3, 5]",
                [](Witness& m) { select(m.tensor(3, 5), -1); }),
    shape_error("merge_rows: strides of x [2, 3, 2] are [16, 5, 1], expected rows at one common "
                "distance; copy it first",
                [](Witness& m) {
                  merge_rows(View<3>(m.tensor(40).data(), {2, 3, 2}, {16, 5, 1}));
                }),
    shape_error("reshape: shape is [5, 2], expected 12 elements (x is [2, 6])",
                [](Witness& m) {
                  reshape(m.tensor(2, 6), Shape{5, 2});
                }),
    shape_error("reshape: shape is [-2, -6], expected extents of 0 or more",
                [](Witness& m) {
                  reshape(m.tensor(2, 6), Shape{-2, -6});
                }),
    shape_error("reshape: shape is [4294967296, 4294967296], expected extents whose product is at "
                "most 2^48",
                [](Witness& m) {
                  reshape(m.tensor(2, 6), Shape{Index{1} << 32, Index{1} << 32});
                }),
    shape_error("reshape: strides of x [2, 3] are [6, 1], expected elements one behind the other; "
                "contiguous copies it so",
                [](Witness& m) { reshape(slice(m.tensor(2, 6), 1, 0, 3), Shape{6}); }),
    at_null("reshape: x", "[2, 6]", [](Witness& m) { reshape(m.null(2, 6), Shape{12}); }),
    shape_error("split_heads: x is [2, 3, 10], expected a width of 4 equal heads, at least 1",
                [](Witness& m) { split_heads(m.tensor(2, 3, 10), 4); }),
    shape_error("split_heads: x is [2, 3, 10], expected a width of 0 equal heads, at least 1",
                [](Witness& m) { split_heads(m.tensor(2, 3, 10), 0); }),
    shape_error("split_heads: x is [2, 3, 10], expected a width of -2 equal heads, at least 1",
                [](Witness& m) { split_heads(m.tensor(2, 3, 10), -2); }),
    shape_error("merge_heads: strides of x [2, 2, 3, 4] are [24, 12, 4, 1], expected heads side by "
                "side; copy it into such a layout first",
                [](Witness& m) { merge_heads(m.tensor(2, 2, 3, 4)); }),
    shape_error("copy: to is [3, 2], expected [2, 3] (from)",
                [](Witness& m) { copy(In<double, 2>(m.tensor(2, 3)), m.tensor(3, 2)); }),
    shape_error("copy: to overlaps from shifted, expected from itself or memory of its own",
                [](Witness& m) {
                  const auto x = m.tensor(9);
                  copy(In<double, 1>(slice(x, 0, 0, 5)), slice(x, 0, 4, 5));
                }),
    shape_error("copy: to holds one element at two indices, expected elements of their own",
                [](Witness& m) { copy(In<double, 1>(m.tensor(5)), m.repeated(5)); }),
    at_null("copy: to", "[5]", [](Witness& m) { copy(In<double, 1>(m.tensor(5)), m.null(5)); }),
    at_null("copy: from", "[5]", [](Witness& m) { copy(In<double, 1>(m.null(5)), m.tensor(5)); }),
    at_null("copy: from", "[5]", [](Witness& m) { (void)contiguous(In<double, 1>(m.null(5))); }),
    at_null("fill: tensor", "[5]", [](Witness& m) { fill(Out<double, 1>(m.null(5)), 1); }),
    shape_error("fill: tensor is [-5], expected extents of 0 or more",
                [](Witness& m) { fill(Out<double, 1>(m.unfounded(-5)), 1); }),
    at_null("convert: from", "[5]",
            [](Witness& m) { (void)convert<float>(In<double, 1>(m.null(5))); }),
    at_null("merge_rows: x", "[2, 3, 4]", [](Witness& m) { merge_rows(m.null(2, 3, 4)); }),
    shape_error("merge_rows: x is [4294967296, 4294967296, 0], expected extents whose product is "
                "at most 2^48",
                [](Witness& m) {
                  merge_rows(m.unfounded(Index{1} << 32, Index{1} << 32, Index{0}));
                }),
    shape_error("split_heads: x is [2, 3, -8], expected extents of 0 or more",
                [](Witness& m) { split_heads(m.unfounded(2, 3, -8), 2); }),
    shape_error("merge_heads: x is [2, -2, 3, 4], expected extents of 0 or more",
                [](Witness& m) { merge_heads(m.unfounded(2, -2, 3, 4)); }),
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

struct NoWorkers {
  Index concurrency() const { return 0; }
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
    argument_error("ExecutorRef: concurrency of the executor is 0, expected >= 1",
                   [](Witness&) {
                     NoWorkers nobody;
                     (void)ExecutorRef(nobody);
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
    at_null("Trace::record: tensor", "[2, 3]",
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

TEST_CASE("views of views refuse bad calls before anything is written", "[bad_calls]") {
  views.check();
}

TEST_CASE("a mask refuses what does not go together and keeps what it has", "[bad_calls]") {
  masks.check();
}

TEST_CASE("what a call runs with refuses bad calls", "[bad_calls]") { runtime.check(); }

TEST_CASE("a dropout rate outside 0 to 1 is refused by name", "[bad_calls]") {
  dropout_rates.check();
}

}  // namespace bad_calls_tensor
