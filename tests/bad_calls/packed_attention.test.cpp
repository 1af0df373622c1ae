// packed_attention_forward and _backward: inputs and options, wrong in every way that has a rule.
#include "bad_calls/packed_calls.hpp"

namespace bad_calls_packed_attention {

using namespace headwise_tests;
using namespace headwise_tests::packed_calls;

namespace {

std::vector<Rule> inputs() {
  const auto set = [](Member member, auto... extents) {
    return [=](Call& c) { c.*member = c.memory.tensor(extents...); };
  };
  const auto null = [](Member member, const Shape<3>& shape) {
    return [=](Call& c) { c.*member = View3<double>(nullptr, shape); };
  };
  const auto k_and_v = [](Index heads) {
    return [=](Call& c) { c.k = c.memory.tensor(7, heads, 3), c.v = c.memory.tensor(7, heads, 6); };
  };
  const std::string of_q = " (head width of q [5, 4, 3])",
                    of_k = " (rows and heads of k [7, 2, 3])",
                    at_null = " at a null address, expected its elements",
                    negative = ", expected extents of 0 or more",
                    huge = ", expected extents whose product is at most 2^48",
                    divisor = ", expected a divisor of the former";
  const Index far = Index{1} << 48;
  const auto big = [](Member member, const Shape<3>& shape) {
    return [=](Call& c) {
      c.*member = View3<double>((c.*member).data(), shape, Shape<3>{0, 0, 0});
    };
  };
  return {
      {"k is [7, 2, 4], expected [7, 2, 3]" + of_q, set(&Call::k, 7, 2, 4)},
      {"v is [6, 2, 6], expected [7, 2, 6]" + of_k, set(&Call::v, 6, 2, 6)},
      {"v is [7, 4, 6], expected [7, 2, 6]" + of_k, set(&Call::v, 7, 4, 6)},
      {"q has 4 heads, k has 3" + divisor, k_and_v(3)},
      {"q has 4 heads, k has 0" + divisor, k_and_v(0)},
      {"q is [5, 4, 3]" + at_null, null(&Call::q, {5, 4, 3})},
      {"k is [7, 2, 3]" + at_null, null(&Call::k, {7, 2, 3})},
      {"v is [7, 2, 6]" + at_null, null(&Call::v, {7, 2, 6})},
      {"q is [-5, 4, 3]" + negative, null(&Call::q, {-5, 4, 3})},
      {"k is [-7, 2, 3]" + negative, null(&Call::k, {-7, 2, 3})},
      {"v is [7, 2, -6]" + negative, null(&Call::v, {7, 2, -6})},
      {"q is [281474976710656, 4, 3]" + huge, big(&Call::q, {far, 4, 3})},
      {"k is [281474976710656, 2, 3]" + huge, big(&Call::k, {far, 2, 3})},
      {"v is [7, 2, 281474976710656]" + huge, big(&Call::v, {7, 2, far})},
  };
}

std::vector<Rule> starts() {
  using Starts = std::vector<Index> Call::*;
  std::vector<Rule> rules;
  const auto rule = [&](Starts member, const std::string& message, std::vector<Index> given) {
    rules.push_back({message, [=](Call& c) { c.*member = given; }, false});
  };
  const auto falls = [](const std::string& name, const char* how) {
    return name + " falls from " + how + ", expected cumulative lengths";
  };
  for (const auto& [member, name] :
       {std::pair<Starts, std::string>{&Call::query_starts, "query_starts"},
        {&Call::key_starts, "key_starts"}}) {
    const bool queries = name == "query_starts";
    const Index rows = queries ? 5 : 7;
    const std::string whence = queries ? " (the rows of q)" : " (the rows of k)";
    rule(member, name + " has 0 numbers, expected one more than sequences", {});
    rule(member, name + " begins with 1, expected 0", {1, 2, 3, rows});
    rule(member, name + " begins with -1, expected 0", {-1, 2, 3, rows});
    rule(member, falls(name, "4 to 3 at 2"), {0, 4, 3, rows});
    rule(member, falls(name, "0 to -2 at 1"), {0, -2, 3, rows});
    rule(member, name + " ends with 4, expected " + std::to_string(rows) + whence, {0, 1, 2, 4});
    rule(member, name + " ends with 8, expected " + std::to_string(rows) + whence, {0, 1, 2, 8});
  }
  rule(&Call::key_starts, "key_starts has 3 numbers, expected 4 (as many as query_starts)",
       {0, 3, 7});
  rule(&Call::key_starts, "key_starts has 5 numbers, expected 4 (as many as query_starts)",
       {0, 3, 3, 4, 7});
  return rules;
}

std::vector<Rule> options() {
  static const Tensor2<Index> ids(Shape{3, 7});
  static const std::vector<Index> two{1, 2}, longer{1, 4, 3}, negative{1, 3, -1};
  std::vector<Rule> rules;
  for (const Shape<4>& shape :
       {Shape{2, 4, 1, 1}, Shape{3, 2, 1, 1}, Shape{3, 4, 5, 1}, Shape{1, 1, 1, 7}}) {
    const std::string is = " is " + shape.format() +
                           ", expected [3, 4, 1, 1] or 1 on an axis (packed sequences have no [L, "
                           "S] in common)";
    rules.push_back({"Mask::keep" + is,
                     [=](Call& c) { c.options.mask.add(Mask::keep(c.memory.bools(shape))); }});
    rules.push_back({"Mask::drop" + is,
                     [=](Call& c) { c.options.mask.add(Mask::drop(c.memory.bools(shape))); }});
    rules.push_back({"Mask::bias" + is,
                     [=](Call& c) { c.options.mask.add(Mask::bias(c.memory.tensor(shape))); }});
  }
  const std::string null = " at a null address, expected its elements";
  rules.push_back({"Mask::keep is [3, 1, 1, 1]" + null, [](Call& c) {
                     c.options.mask.add(Mask::keep(In<bool, 4>(nullptr, Shape{3, 1, 1, 1})));
                   }});
  rules.push_back({"Mask::drop is [3, 1, 1, 1]" + null, [](Call& c) {
                     c.options.mask.add(Mask::drop(In<bool, 4>(nullptr, Shape{3, 1, 1, 1})));
                   }});
  rules.push_back({"Mask::bias is [-3, 1, 1, 1], expected extents of 0 or more", [](Call& c) {
                     c.options.mask.add(Mask::bias(In<double, 4>(nullptr, Shape{-3, 1, 1, 1})));
                   }});
  rules.push_back(
      {"Mask::bias is [562949953421312, 1, 1, 1], expected extents whose product is at "
       "most 2^48",
       [](Call& c) {
         c.options.mask.add(Mask::bias(In<double, 4>(c.q.data(), Shape{Index{1} << 49, 1, 1, 1})));
       }});
  const auto add = [&](const std::string& message, Action<Call&> spoil) {
    rules.push_back({message, std::move(spoil), false});
  };
  const auto lengths = [](const std::vector<Index>& given) {
    return [&given](Call& c) { c.options.mask.add(Mask::key_lengths(given)); };
  };
  add("Mask::documents is given, expected none (each packed sequence is one)",
      [](Call& c) { c.options.mask.add(Mask::documents(ids)); });
  add("Mask::key_lengths has 2 lengths, expected 3 (one a sequence)", lengths(two));
  add("Mask::key_lengths holds 4 at 1, expected 0 to 3 (the keys of that sequence)",
      lengths(longer));
  add("Mask::key_lengths holds -1 at 2, expected 0 to 3 (the keys of that sequence)",
      lengths(negative));
  add("dropout rate is 1.5, expected 0 to 1", [](Call& c) { c.options.dropout.rate = 1.5; });
  add("scale is inf, expected a finite number, or none for 1 / sqrt(d)",
      [](Call& c) { c.options.scale = std::numeric_limits<double>::infinity(); });
  add("origin holds -1, expected 0 to 2^62", [](Call& c) { c.options.origin.head = -1; });
  add("origin moves queries or keys, expected 0 with dropout of the weights: its masks count those "
      "of the call",
      [](Call& c) { c.options.origin.query = 1, c.options.dropout.rate = 0.5; });
  add("gap lacks 5 keys, expected none: it is for forward calls of batches", [](Call& c) {
    c.options.gap = {128, 5};
  });
  add("softcap is -1, expected a finite, normal number above 0, or none for no cap",
      [](Call& c) { c.options.score.softcap = -1; });
  rules.push_back({"alibi_slopes is [3], expected [4] (the number of heads)",
                   [](Call& c) { c.options.score.alibi_slopes = c.memory.tensor(3); }});
  rules.push_back({"sinks is [5], expected [4] (the number of heads)",
                   [](Call& c) { c.options.score.sinks = c.memory.tensor(5); }});
  rules.push_back(
      {"relative_bias is [3, 5], expected [4 or 1, 2 R + 1] (a number for each distance "
       "from -R to R)",
       [](Call& c) { c.options.score.relative_bias = c.memory.tensor(3, 5); }});
  rules.push_back({"relative_bias is [-4, 5], expected extents of 0 or more", [](Call& c) {
                     c.options.score.relative_bias = In<double, 2>(nullptr, Shape{-4, 5});
                   }});
  return rules;
}

const std::vector<Refusals> refusals = {
    table(both, inputs()),
    table(both, starts()),
    table(both, options()),
};

}  // namespace

TEST_CASE("a packed call that is right is taken, and shows when it writes", "[bad_calls]") {
  for (const Function& function : both) {
    Witness memory;
    Call call(memory);
    CAPTURE(function.name);
    function.call(call);
    CHECK(memory.written() == "a tensor");
  }
}

TEST_CASE("packed attentions refuse what does not fit, and starts that are no cumulative lengths",
          "[bad_calls]") {
  for (const Refusals& all : refusals) all.check();
}

}  // namespace bad_calls_packed_attention
