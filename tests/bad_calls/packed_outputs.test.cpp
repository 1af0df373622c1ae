// packed_attention_forward and _backward: what they write, and backward's gradients, wrong in every
// way that has a rule.
#include "bad_calls/packed_calls.hpp"
#include "bad_calls/score_gradient_rules.hpp"

namespace bad_calls_packed_outputs {

using namespace headwise_tests;
using namespace headwise_tests::packed_calls;

namespace {

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
  static const auto of_two = score_function(
      std::array{1.0, 2.0}, [](auto s, const Position&, const auto& w) { return w[0] + w[1] * s; });
  rules.push_back({name + " overlaps the score function's parameters" + own, [=](Call& c) {
                     c.options.score.function = of_two;
                     c.options.score.function.values = (c.*member).data() + 1;
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

TEST_CASE("packed attentions refuse outputs of other shapes, and memory that something else has",
          "[bad_calls]") {
  for (const Refusals& all : refusals) all.check();
}

}  // namespace bad_calls_packed_outputs
