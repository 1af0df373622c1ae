// The four attention functions: what changes scores, and its gradients, of wrong shapes or in
// memory of something else.
#include "bad_calls/attention_calls.hpp"
#include "headwise/autograd/attention.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/score/alibi.hpp"

using namespace headwise_tests;
using namespace headwise_tests::attention_calls;

namespace {

using Options = ScoreOptions<double>;
using Learned = ScoreGradients<double>;

std::vector<Rule> of_options() {
  const auto table = [](Index heads, Index width) {
    return [=](Call& c) { c.options.score.relative_bias = c.memory.tensor(heads, width); };
  };
  const auto is_table = [](const char* got) {
    return std::string("relative_bias is ") + got +
           ", expected [4 or 1, 2 R + 1] (a number for each distance from -R to R)";
  };
  const auto vector = [](In<double, 1> Options::*member, Index n) {
    return [=](Call& c) { c.options.score.*member = c.memory.tensor(n); };
  };
  const auto null = [](In<double, 1> Options::*member) {
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
          {overlaps("sinks"), [=](Call& c) {
             c.options.score.sinks = {(c.*member).data() + 1, Shape{4}};
           }}};
}

/// All that has gradients, given.
void learn(Call& c) {
  static const auto function = score_function(
      std::array{1.0, 2.0}, [](auto s, const Position&, const auto& w) { return w[0] * s + w[1]; });
  c.options.score.function = function;
  c.options.score.alibi_slopes = c.memory.tensor(4);
  c.options.score.relative_bias = c.memory.tensor(1, 5);
  c.options.score.sinks = c.memory.tensor(4);
  c.options.mask.add(Mask::bias(c.memory.tensor(1, 4, 5, 7)));
}

/// What a call views, laid over memory of 200 numbers.
using Lay = std::function<void(Call&, double*)>;
std::vector<std::pair<std::string, Lay>> views() {
  const auto bools = [](double* at) {
    return View4<bool>(reinterpret_cast<bool*>(at), Shape{1, 1, 1, 7});
  };
  return {
      {"q",
       [](Call& c, double* at) {
         c.q = {at, c.q.shape()};
       }},
      {"alibi_slopes",
       [](Call& c, double* at) {
         c.options.score.alibi_slopes = {at, Shape{4}};
       }},
      {"relative_bias",
       [](Call& c, double* at) {
         c.options.score.relative_bias = In<double, 2>(at, Shape{1, 5});
       }},
      {"sinks",
       [](Call& c, double* at) {
         c.options.score.sinks = {at, Shape{4}};
       }},
      {"Mask::bias",
       [](Call& c, double* at) {
         c.options.mask.add(Mask::bias(View4<double>(at, Shape{1, 1, 1, 7})));
       }},
      {"Mask::keep", [=](Call& c, double* at) { c.options.mask.add(Mask::keep(bools(at))); }},
      {"Mask::drop", [=](Call& c, double* at) { c.options.mask.add(Mask::drop(bools(at))); }},
      {"Mask::documents",
       [](Call& c, double* at) {
         const auto* ids = reinterpret_cast<const Index*>(at);
         c.options.mask.add(Mask::documents(In<Index, 2>(ids, Shape{1, 7})));
       }},
      {"Mask::key_lengths",
       [](Call& c, double* at) {
         const auto* lengths = reinterpret_cast<const Index*>(at);
         c.options.mask.add(Mask::key_lengths(std::span<const Index>(lengths, 2)));
       }},
  };
}

/// A gradient of another shape, or in the memory of something that the call views.
template <class Vary>
std::vector<Rule> of_gradient(const std::string& name, const std::string& right,
                              const std::string& wrong, const std::string& whence,
                              const Vary& vary) {
  std::vector<Rule> rules = {
      {name + " is " + wrong + ", expected " + right + " (" + whence + ")", [=](Call& c) {
         learn(c);
         vary(c, true, nullptr);
       }}};
  for (const auto& [other, lay] : views()) {
    rules.push_back(
        {name + " overlaps " + other + ", expected memory of its own", [vary, lay = lay](Call& c) {
           static std::vector<double> storage(200);  // lengths of 0
           learn(c);
           lay(c, storage.data());
           vary(c, false, storage.data());
         }});
  }
  return rules;
}

std::vector<Rule> of_gradients() {
  const std::string of_option = "the shape of what it is the gradient of";
  const auto place = [](Call& c, double* at, Index n) {
    return at != nullptr ? at : c.memory.tensor(n).data();
  };
  const auto vector = [=](InOut<double, 1> Learned::*member, Index n) {
    return [=](Call& c, bool wrong, double* at) {
      c.learned.*member = {place(c, at, 9), Shape{wrong ? n + 1 : n}};
    };
  };
  std::vector<Rule> all;
  const auto add = [&](const std::vector<Rule>& rules) {
    all.insert(all.end(), rules.begin(), rules.end());
  };
  add(of_gradient("d_scale", "[1]", "[2]", "one scale for all heads",
                  vector(&Learned::d_scale, 1)));
  add(of_gradient("d_alibi_slopes", "[4]", "[5]", of_option, vector(&Learned::d_alibi_slopes, 4)));
  add(of_gradient("d_sinks", "[4]", "[5]", of_option, vector(&Learned::d_sinks, 4)));
  add(of_gradient("d_relative_bias", "[1, 5]", "[4, 5]", of_option,
                  [=](Call& c, bool wrong, double* at) {
                    c.learned.d_relative_bias = {place(c, at, 20), Shape{wrong ? 4 : 1, 5}};
                  }));
  add(of_gradient("d_biases", "[1, 4, 5, 7]", "[1, 1, 5, 7]", of_option,
                  [=](Call& c, bool wrong, double* at) {
                    c.learned.d_biases[0] = {place(c, at, 140), Shape{1, wrong ? 1 : 4, 5, 7}};
                  }));
  add(of_gradient("d_function", "[2]", "[3]", "the function's parameters",
                  vector(&Learned::d_function, 2)));
  const auto folded = [](const std::string& name, auto fold) {
    return Rule{name + " holds one element at two indices, expected elements of their own",
                [=](Call& c) {
                  learn(c);
                  fold(c);
                }};
  };
  const auto fold = [=](InOut<double, 1> Learned::*member) {
    return [=](Call& c) { c.learned.*member = {place(c, nullptr, 4), Shape{4}, Shape{0}}; };
  };
  all.push_back(folded("d_sinks", fold(&Learned::d_sinks)));
  all.push_back(folded("d_function", [=](Call& c) {
    c.learned.d_function = {place(c, nullptr, 1), Shape{2}, Shape{0}};
  }));
  all.push_back(folded("d_alibi_slopes", fold(&Learned::d_alibi_slopes)));
  all.push_back(folded("d_relative_bias", [=](Call& c) {
    c.learned.d_relative_bias = {place(c, nullptr, 5), Shape{1, 5}, Shape{5, 0}};
  }));
  const auto of_nothing = [](const char* name, const char* got, const char* expected, auto ask) {
    return Rule{std::string(name) + " is " + got + ", expected " + expected +
                    " (the shape of what it is the gradient of)",
                ask};
  };
  all.push_back(
      of_nothing("d_sinks", "[4]", "[0]", [](Call& c) { c.learned.d_sinks = c.memory.tensor(4); }));
  all.push_back(of_nothing("d_alibi_slopes", "[4]", "[0]",
                           [](Call& c) { c.learned.d_alibi_slopes = c.memory.tensor(4); }));
  all.push_back(of_nothing("d_relative_bias", "[1, 3]", "[0, 0]",
                           [](Call& c) { c.learned.d_relative_bias = c.memory.tensor(1, 3); }));
  all.push_back(of_nothing("d_biases", "[1, 1, 5, 7]", "[0, 0, 0, 0]",
                           [](Call& c) { c.learned.d_biases[3] = c.memory.tensor(1, 1, 5, 7); }));
  return all;
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
    learn(call);
    call.learned = {memory.tensor(1), memory.tensor(4), memory.tensor(1, 5),
                    memory.tensor(4), memory.tensor(2), {memory.tensor(1, 4, 5, 7)}};
    CAPTURE(function.name);
    CHECK_NOTHROW(function.call(call));
  }
}
