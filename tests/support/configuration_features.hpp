// What a random configuration holds, by name: for messages, and to count that nothing is left out.
#pragma once

#include <string>

#include "support/random_call.hpp"
#include "support/tile_sizes.hpp"

namespace headwise_tests {

/// What the configuration has of all that may vary.
inline std::vector<std::string> features(const RandomConfiguration& c) {
  std::vector<std::string> names;
  const auto note = [&](bool has, const char* name) {
    if (has) names.push_back(name);
  };
  const MultiHeadAttentionOptions& o = c.options;
  const RandomMask& m = c.mask;
  note(c.bare, "attention alone");
  note(!c.bare && c.self, "self-attention");
  note(!c.bare && !c.self, "cross-attention");
  note(!c.bare && !o.fused(), "kdim or vdim");
  note(c.B == 0, "B 0"), note(c.L == 0, "L 0"), note(c.S == 0, "S 0"), note(c.L == 1, "L 1");
  note(c.L != c.S, "L is not S"), note(c.L > 44, "long");
  note(c.L > TileSizes::queries, "more than a tile of queries");
  note(c.S > TileSizes::keys, "more than a tile of keys");
  note(o.num_heads == 1, "one head"), note(o.num_kv_heads == o.num_heads, "a key head each");
  note(o.num_kv_heads != o.num_heads, "grouped"), note(o.d_head == 1, "d 1");
  note(o.d_head > 8, "d above 8"), note(o.d_value != o.d_head, "dv is not d");
  if (!c.bare) {
    note(true, o.q_bias ? "b_Q" : "no b_Q"), note(true, o.k_bias ? "b_K" : "no b_K");
    note(true, o.v_bias ? "b_V" : "no b_V"), note(true, o.o_bias ? "b_O" : "no b_O");
    note(true, o.layer_norm ? "layer_norm" : "no layer_norm");
    note(o.layer_norm && o.layer_norm_affine, "gamma and beta");
    note(o.layer_norm && !o.layer_norm_affine, "layer_norm without gamma");
    note(o.qk_norm && o.qk_norm_affine, "qk_norm"), note(o.rotary.has_value(), "rotary");
    note(o.qk_norm && !o.qk_norm_affine, "qk_norm without gamma");
    note(o.qk_norm && o.rotary, "qk_norm and rotary"), note(o.sinks, "sinks of the module");
    note(o.alibi, "alibi of the module"), note(o.relative_reach > 0, "distances of the module");
  }
  if (o.rotary) {
    const bool part = o.rotary->width_of(o.d_head) < o.d_head;
    const bool halves = o.rotary->pairing == RotaryPairing::halves;
    note(part, "rotary of a part"), note(halves, "rotary halves");
    note(!halves, "rotary neighbours"), note(o.rotary->offset != 0, "rotary offset");
    note(!o.rotary->frequencies.absent(), "rotary frequencies");
  }
  note(m.terms() == 0, "no mask"), note(m.terms() == 1, "one mask");
  note(m.terms() >= 2, "two masks"), note(m.terms() >= 4, "four masks and more");
  note(m.causal, "causal"), note(m.window != 0, "window"),
      note(m.causal && c.L != c.S, "causal L S");
  note(m.lengths.has_value(), "key lengths");
  for (const auto& pairs : m.pairs) {
    const Shape<4>& s = pairs.values.shape();
    const bool full = pairs.form == RandomMask::Form::pairs;
    note(pairs.form == RandomMask::Form::square, pairs.keep ? "keep [L, S]" : "drop [L, S]");
    note(pairs.form == RandomMask::Form::keys, pairs.keep ? "keep keys" : "drop keys");
    note(full, pairs.keep ? "keep pairs" : "drop pairs");
    note(full && s[0] > 1, "pairs by batch"), note(full && s[1] > 1, "pairs by head");
  }
  for (const auto& bias : m.biases) {
    const Shape<4>& s = bias.values.shape();
    const auto holds = [&](double x) {
      return std::find(bias.values.begin(), bias.values.end(), x) != bias.values.end();
    };
    note(bias.square, "bias [L, S]"), note(!bias.square && s[0] > 1, "bias by batch");
    note(!bias.square && s[1] > 1, "bias by head"), note(s[2] == 1, "bias for all queries");
    note(s[3] == 1, "bias for all keys"), note(holds(-1e9), "bias -1e9");
    note(holds(-std::numeric_limits<double>::infinity()), "bias -inf");
  }
  note(m.biases.size() == 2, "two biases"), note(m.biases.size() > 2, "three or four biases");
  note(m.first != 0, "window and first keys"), note(m.documents.has_value(), "documents");
  note(m.function && m.bounded, "mask function between bounds");
  note(m.function && !m.bounded, "mask function");
  const RandomScores& s = c.score;
  note(s.softcap.has_value(), "softcap"), note(s.learned_biases, "learned biases");
  note(!s.tensors.slopes.absent(), "alibi"), note(!s.tensors.sinks.absent(), "sinks");
  note(!s.tensors.table.absent(), "relative bias");
  note(!s.tensors.function.absent(), "score function");
  note(s.softcap && !s.tensors.sinks.absent(), "softcap and sinks");
  note(c.dead_rows > 0, "dead rows"), note(c.scale.has_value(), "given scale");
  note(c.weight_dropout.active(), "weight dropout");
  note(c.output_dropout.active(), "output dropout");
  const std::array layouts = {"dense", "slices of wider rows", "slices of a longer sequence",
                              "sequence before batch", "columns before rows"};
  for (std::size_t n = 0; n < layouts.size(); ++n) {
    note(std::count(c.layouts.begin(), c.layouts.end(), static_cast<Layout>(n)) > 0, layouts[n]);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

/// The configuration in words, and the line that checks its gradients again.
inline std::string describe(const RandomConfiguration& c) {
  const MultiHeadAttentionOptions& o = c.options;
  std::string text = "[B, L, S] " + Shape{c.B, c.L, c.S}.format() + ", [H, G, d, dv, D] " +
                     Shape{o.num_heads, o.num_kv_heads, o.d_head, o.d_value, o.d_model}.format();
  for (const std::string& feature : features(c)) text += ", " + feature;
  return text + "\nrepeat: HEADWISE_SEED=" + std::to_string(c.seed) +
         " ./headwise_tests_nn \"gradients of random configurations*\"";
}

}  // namespace headwise_tests
