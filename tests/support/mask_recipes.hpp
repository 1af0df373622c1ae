// Every kind of mask, and some of them together, as a Case takes them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "support/attention_case.hpp"

namespace headwise_tests {

template <class T>
std::vector<Recipe<T>> mask_recipes() {
  using C = Case<T>&;
  constexpr T hidden = -std::numeric_limits<T>::infinity();
  const auto full = [](C c) { return Shape{c.sizes.B, c.sizes.H, c.sizes.L, c.sizes.S}; };
  const auto by_head = [](C c) { return Shape{Index{1}, c.sizes.H, c.sizes.L, c.sizes.S}; };
  const auto by_key = [](C c) { return Shape{c.sizes.B, Index{1}, Index{1}, c.sizes.S}; };
  return {
      {"plain", [](C) {}},
      {"causal", [](C c) { c.causal(); }},
      {"window 1", [](C c) { c.window(1); }},
      {"window 5", [](C c) { c.window(5); }},
      {"causal window 70", [](C c) { c.causal(), c.window(70); }},
      {"window 1 and first key", [](C c) { c.window(1, 1); }},
      {"causal window 5 and first 3", [](C c) { c.causal(), c.window(5, 3); }},
      {"causal window 7 and first 140", [](C c) { c.causal(), c.window(7, 140); }},
      {"window 9, first 4, lengths, keys",
       [](C c) { c.window(9, 4), c.key_lengths(), c.keys(true); }},
      {"documents", [](C c) { c.template documents<Index>(40, c.sizes.B); }},
      {"causal, documents of int32",
       [](C c) { c.causal(), c.template documents<std::int32_t>(90, 1); }},
      {"documents, window 6 and first 30, lengths, keys",
       [](C c) {
         c.template documents<Index>(60, 1), c.window(6, 30), c.key_lengths(), c.keys(true);
       }},
      {"causal window 11 and first 2, bias",
       [=](C c) { c.causal(), c.window(11, 2), c.bias(by_head(c)); }},
      {"key lengths", [](C c) { c.key_lengths(); }},
      {"keep keys", [](C c) { c.keys(true); }},
      {"drop keys", [](C c) { c.keys(false); }},
      {"keep [L, S]", [](C c) { c.square(true); }},
      {"drop [B, 1, 1, S]", [=](C c) { c.pairs(by_key(c), false); }},
      {"drop [1, H, L, S]", [=](C c) { c.pairs(by_head(c), false); }},
      {"drop [B, H, L, S]", [=](C c) { c.pairs(full(c), false); }},
      {"keep [1, 1, L, 1]",
       [](C c) {
         c.pairs(Shape{1, 1, c.sizes.L, 1}, true);
       }},
      {"keep [1, H, 1, 1]",
       [](C c) {
         c.pairs(Shape{1, c.sizes.H, 1, 1}, true);
       }},
      {"keep of whole tiles", [](C c) { c.tiles(true); }},
      {"causal, drop of whole tiles, bias",
       [=](C c) { c.causal(), c.tiles(false), c.bias(full(c)); }},
      {"bias of whole tiles", [](C c) { c.bias_of_tiles(); }},
      {"causal window 70 and first 3, bias of whole tiles",
       [](C c) { c.causal(), c.window(70, 3), c.bias_of_tiles(); }},
      {"bias [1, 1, L, S]",
       [](C c) {
         c.bias(Shape{1, 1, c.sizes.L, c.sizes.S});
       }},
      {"bias [B, 1, 1, S]", [=](C c) { c.bias(by_key(c)); }},
      {"bias [1, H, L, S]", [=](C c) { c.bias(by_head(c)); }},
      {"bias [1, H, L, 1]",
       [](C c) {
         c.bias(Shape{1, c.sizes.H, c.sizes.L, 1});
       }},
      {"bias [B, H, L, S]", [=](C c) { c.bias(full(c)); }},
      {"bias with -inf", [=](C c) { c.bias(full(c), 0.4, hidden); }},
      {"bias [B, 1, 1, S] with -inf", [=](C c) { c.bias(by_key(c), 0.4, hidden); }},
      {"bias with -1e9 in half a row", [=](C c) { c.bias(full(c), 0.5, T(-1e9)); }},
      {"causal, key lengths", [](C c) { c.causal(), c.key_lengths(); }},
      {"causal, bias, keys", [=](C c) { c.causal(), c.bias(by_head(c)), c.keys(true); }},
      {"mask function", [](C c) { c.function(false); }},
      {"mask function between bounds", [](C c) { c.function(true); }},
      {"causal window 40 and first 9, mask function between bounds",
       [](C c) { c.causal(), c.window(40, 9), c.function(true); }},
      {"causal, documents, lengths, two mask functions, keys, bias",
       [=](C c) {
         c.causal(), c.template documents<Index>(90, c.sizes.B), c.key_lengths();
         c.function(true), c.function(false), c.keys(false), c.bias(full(c), 0.2, hidden);
       }},
      {"all at once",
       [=](C c) {
         c.causal(), c.window(61), c.key_lengths(), c.square(true), c.pairs(by_head(c), false);
         c.bias(full(c)), c.bias(by_key(c), 0.2, hidden), c.scale(-0.3);
       }},
  };
}

/// What changes scores, each by itself and all at once, with dropout.
inline std::vector<Recipe<float>> score_recipes() {
  using C = Case<float>&;
  return {{"softcap", [](C c) { c.softcap(1.5); }},
          {"ALiBi", [](C c) { c.causal(), c.alibi(); }},
          {"relative biases, sinks", [](C c) { c.relative(5, false), c.sinks(); }},
          {"scale", [](C c) { c.scale(-0.7); }},
          {"dropout", [](C c) { c.dropout(0.3); }},
          {"all of dropout", [](C c) { c.dropout(1.0), c.causal(); }},
          {"everything", [](C c) {
             c.causal(), c.window(31, 3), c.keys(true), c.bias(Shape{1, c.sizes.H, c.sizes.L, 1});
             c.softcap(2.5), c.alibi(), c.relative(9, true), c.sinks(), c.scale(0.4),
                 c.dropout(0.2);
           }}};
}

}  // namespace headwise_tests
