// The rules of gradients of what changes scores, which several functions keep. A call has members
// `memory`, `options`, `learned` and q.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "headwise/kernels/score_function.hpp"
#include "support/refusal.hpp"

namespace headwise_tests {

/// Of calls of 4 heads.
template <class Call>
struct ScoreGradientRules {
  using Learned = ScoreGradients<double>;
  struct Rule {
    std::string message;
    Action<Call&> spoil;
  };

  Shape<4> bias;        // that a call takes, of 4 heads
  Shape<4> wrong_bias;  // that its gradient may not have
  Shape<4> pairs;       // of a mask
  Index batch;
  bool documents;  // whether a call takes them

  /// All that has gradients, given.
  void learn(Call& c) const {
    static const auto function =
        score_function(std::array{1.0, 2.0},
                       [](auto s, const Position&, const auto& w) { return w[0] * s + w[1]; });
    c.options.score.function = function;
    c.options.score.alibi_slopes = c.memory.tensor(4);
    c.options.score.relative_bias = c.memory.tensor(1, 5);
    c.options.score.sinks = c.memory.tensor(4);
    c.options.mask.add(Mask::bias(c.memory.tensor(bias)));
  }

  /// What a call views, laid over memory of 200 numbers.
  using Lay = Action<Call&, double*>;
  std::vector<std::pair<std::string, Lay>> views() const {
    const auto bools = [this](double* at) {
      return View4<bool>(reinterpret_cast<bool*>(at), pairs);
    };
    std::vector<std::pair<std::string, Lay>> all = {
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
        {"the score function's parameters",
         [](Call& c, double* at) { c.options.score.function.values = at; }},
        {"Mask::bias",
         [this](Call& c, double* at) { c.options.mask.add(Mask::bias(View4<double>(at, pairs))); }},
        {"Mask::keep", [=](Call& c, double* at) { c.options.mask.add(Mask::keep(bools(at))); }},
        {"Mask::drop", [=](Call& c, double* at) { c.options.mask.add(Mask::drop(bools(at))); }},
        {"Mask::key_lengths",
         [this](Call& c, double* at) {
           const auto* lengths = reinterpret_cast<const Index*>(at);
           c.options.mask.add(
               Mask::key_lengths(std::span<const Index>(lengths, static_cast<std::size_t>(batch))));
         }},
    };
    if (!documents) return all;
    all.push_back({"Mask::documents", [this](Call& c, double* at) {
                     const auto* ids = reinterpret_cast<const Index*>(at);
                     c.options.mask.add(Mask::documents(In<Index, 2>(ids, Shape{1, pairs[3]})));
                   }});
    return all;
  }

  /// A gradient of another shape, or in the memory of something that the call views.
  template <class Vary>
  std::vector<Rule> of_gradient(const std::string& name, const std::string& right,
                                const std::string& wrong, const std::string& whence,
                                const Vary& vary) const {
    std::vector<Rule> rules = {{name + " is " + wrong + ", expected " + right + " (" + whence + ")",
                                [this, vary](Call& c) {
                                  learn(c);
                                  vary(c, true, nullptr);
                                }}};
    for (const auto& [other, lay] : views()) {
      rules.push_back({name + " overlaps " + other + ", expected memory of its own",
                       [this, vary, lies = lay](Call& c) {
                         static std::vector<double> storage(200);  // lengths of 0
                         learn(c);
                         lies(c, storage.data());
                         vary(c, false, storage.data());
                       }});
    }
    return rules;
  }

  /// Two gradients in the same memory.
  std::vector<Rule> of_pairs() const {
    const auto vector = [](InOut<double, 1> Learned::*member, Index n) {
      return Lay([=](Call& c, double* at) { c.learned.*member = {at, Shape{n}}; });
    };
    const auto bias_at = [this](std::size_t n) {
      return Lay([this, n](Call& c, double* at) {
        if (n > 0) c.options.mask.add(Mask::bias(c.memory.tensor(bias)));
        c.learned.d_biases[n] = {at, bias};
      });
    };
    const std::vector<std::pair<std::string, Lay>> gradients = {
        {"d_scale", vector(&Learned::d_scale, 1)},
        {"d_function", vector(&Learned::d_function, 2)},
        {"d_alibi_slopes", vector(&Learned::d_alibi_slopes, 4)},
        {"d_relative_bias",
         [](Call& c, double* at) {
           c.learned.d_relative_bias = {at, Shape{1, 5}};
         }},
        {"d_sinks", vector(&Learned::d_sinks, 4)},
        {"d_biases", bias_at(0)},
        {"d_biases", bias_at(1)}};
    std::vector<Rule> rules;
    for (std::size_t j = 1; j < gradients.size(); ++j) {
      for (std::size_t i = 0; i < j; ++i) {
        rules.push_back({gradients[j].first + " overlaps " + gradients[i].first +
                             ", expected memory of its own",
                         [this, one = gradients[i].second, other = gradients[j].second](Call& c) {
                           static std::vector<double> storage(200);
                           learn(c);
                           one(c, storage.data());
                           other(c, storage.data());
                         }});
      }
    }
    return rules;
  }

  std::vector<Rule> all() const {
    const std::string of_option = "the shape of what it is the gradient of";
    const auto place = [](Call& c, double* at, Index n) {
      return at != nullptr ? at : c.memory.tensor(n).data();
    };
    const auto vector = [=](InOut<double, 1> Learned::*member, Index n) {
      return [=](Call& c, bool wrong, double* at) {
        c.learned.*member = {place(c, at, 9), Shape{wrong ? n + 1 : n}};
      };
    };
    std::vector<Rule> rules;
    const auto add = [&](const std::vector<Rule>& more) {
      rules.insert(rules.end(), more.begin(), more.end());
    };
    add(of_gradient("d_scale", "[1]", "[2]", "one scale for all heads",
                    vector(&Learned::d_scale, 1)));
    add(of_gradient("d_alibi_slopes", "[4]", "[5]", of_option,
                    vector(&Learned::d_alibi_slopes, 4)));
    add(of_gradient("d_sinks", "[4]", "[5]", of_option, vector(&Learned::d_sinks, 4)));
    add(of_gradient("d_relative_bias", "[1, 5]", "[4, 5]", of_option,
                    [=](Call& c, bool wrong, double* at) {
                      c.learned.d_relative_bias = {place(c, at, 20), Shape{wrong ? 4 : 1, 5}};
                    }));
    add(of_gradient("d_biases", bias.format(), wrong_bias.format(), of_option,
                    [this, place](Call& c, bool wrong, double* at) {
                      c.learned.d_biases[0] = {place(c, at, 140), wrong ? wrong_bias : bias};
                    }));
    add(of_gradient("d_function", "[2]", "[3]", "the function's parameters",
                    vector(&Learned::d_function, 2)));
    add(of_pairs());
    const auto folded = [this](const std::string& name, auto fold) {
      return Rule{name + " holds one element at two indices, expected elements of their own",
                  [this, fold](Call& c) {
                    learn(c);
                    fold(c);
                  }};
    };
    const auto fold = [=](InOut<double, 1> Learned::*member) {
      return [=](Call& c) { c.learned.*member = {place(c, nullptr, 4), Shape{4}, Shape{0}}; };
    };
    rules.push_back(folded("d_biases", [=, this](Call& c) {
      c.learned.d_biases[0] = {place(c, nullptr, 1), bias, Shape<4>()};
    }));
    rules.push_back(folded("d_sinks", fold(&Learned::d_sinks)));
    rules.push_back(folded("d_function", [=](Call& c) {
      c.learned.d_function = {place(c, nullptr, 1), Shape{2}, Shape{0}};
    }));
    rules.push_back(folded("d_alibi_slopes", fold(&Learned::d_alibi_slopes)));
    rules.push_back(folded("d_relative_bias", [=](Call& c) {
      c.learned.d_relative_bias = {place(c, nullptr, 5), Shape{1, 5}, Shape{5, 0}};
    }));
    const auto of_nothing = [](const char* name, const char* got, const char* expected, auto ask) {
      return Rule{std::string(name) + " is " + got + ", expected " + expected +
                      " (the call has nothing that it is the gradient of)",
                  ask};
    };
    rules.push_back(of_nothing("d_sinks", "[4]", "[0]",
                               [](Call& c) { c.learned.d_sinks = c.memory.tensor(4); }));
    rules.push_back(of_nothing("d_alibi_slopes", "[4]", "[0]",
                               [](Call& c) { c.learned.d_alibi_slopes = c.memory.tensor(4); }));
    rules.push_back(of_nothing("d_relative_bias", "[1, 3]", "[0, 0]",
                               [](Call& c) { c.learned.d_relative_bias = c.memory.tensor(1, 3); }));
    rules.push_back(of_nothing("d_biases", "[1, 1, 5, 7]", "[0, 0, 0, 0]", [](Call& c) {
      c.learned.d_biases[3] = c.memory.tensor(1, 1, 5, 7);
    }));
    return rules;
  }
};

}  // namespace headwise_tests
