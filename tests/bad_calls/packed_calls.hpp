// Both packed attentions and a call of them, all of it right; tables of what is spoilt in it.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "headwise/ops/packed_attention.hpp"
#include "support/refusal.hpp"

namespace headwise_tests::packed_calls {

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
inline const Function forward = {
    "packed_attention_forward",
    [](Call& c) { packed_attention_forward(c.inputs(), c.options, c.o, c.lse, c.context); }};
inline const Function backward = {"packed_attention_backward", [](Call& c) {
                                    packed_attention_backward(
                                        c.d_o, c.inputs(), c.o, c.lse, c.options,
                                        {c.dq, c.dk, c.dv, c.learned}, c.context);
                                  }};
inline const std::vector<Function> both = {forward, backward};

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

/// One of its tensors.
using Member = View3<double> Call::*;

}  // namespace headwise_tests::packed_calls
