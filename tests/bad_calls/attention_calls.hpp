// The four attention functions and a call of them, all of it right; tables of what is spoilt in it.
#pragma once

#include <string>
#include <vector>

#include "support/refusal.hpp"

namespace headwise_tests::attention_calls {

/// What the four functions take, all of it right.
struct Call {
  explicit Call(Witness& m) : memory(m) {}
  Witness& memory;
  View4<double> q = memory.tensor(2, 4, 5, 3), k = memory.tensor(2, 2, 7, 3),
                v = memory.tensor(2, 2, 7, 6), d_o = memory.tensor(2, 4, 5, 6),
                weights = memory.tensor(2, 4, 5, 7), o = memory.tensor(2, 4, 5, 6),
                lse = memory.tensor(2, 4, 5, 2), dq = memory.tensor(2, 4, 5, 3),
                dk = memory.tensor(2, 2, 7, 3), dv = memory.tensor(2, 2, 7, 6);
  AttentionOptions<double> options = {};
  ScoreGradients<double> learned = {};
  Context context = memory.context();
};

struct Function {
  std::string name;
  void (*call)(Call&);
};
inline const Function forward = {
    "attention_forward",
    [](Call& c) { attention_forward(c.q, c.k, c.v, c.options, c.weights, c.o, c.context); }};
inline const Function backward = {"attention_backward", [](Call& c) {
                                    attention_backward(c.d_o, {c.q, c.k, c.v}, c.weights, c.options,
                                                       {c.dq, c.dk, c.dv, c.learned}, c.context);
                                  }};
inline const Function flash_forward = {
    "flash_attention_forward",
    [](Call& c) { flash_attention_forward(c.q, c.k, c.v, c.options, c.o, c.lse, c.context); }};
inline const Function flash_backward = {"flash_attention_backward", [](Call& c) {
                                          flash_attention_backward(
                                              c.d_o, {c.q, c.k, c.v}, c.o, c.lse, c.options,
                                              {c.dq, c.dk, c.dv, c.learned}, c.context);
                                        }};
inline const std::vector<Function> all = {forward, backward, flash_forward, flash_backward};

struct Rule {
  std::string message;
  Action<Call&> spoil;
  bool of_shape = true;
};

/// Each rule for each function.
inline std::vector<Refusal> table(const std::vector<Function>& functions,
                                  const std::vector<Rule>& rules) {
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

}  // namespace headwise_tests::attention_calls
