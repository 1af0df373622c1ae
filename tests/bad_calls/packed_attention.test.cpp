// packed_attention_forward and _backward, wrong in every way that has a rule.
#include <functional>

#include "bad_calls/score_gradient_rules.hpp"
#include "support/refusal.hpp"

using namespace headwise_tests;

namespace {

/// What both take, all of it right: 3 sequences, the second without a query.
struct Call {
  explicit Call(Witness& m) : memory(m) {}
  Witness& memory;
  View3<double> q = memory.tensor(5, 4, 3), k = memory.tensor(7, 2, 3), v = memory.tensor(7, 2, 6),
                d_o = memory.tensor(5, 4, 6), o = memory.tensor(5, 4, 6),
                lse = memory.tensor(5, 4, 2), dq = memory.tensor(5, 4, 3),
                dk = memory.tensor(7, 2, 3), dv = memory.tensor(7, 2, 6);
  std::vector<Index> query_starts = {0, 2, 2, 5}, key_starts = {0, 1, 4, 7};
  std::span<const Index> starts_in_output = {};      // stands for query_starts where it is given
  std::span<const Index> key_starts_in_output = {};  // and for key_starts
  AttentionOptions<double> options = {};
  ScoreGradients<double> learned = {};
  Context context = memory.context();

  PackedSequences<double> inputs() const {
    return {q, k, v, starts_in_output.empty() ? query_starts : starts_in_output,
            key_starts_in_output.empty() ? key_starts : key_starts_in_output};
  }
};

struct Function {
  std::string name;
  void (*call)(Call&);
};
const Function forward = {"packed_attention_forward",
                          [](Call&c) {
                            packed_attention_forward(c.inputs(), c.options, c.o, c.lse, c.context);
                          }},
               backward = {"packed_attention_backward", [](Call&c) {
                             packed_attention_backward(c.d_o, c.inputs(), c.o, c.lse, c.options,
                                                       {c.dq, c.dk, c.dv, c.learned}, c.context);
                           }};
const std::vector<Function> both = {forward, backward};

struct Rule {
  std::string message;
  std::function<void(Call&)> spoil;
  bool of_shape = true;
};

std::vector<Refusal> table(const std::vector<Function>& functions, const std::vector<Rule>& rules) {
  std::vector<Refusal> refusals;
  for (const Function& function : functions) {
    for (const Rule& rule : rules) {
      refusals.push_back({function.name + ": " + rule.message,
                          rule.of_shape ? "ShapeError" : "ArgumentError",
                          [function, spoil = rule.spoil](Witness& memory) {
                            Call call(memory);
                            spoil(call);
                            function.call(call);
                          }});
    }
  }
  return refusals;
}

using Member = View3<double> Call::*;

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
  const auto add = [&](const std::string& message, std::function<void(Call&)> spoil) {
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
  add("dropout rate is 1.500000, expected 0 to 1", [](Call& c) { c.options.dropout.rate = 1.5; });
  add("scale is not finite, expected a number, or none for 1 / sqrt(d)",
      [](Call& c) { c.options.scale = std::numeric_limits<double>::infinity(); });
  add("softcap is not a finite number above 0, expected one, or none for no cap",
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

std::vector<Rule> shaped(const std::string& name, Member member, const Shape<3>& right,
                         const std::string& whence) {
  std::vector<Rule> rules;
  for (int axis = 0; axis < 3; ++axis) {
    Shape<3> got = right;
    ++got[axis];
    rules.push_back(
        {name + " is " + got.format() + ", expected " + right.format() + " (" + whence + ")",
         [=](Call& c) { c.*member = c.memory.tensor(got); }});
  }
  rules.push_back({name + " is " + right.format() + " at a null address, expected its elements",
                   [=](Call& c) { c.*member = View3<double>(nullptr, right); }});
  return rules;
}

std::vector<Rule> own_memory(const std::string& name, Member member,
                             const std::vector<std::pair<std::string, Member>>& others) {
  std::vector<Rule> rules;
  const std::string own = ", expected memory of its own";
  for (const auto& [other_name, other_member] : others) {
    rules.push_back(
        {name + " overlaps " + other_name + own, [member, other = other_member](Call& c) {
           const auto a = c.*member, b = c.*other;
           const auto block = c.memory.tensor(a.size() + b.size() - 1);
           c.*other = {block.data(), b.shape()};
           c.*member = {block.data() + b.size() - 1, a.shape()};
         }});
  }
  rules.push_back(
      {name + " holds one element at two indices, expected elements of their own", [=](Call& c) {
         Shape<3> strides = (c.*member).strides();
         strides[1] = strides[2];
         c.*member = {(c.*member).data(), (c.*member).shape(), strides};
       }});
  // An output over the starts: 0, 2, 2, 5 as they stand in static memory.
  static std::vector<Index> storage(1000);
  rules.push_back(
      {name + " overlaps query_starts" + own, [=](Call& c) {
         std::copy(c.query_starts.begin(), c.query_starts.end(), storage.begin());
         c.starts_in_output = {storage.data(), 4};
         c.*member = {reinterpret_cast<double*>(storage.data() + 3), (c.*member).shape()};
       }});
  rules.push_back(
      {name + " overlaps key_starts" + own, [=](Call& c) {
         std::copy(c.key_starts.begin(), c.key_starts.end(), storage.begin());
         c.key_starts_in_output = {storage.data(), 4};
         c.*member = {reinterpret_cast<double*>(storage.data() + 3), (c.*member).shape()};
       }});
  rules.push_back({name + " overlaps alibi_slopes" + own, [=](Call& c) {
                     c.options.score.alibi_slopes = {(c.*member).data() + 1, Shape{4}};
                   }});
  rules.push_back({name + " overlaps sinks" + own, [=](Call& c) {
                     c.options.score.sinks = {(c.*member).data() + 1, Shape{4}};
                   }});
  rules.push_back({name + " overlaps relative_bias" + own, [=](Call& c) {
                     double* at = (c.*member).data() + 1;
                     c.options.score.relative_bias = In<double, 2>(at, Shape{1, 5});
                   }});
  rules.push_back(
      {name + " overlaps Mask::bias" + own, [=](Call& c) {
         const View3<double> out = c.*member;
         c.options.mask.add(Mask::bias(View4<double>(out.data() + 1, Shape{3, 4, 1, 1})));
       }});
  rules.push_back({name + " overlaps Mask::keep" + own, [=](Call& c) {
                     auto* bytes = reinterpret_cast<bool*>((c.*member).data());
                     c.options.mask.add(Mask::keep(View4<bool>(bytes, Shape{3, 1, 1, 1})));
                   }});
  rules.push_back({name + " overlaps Mask::drop" + own, [=](Call& c) {
                     auto* bytes = reinterpret_cast<bool*>((c.*member).data());
                     c.options.mask.add(Mask::drop(View4<bool>(bytes, Shape{3, 1, 1, 1})));
                   }});
  rules.push_back(
      {name + " overlaps Mask::key_lengths" + own, [=](Call& c) {
         static std::vector<Index> lengths(1000);
         c.options.mask.add(Mask::key_lengths(std::span<const Index>(lengths.data(), 3)));
         c.*member = {reinterpret_cast<double*>(lengths.data() + 1), (c.*member).shape()};
       }});
  return rules;
}

std::vector<Rule> of_score_gradients() {
  static const ScoreGradientRules<Call> of_call{{3, 4, 1, 1}, {1, 4, 1, 1}, {3, 1, 1, 1}, 3, false};
  std::vector<Rule> rules;
  for (const auto& rule : of_call.all()) rules.push_back({rule.message, rule.spoil});
  rules.push_back({"d_sinks overlaps key_starts, expected memory of its own", [](Call& c) {
                     static std::vector<Index> storage(8);
                     of_call.learn(c);
                     std::copy(c.key_starts.begin(), c.key_starts.end(), storage.begin());
                     c.key_starts_in_output = {storage.data(), 4};
                     c.learned.d_sinks = {reinterpret_cast<double*>(storage.data() + 3), Shape{4}};
                   }});
  return rules;
}

const std::pair<std::string, Member> q{"q", &Call::q}, k{"k", &Call::k}, v{"v", &Call::v},
    d_o{"d_o", &Call::d_o}, o{"o", &Call::o}, lse{"lse", &Call::lse}, dq{"dq", &Call::dq},
    dk{"dk", &Call::dk};
const std::vector<Refusals> refusals = {
    table(both, inputs()),
    table(both, starts()),
    table(both, options()),
    table(both, shaped("o", &Call::o, {5, 4, 6}, "q, head width of v")),
    table(both, shaped("lse", &Call::lse, {5, 4, 2}, "two numbers a query of q")),
    table({backward}, shaped("d_o", &Call::d_o, {5, 4, 6}, "q, head width of v")),
    table({backward}, shaped("dq", &Call::dq, {5, 4, 3}, "the shape of q")),
    table({backward}, shaped("dk", &Call::dk, {7, 2, 3}, "the shape of k")),
    table({backward}, shaped("dv", &Call::dv, {7, 2, 6}, "the shape of v")),
    table({forward}, own_memory("o", &Call::o, {q, k, v})),
    table({forward}, own_memory("lse", &Call::lse, {q, k, v, o})),
    table({backward}, own_memory("dq", &Call::dq, {d_o, q, k, v, o, lse})),
    table({backward}, own_memory("dk", &Call::dk, {d_o, q, k, v, o, lse, dq})),
    table({backward}, own_memory("dv", &Call::dv, {d_o, q, k, v, o, lse, dq, dk})),
    table({backward}, of_score_gradients()),
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
