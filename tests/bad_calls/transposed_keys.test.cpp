// Flash attention over keys that lie transposed.
#include "support/refusal_rules.hpp"

namespace bad_calls_transposed_keys {

using namespace headwise_tests;

namespace {

/// 2 sequences, 4 heads that share 2 of keys by twos, 3 queries, 130 keys, widths 5 and 6.
struct Attend {
  Witness& m;
  View<4> q = m.tensor(2, 4, 3, 5), v = m.tensor(2, 2, 130, 6);
  View<5> blocks = m.tensor(2, 2, 2, 5, 128);
  Index length = 130;
  View<4> o = m.tensor(2, 4, 3, 6), lse = m.tensor(2, 4, 3, 2);
  void call() {
    flash_attention_forward<double>(q, TransposedKeys<double>{blocks, length}, v, {}, o, lse,
                                    m.context());
  }
};
Refusal shape_of(const std::string& message, void (*spoil)(Attend&)) {
  return shape<Attend>("flash_attention_forward: " + message, spoil);
}
Refusal argument_of(const std::string& message, void (*spoil)(Attend&)) {
  return argument<Attend>("flash_attention_forward: " + message, spoil);
}
/// The blocks, with other strides.
void stride(Attend& c, const Shape<5>& strides) {
  c.blocks = {c.blocks.data(), c.blocks.shape(), strides};
}

const std::string of_130 = " (blocks of 128 keys, 130 in all)";
const Refusals transposed_keys({
    argument_of("k is of -1 keys, expected 0 or more", [](auto& c) { c.length = -1; }),
    shape_of("k is [2, 2, 1, 5, 128], expected [2, 2, 2, 5, 128]" + of_130,
             [](auto& c) { c.blocks = c.m.tensor(2, 2, 1, 5, 128); }),
    shape_of("k is [2, 2, 3, 5, 128], expected [2, 2, 2, 5, 128]" + of_130,
             [](auto& c) { c.blocks = c.m.tensor(2, 2, 3, 5, 128); }),
    shape_of("k is [2, 2, 2, 5, 64], expected [2, 2, 2, 5, 128]" + of_130,
             [](auto& c) { c.blocks = c.m.tensor(2, 2, 2, 5, 64); }),
    shape_of("k is [2, 2, 2, 5, 128] at a null address, expected its elements",
             [](auto& c) { c.blocks = c.m.null(2, 2, 2, 5, 128); }),
    shape_of("k is [-1, 2, 2, 5, 128], expected extents of 0 or more",
             [](auto& c) { c.blocks = c.m.unfounded(-1, 2, 2, 5, 128); }),
    argument_of("k has strides of 1 and 5 within its blocks, expected 128 and 1",
                [](auto& c) {
                  stride(c, {2560, 1280, 640, 1, 5});
                }),
    argument_of("k has strides of 256 and 1 within its blocks, expected 128 and 1",
                [](auto& c) {
                  stride(c, {2560, 1280, 128, 256, 1});
                }),
    shape_of("k is [1, 2, 130, 5], expected [2, 2, 130, 5] (batch and head width of q [2, 4, 3, "
             "5])",
             [](auto& c) { c.blocks = c.m.tensor(1, 2, 2, 5, 128); }),
    shape_of("v is [2, 2, 129, 6], expected [2, 2, 130, 6] (batch, heads and length of k [2, 2, "
             "130, 5])",
             [](auto& c) { c.v = c.m.tensor(2, 2, 129, 6); }),
    shape_of("o overlaps k, expected memory of its own",
             [](auto& c) {
               c.o = {&c.blocks(1, 1, 1, 2, 3), c.o.shape()};
             }),
});

}  // namespace

TEST_CASE("flash attention over transposed keys refuses bad calls", "[bad_calls]") {
  transposed_keys.check();
}

TEST_CASE("the calls over transposed keys that are spoilt are right before", "[bad_calls]") {
  Witness memory;
  CHECK_NOTHROW(Attend{memory}.call());
}

}  // namespace bad_calls_transposed_keys
