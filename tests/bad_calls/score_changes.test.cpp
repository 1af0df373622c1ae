// The four attention functions: what changes scores, and its gradients, of wrong shapes or in
// memory of something else.
#include "bad_calls/attention_calls.hpp"
#include "bad_calls/score_gradient_rules.hpp"
#include "headwise/autograd/attention.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/score/alibi.hpp"

namespace bad_calls_score_changes {

using namespace headwise_tests;
using namespace headwise_tests::attention_calls;

namespace {

using Options = ScoreOptions<double>;

const ScoreGradientRules<Call> of_call{{1, 4, 5, 7}, {1, 1, 5, 7}, {1, 1, 1, 7}, 2, true};

std::vector<Rule> of_options() {
  const auto table = [](Index heads, Index width) {
    return [=](Call& c) { c.options.score.relative_bias = c.memory.tensor(heads, width); };
  };
  const auto is_table = [](const char* got) {
    return std::string("relative_bias is ") + got +
           ", expected [4 or 1, 2 R + 1] (a number for each distance from -R to R)";
  };
  const auto vector = [](LastingIn<double, 1> Options::*member, Index n) {
    return [=](Call& c) { c.options.score.*member = c.memory.tensor(n); };
  };
  const auto null = [](LastingIn<double, 1> Options::*member) {
    return [=](Call& c) { c.options.score.*member = In<double, 1>(nullptr, Shape{4}); };
  };
  return {
      {"alibi_slopes is [3], expected [4] (the number of heads)",
       vector(&Options::alibi_slopes, 3)},
      {"alibi_slopes is [4] at a null address, expected its elements",
       null(&Options::alibi_slopes)},
      {"sinks is [5], expected [4] (the number of heads)", vector(&Options::sinks, 5)},
      {"sinks is [4] at a null address, expected its elements", null(&Options::sinks)},
      {is_table("[3, 5]"), table(3, 5)},
      {is_table("[4, 6]"), table(4, 6)},
      {is_table("[1, 0]"), table(1, 0)},
      {"relative_bias is [4, 5] at a null address, expected its elements",
       [](Call& c) {
         c.options.score.relative_bias = In<double, 2>(nullptr, Shape{4, 5});
       }},
  };
}

const auto of_two = score_function(
    std::array{1.0, 2.0}, [](auto s, const Position&, const auto& w) { return w[0] + w[1] * s; });

/// Outputs in the storage of what changes scores.
std::vector<Rule> of_outputs(const std::string& name, View4<double> Call::*member) {
  const auto overlaps = [&](const char* option) {
    return name + " overlaps " + option + ", expected memory of its own";
  };
  return {{overlaps("alibi_slopes"),
           [=](Call& c) {
             c.options.score.alibi_slopes = {(c.*member).data() + 1, Shape{4}};
           }},
          {overlaps("relative_bias"),
           [=](Call& c) {
             c.options.score.relative_bias = In<double, 2>((c.*member).data() + 1, Shape{4, 3});
           }},
          {overlaps("sinks"),
           [=](Call& c) {
             c.options.score.sinks = {(c.*member).data() + 1, Shape{4}};
           }},
          {overlaps("the score function's parameters"), [=](Call& c) {
             c.options.score.function = of_two;
             c.options.score.function.values = (c.*member).data() + 1;
           }}};
}

std::vector<Rule> of_gradients() {
  std::vector<Rule> rules;
  for (const auto& rule : of_call.all()) rules.push_back({rule.message, rule.spoil});
  return rules;
}

/// On the tape: what is in the options and learned, or no scale; and slopes of no head.
std::vector<Refusal> of_tape() {
  using Learn = std::function<void(Witness&, Tape<double>&, Options&, std::optional<double> & scale,
                                   LearnedScores<double>&)>;
  const auto refusal = [](const std::string& message, bool of_shape, Learn learn) {
    return Refusal{"attention: " + message, of_shape ? "ShapeError" : "ArgumentError",
                   [learn](Witness& m) {
                     Tape<double> tape;
                     AttentionOptions<double> options;
                     LearnedScores<double> learned;
                     learn(m, tape, options.score, options.scale, learned);
                     const auto q = tape.constant(m.tensor(2, 4, 5, 3));
                     (void)attention(q, q, q, options, learned);
                   }};
  };
  const auto twice = [](const std::string& name) {
    return name + " is in the options and learned, expected one of them";
  };
  return {refusal(twice("alibi_slopes"), false,
                  [](auto& m, auto& tape, auto& options, auto&, auto& learned) {
                    options.alibi_slopes = m.tensor(4);
                    learned.alibi_slopes = tape.input(m.tensor(4));
                  }),
          refusal(twice("sinks"), false,
                  [](auto& m, auto& tape, auto& options, auto&, auto& learned) {
                    options.sinks = m.tensor(4);
                    learned.sinks = tape.input(m.tensor(4));
                  }),
          refusal(twice("relative_bias"), false,
                  [](auto& m, auto& tape, auto& options, auto&, auto& learned) {
                    options.relative_bias = m.tensor(4, 5);
                    learned.relative_bias = tape.input(m.tensor(4, 5));
                  }),
          refusal(twice("scale"), false,
                  [](auto& m, auto& tape, auto&, auto& scale, auto& learned) {
                    scale = 0.5;
                    learned.scale = tape.input(m.tensor(1));
                  }),
          refusal("function is learned, expected the score function that has its numbers as "
                  "parameters in the options",
                  false,
                  [](auto& m, auto& tape, auto&, auto&, auto& learned) {
                    learned.function = tape.input(m.tensor(1));
                  }),
          refusal("function is [3], expected [2] (the parameters of the score function)", true,
                  [](auto& m, auto& tape, auto& options, auto&, auto& learned) {
                    options.function = of_two;
                    learned.function = tape.input(m.tensor(3));
                  }),
          refusal("function's parameter 1 is another number than the score function in the options "
                  "was made of, "
                  "expected one that is made of these (anew where an optimiser has changed them)",
                  false,
                  [](auto&, auto& tape, auto& options, auto&, auto& learned) {
                    options.function = of_two;
                    static const Tensor1<double> later(
                        {2}, {of_two.parameters[0], of_two.parameters[1] + 1});
                    learned.function = tape.input(In<double, 1>(later));
                  }),
          refusal("scale is [2], expected [1] (one for all heads)", true,
                  [](auto& m, auto& tape, auto&, auto&, auto& learned) {
                    learned.scale = tape.input(m.tensor(2));
                  })};
}

const Refusals on_tape(of_tape());
const Refusals of_slopes({{"alibi_slopes: heads is 0, expected >= 1", "ArgumentError",
                           [](Witness&) { (void)alibi_slopes<double>(0); }}});

const std::vector<Refusals> refused = {
    table(all, of_options()),
    table({forward, flash_forward}, of_outputs("o", &Call::o)),
    table({forward}, of_outputs("weights", &Call::weights)),
    table({flash_forward}, of_outputs("lse", &Call::lse)),
    table({backward, flash_backward}, of_outputs("dq", &Call::dq)),
    table({backward, flash_backward}, of_outputs("dk", &Call::dk)),
    table({backward, flash_backward}, of_outputs("dv", &Call::dv)),
    table({backward, flash_backward}, of_gradients()),
};

}  // namespace

TEST_CASE("attentions refuse what changes scores, and its gradients, where they do not fit",
          "[bad_calls]") {
  for (const Refusals& refusals : refused) refusals.check();
}

TEST_CASE("what is in the options and learned, or no scale, is refused by the tape",
          "[bad_calls]") {
  on_tape.check();
}

TEST_CASE("slopes of no head are refused", "[bad_calls]") { of_slopes.check(); }

TEST_CASE("gradients of all that changes scores are taken where they fit", "[bad_calls]") {
  for (const Function& function : {backward, flash_backward}) {
    Witness memory;
    Call call(memory);
    of_call.learn(call);
    call.learned = {memory.tensor(1), memory.tensor(4), memory.tensor(1, 5),
                    memory.tensor(4), memory.tensor(2), {memory.tensor(1, 4, 5, 7)}};
    CAPTURE(function.name);
    CHECK_NOTHROW(function.call(call));
  }
}

}  // namespace bad_calls_score_changes
