// Views of views, and what copies, fills and converts them.
#include <limits>

#include "support/refusal_rules.hpp"

namespace bad_calls_views {

using namespace headwise_tests;

namespace {

const Index most = std::numeric_limits<Index>::max();

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

}  // namespace

TEST_CASE("views of views refuse bad calls before anything is written", "[bad_calls]") {
  views.check();
}

}  // namespace bad_calls_views
