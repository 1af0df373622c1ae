// The four attention functions: inputs, masks and options wrong in every way that has a rule.
#include "bad_calls/attention_calls.hpp"

namespace bad_calls_attention_inputs {

using namespace headwise_tests;
using namespace headwise_tests::attention_calls;

namespace {

std::vector<Rule> masks() {
  std::vector<Rule> rules;
  for (const Shape<4>& shape : {Shape{3, 4, 5, 7}, Shape{2, 2, 5, 7}, Shape{2, 4, 4, 7},
                                Shape{2, 4, 5, 8}, Shape{1, 1, 7, 5}, Shape{1, 1, 0, 7}}) {
    const std::string is = " is " + shape.format() +
                           ", expected [2, 4, 5, 7] or 1 on an axis (scores are [B, H, L, S])";
    rules.push_back({"Mask::keep" + is,
                     [=](Call& c) { c.options.mask.add(Mask::keep(c.memory.bools(shape))); }});
    rules.push_back({"Mask::drop" + is,
                     [=](Call& c) { c.options.mask.add(Mask::drop(c.memory.bools(shape))); }});
    rules.push_back({"Mask::bias" + is,
                     [=](Call& c) { c.options.mask.add(Mask::bias(c.memory.tensor(shape))); }});
  }
  const auto is = [](const std::string& mask, const char* got) {
    return mask + " is " + got +
           ", expected [2, 4, 5, 7] or 1 on an axis (scores are [B, H, L, S])";
  };
  rules.push_back({is("Mask::keep_keys", "[3, 1, 1, 7]"), [](Call& c) {
                     c.options.mask.add(Mask::keep_keys(c.memory.bools(Shape{3, 7})));
                   }});
  rules.push_back({is("Mask::drop_keys", "[3, 1, 1, 7]"), [](Call& c) {
                     c.options.mask.add(Mask::drop_keys(c.memory.bools(Shape{3, 7})));
                   }});
  rules.push_back({is("Mask::keep", "[1, 1, 7, 5]"), [](Call& c) {
                     c.options.mask.add(Mask::keep(c.memory.bools(Shape{7, 5})));
                   }});
  const char* null = " is [1, 1, 5, 7] at a null address, expected its elements";
  rules.push_back({std::string("Mask::keep") + null, [](Call& c) {
                     c.options.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{5, 7})));
                   }});
  rules.push_back({std::string("Mask::drop") + null, [](Call& c) {
                     c.options.mask.add(Mask::drop(In<bool, 2>(nullptr, Shape{5, 7})));
                   }});
  rules.push_back({std::string("Mask::bias") + null,
                   [](Call& c) { c.options.mask.add(Mask::bias(c.memory.null(5, 7))); }});
  rules.push_back({"Mask::keep is [1, 1, -1, 7], expected extents of 0 or more", [](Call& c) {
                     c.options.mask.add(Mask::keep(In<bool, 2>(nullptr, Shape{-1, 7})));
                   }});
  rules.push_back(
      {"Mask::bias is [1, 1, 1, 562949953421312], expected extents whose product is at "
       "most 2^48",
       [](Call& c) { c.options.mask.add(Mask::bias(c.memory.unfounded(1, Index{1} << 49))); }});
  return rules;
}

/// Documents, each kind of ids; `of_shape` where it is no matter of what they hold.
template <class Id>
std::vector<Rule> documents() {
  static const Tensor<Id, 2> none, long_ids(Shape{2, 8}), of_three(Shape{3, 7}),
      again(Shape{1, 7}, {1, 1, 2, 2, 3, 1, 1}),
      second(Shape{2, 7}, {1, 2, 3, 4, 5, 6, 7, 4, 4, 3, 9, 8, 8, 9});
  const std::string wanted = ", expected [2, 7] or [1, 7] (an id for each key)",
                    side =
                        ", expected the keys of a document side by side (Mask::keep takes any "
                        "pairs)";
  const auto of = [](const Tensor<Id, 2>& ids) {
    return [&ids](Call& c) { c.options.mask.add(Mask::documents(ids)); };
  };
  const auto null = [](Index rows) {
    return [=](Call& c) {
      c.options.mask.add(Mask::documents(In<Id, 2>(nullptr, Shape{rows, Index{7}})));
    };
  };
  return {
      {"Mask::documents is [2, 8]" + wanted, of(long_ids)},
      {"Mask::documents is [3, 7]" + wanted, of(of_three)},
      {"Mask::documents is [0, 0]" + wanted, of(none)},  // moved from, say
      {"Mask::documents is [2, 7] at a null address, expected its elements", null(2)},
      {"Mask::documents is [-2, 7], expected extents of 0 or more", null(-2)},
      {"Mask::documents is [562949953421312, 7], expected extents whose product is at most 2^48",
       null(Index{1} << 49)},
      {"Mask::documents has document 1 at [0, 0] and, behind another, at [0, 5]" + side, of(again),
       false},
      {"Mask::documents has document 9 at [1, 3] and, behind another, at [1, 6]" + side, of(second),
       false},
  };
}

std::vector<Rule> options() {
  static const std::vector<Index> none, three{1, 2, 3}, negative{3, -1}, longer{8, 2};
  const auto lengths = [](const std::vector<Index>& given) {
    return [&given](Call& c) { c.options.mask.add(Mask::key_lengths(given)); };
  };
  const auto rate = [](double given) {
    return [given](Call& c) { c.options.dropout.rate = given; };
  };
  const auto scale = [](double given) { return [given](Call& c) { c.options.scale = given; }; };
  const auto softcap = [](double given) {
    return [given](Call& c) { c.options.score.softcap = given; };
  };
  const auto origin = [](const Position& given) {
    return [given](Call& c) { c.options.origin = given; };
  };
  const auto moved = [](const Position& given) {
    return [given](Call& c) { c.options.origin = given, c.options.dropout.rate = 0.5; };
  };
  const auto gap = [](const KeyGap& given) {
    return [given](Call& c) { c.options.origin.key = 1, c.options.gap = given; };
  };
  const std::string no_gap = ", expected 0 to 4611686018427387903 (2^62 - origin.key)",
                    no_block = ", expected a multiple of 128 from 0 to 2^62",
                    gap_counted =
                        "gap lacks keys, expected none with dropout of the weights: its masks "
                        "count those of the call";
  const std::string no_origin = ", expected 0 to 2^62",
                    counted =
                        "origin moves queries or keys, expected 0 with dropout of the weights: its "
                        "masks count those of the call";
  const std::string no_softcap = ", expected a finite, normal number above 0, or none for no cap";
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string no_scale = ", expected a finite number, or none for 1 / sqrt(d)";
  return {
      {"Mask::key_lengths has 0 lengths, expected 2 (the batch size)", lengths(none), false},
      {"Mask::key_lengths has 3 lengths, expected 2 (the batch size)", lengths(three), false},
      {"Mask::key_lengths holds -1, expected 0 to 7 (the number of keys)", lengths(negative),
       false},
      {"Mask::key_lengths holds 8, expected 0 to 7 (the number of keys)", lengths(longer), false},
      {"dropout rate is -0.1, expected 0 to 1", rate(-0.1), false},
      {"dropout rate is 1.5, expected 0 to 1", rate(1.5), false},
      {"dropout rate is nan, expected 0 to 1", rate(std::numeric_limits<double>::quiet_NaN()),
       false},
      {"origin holds -1" + no_origin, origin({.batch = -1}), false},
      {"origin holds -2" + no_origin, origin({.head = -2}), false},
      {"origin holds -3" + no_origin, origin({.query = -3}), false},
      {"origin holds 4611686018427387905" + no_origin, origin({.key = (Index{1} << 62) + 1}),
       false},
      {counted, moved({.query = 1}), false},
      {counted, moved({.key = 1}), false},
      {"gap.at is -128" + no_block, gap({-128, 5}), false},
      {"gap.at is 64" + no_block, gap({64, 5}), false},
      {"gap.at is 4611686018427388032" + no_block, gap({(Index{1} << 62) + 128, 5}), false},
      {"gap.size is -1" + no_gap, gap({128, -1}), false},
      {"gap.size is 4611686018427387904" + no_gap, gap({128, Index{1} << 62}), false},
      {gap_counted, [](Call& c) { c.options.gap.size = 5, c.options.dropout.rate = 0.5; }, false},
      {"softcap is 0" + no_softcap, softcap(0), false},
      {"softcap is -2" + no_softcap, softcap(-2), false},
      {"softcap is 1e-310" + no_softcap, softcap(1e-310), false},
      {"softcap is inf" + no_softcap, softcap(infinity), false},
      {"softcap is nan" + no_softcap, softcap(std::numeric_limits<double>::quiet_NaN()), false},
      {"scale is inf" + no_scale, scale(infinity), false},
      {"scale is -inf" + no_scale, scale(-infinity), false},
      {"scale is nan" + no_scale, scale(std::numeric_limits<double>::quiet_NaN()), false},
  };
}

std::vector<Rule> options_of_forward() {
  return {{"gap lacks 5 keys, expected none: it is for forward calls of batches",
           [](Call& c) {
             c.options.gap = {128, 5};
           },
           false}};
}

std::vector<Rule> inputs() {
  const auto k = [](auto... extents) {
    return [=](Call& c) { c.k = c.memory.tensor(extents...); };
  };
  const auto v = [](auto... extents) {
    return [=](Call& c) { c.v = c.memory.tensor(extents...); };
  };
  const auto k_and_v = [](Index heads) {
    return [=](Call& c) {
      c.k = c.memory.tensor(2, heads, 7, 3), c.v = c.memory.tensor(2, heads, 7, 6);
    };
  };
  const std::string of_q = " (batch and head width of q [2, 4, 5, 3])",
                    of_k = " (batch, heads and length of k [2, 2, 7, 3])",
                    divisor = ", expected a divisor of the former",
                    huge =
                        " is [2, 1, 1, 281474976710656], expected extents whose product is at "
                        "most 2^48",
                    null = " at a null address, expected its elements";
  const Index far = Index{1} << 48;
  return {
      {"k is [3, 2, 7, 3], expected [2, 2, 7, 3]" + of_q, k(3, 2, 7, 3)},
      {"k is [2, 2, 7, 2], expected [2, 2, 7, 3]" + of_q, k(2, 2, 7, 2)},
      {"k is [2, 2, 7, 0], expected [2, 2, 7, 3]" + of_q, k(2, 2, 7, 0)},
      {"k is [0, 0, 0, 0], expected [2, 0, 0, 3]" + of_q, [](Call& c) { c.k = {}; }},
      {"v is [1, 2, 7, 6], expected [2, 2, 7, 6]" + of_k, v(1, 2, 7, 6)},
      {"v is [2, 4, 7, 6], expected [2, 2, 7, 6]" + of_k, v(2, 4, 7, 6)},
      {"v is [2, 2, 8, 6], expected [2, 2, 7, 6]" + of_k, v(2, 2, 8, 6)},
      {"q has 4 heads, k has 3" + divisor, k_and_v(3)},
      {"q has 4 heads, k has 8" + divisor, k_and_v(8)},
      {"q has 4 heads, k has 0" + divisor, k_and_v(0)},
      {"q is [2, 4, 5, 3]" + null, [](Call& c) { c.q = c.memory.null(2, 4, 5, 3); }},
      {"k is [2, 2, 7, 3]" + null, [](Call& c) { c.k = c.memory.null(2, 2, 7, 3); }},
      {"v is [2, 2, 7, 6]" + null, [](Call& c) { c.v = c.memory.null(2, 2, 7, 6); }},
      {"q is [2, 4, -5, 3], expected extents of 0 or more",
       [](Call& c) { c.q = c.memory.null(2, 4, -5, 3); }},
      {"k is [2, 2, -7, 3], expected extents of 0 or more",
       [](Call& c) { c.k = c.memory.null(2, 2, -7, 3); }},
      {"v is [2, 2, 7, -6], expected extents of 0 or more",
       [](Call& c) { c.v = c.memory.null(2, 2, 7, -6); }},
      {"q" + huge, [=](Call& c) { c.q = c.memory.unfounded(2, 1, 1, far); }},
      {"k" + huge, [=](Call& c) { c.k = c.memory.unfounded(2, 1, 1, far); }},
      {"v" + huge, [=](Call& c) { c.v = c.memory.unfounded(2, 1, 1, far); }},
  };
}

const Refusals of_inputs(table(all, inputs())), of_masks(table(all, masks())),
    of_options(table(all, options())),
    of_forward(table({backward, flash_backward}, options_of_forward())),
    of_documents(table(all, documents<Index>())),
    of_narrow_documents(table(all, documents<std::int32_t>()));

}  // namespace

TEST_CASE("a call of an attention that is right is taken, and shows when it writes",
          "[bad_calls]") {
  for (const Function& function : all) {
    Witness memory;
    Call call(memory);
    CAPTURE(function.name);
    function.call(call);
    CHECK(memory.written() == "a tensor");
  }
}

TEST_CASE("attentions refuse inputs that do not fit together", "[bad_calls]") { of_inputs.check(); }

TEST_CASE("attentions refuse masks that do not fit the scores", "[bad_calls]") { of_masks.check(); }

TEST_CASE("attentions refuse documents without an id for each key, or in parts", "[bad_calls]") {
  of_documents.check();
  of_narrow_documents.check();
}

TEST_CASE("attentions refuse key lengths, rates and scales out of range", "[bad_calls]") {
  of_options.check();
  of_forward.check();
}

}  // namespace bad_calls_attention_inputs
