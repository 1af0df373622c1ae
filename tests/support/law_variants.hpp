// Variants of attention as the laws are told of them: plain loops from the formulas of
// docs/features, without a header of what computes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <vector>

#include "headwise/testing/attention_variant.hpp"

namespace headwise_tests {

using namespace headwise;

/// Which rows are turned by their positions, and how.
enum class Turn { none, halves, interleaved };

/// What is done beyond softmax(scale q k^T) v. Its numbers are the same in every type.
struct VariantRecipe {
  const char* name = "";
  bool norm = false;                // rows divided by their root mean square, times gamma
  Turn turn = Turn::none;           // then rotary positions
  Index turned = 0;                 // the width that is turned; 0 for all
  bool softcap = false;             // of softcap_of
  bool alibi = false;               // slopes of slope_of
  bool relative = false;            // relative_of by distance, up to reach
  bool bias = false;                // bias_of
  bool head_scale = false;          // scale_of; a function of one's own, as the next
  bool fading = false;              // s / (1 + distance / 8) + (h + 1) / 4 s / (1 + s^2)
  bool sinks = false;               // sink_of
  Index window = 0;                 // |i + (S - L) - j| < window; 0 for none
  Index first_keys = 0;             // and j < first_keys
  Index document = 0;               // keys of a document; 0 for none
  Index kept_keys = 0;              // j < kept_keys, j % 4 != 2; 0 for none
  bool every_third_hidden = false;  // hides keys j % 3 == h % 3
  bool dilated = false;             // sees each (h + 1)-th key, as far as dilated_reach

  static constexpr double softcap_of = 1.5, theta = 100, epsilon = 1.0 / (1 << 20);
  static constexpr Index reach = 3, dilated_reach = 5;
  static double slope_of(Index h) { return std::ldexp(1.0, static_cast<int>(-1 - h)); }
  static double relative_of(Index h, Index entry) {  // 0 <= entry <= 2 reach
    return static_cast<double>((5 * entry + 3 * h) % 11 - 5) / 4;
  }
  static double bias_of(Index h, Index query, Index key) {
    return static_cast<double>((7 * (query + 1300) + 3 * key + 2 * h) % 13 - 6) / 8;
  }
  static double scale_of(Index h) { return 0.5 + static_cast<double>(h) / 4; }
  static double sink_of(Index h) { return static_cast<double>(h) / 2 - 0.25; }
  static double gamma_of(bool of_key, Index c) {
    return of_key ? 1 - static_cast<double>(c % 2) / 2 : 1 + static_cast<double>(c % 3) / 4;
  }
};

inline void divide_by_root_mean_square(std::span<long double> row, bool of_key) {
  long double squares = 0;
  for (const long double& x : row) squares += x * x;
  const long double mean = squares / static_cast<long double>(row.size());
  for (std::size_t c = 0; c < row.size(); ++c) {
    row[c] *= VariantRecipe::gamma_of(of_key, static_cast<Index>(c)) /
              std::sqrt(mean + VariantRecipe::epsilon);
  }
}

inline void turn_row(std::span<long double> row, Turn turn, Index turned, Index position) {
  const std::size_t width =
      turned == 0 ? row.size()
                  : std::min<std::size_t>(row.size(), static_cast<std::size_t>(turned));
  for (std::size_t t = 0; t < width / 2; ++t) {
    const long double angle =
        static_cast<long double>(position) *
        std::pow(static_cast<long double>(VariantRecipe::theta),
                 -2 * static_cast<long double>(t) / static_cast<long double>(width));
    long double& a = row[turn == Turn::halves ? t : 2 * t];
    long double& b = row[turn == Turn::halves ? t + width / 2 : 2 * t + 1];
    const long double x = a, y = b;
    a = x * std::cos(angle) - y * std::sin(angle);
    b = x * std::sin(angle) + y * std::cos(angle);
  }
}

/// Softcap, ALiBi, relative bias, bias, function, in this order.
inline VariantScore score_of_recipe(const VariantRecipe& r, long double s,
                                    const VariantPosition& at) {
  long double slope = 1;
  const Index distance = at.key - at.query;
  const auto apart = static_cast<long double>(std::abs(distance));
  if (r.softcap) {
    const long double bent = std::tanh(s / VariantRecipe::softcap_of);
    s = VariantRecipe::softcap_of * bent;
    slope *= 1 - bent * bent;
  }
  if (r.alibi) s -= VariantRecipe::slope_of(at.head) * apart;
  if (r.relative) {
    const Index reach = VariantRecipe::reach;
    s += VariantRecipe::relative_of(at.head, std::clamp(distance, -reach, reach) + reach);
  }
  if (r.bias) s += VariantRecipe::bias_of(at.head, at.query, at.key);
  if (r.head_scale) {
    s *= VariantRecipe::scale_of(at.head);
    slope *= VariantRecipe::scale_of(at.head);
  }
  if (r.fading) {
    const long double share = 1 / (1 + apart / 8);
    const long double wave = static_cast<long double>(at.head + 1) / 4;
    const long double bound = 1 + s * s;
    slope *= share + wave * (1 - s * s) / (bound * bound);
    s = share * s + wave * s / bound;
  }
  return {s, slope};
}

inline bool hides(const VariantRecipe& r, const VariantPosition& at) {
  const auto [h, i, j] = at;
  if (r.window > 0 && std::abs(i - j) >= r.window && j >= r.first_keys) return true;
  if (r.document > 0 && (i < 0 || i / r.document != j / r.document)) return true;
  if (r.kept_keys > 0 && (j >= r.kept_keys || j % 4 == 2)) return true;
  if (r.every_third_hidden && j % 3 == h % 3) return true;
  return r.dilated &&
         (std::abs(i - j) > VariantRecipe::dilated_reach || std::abs(i - j) % (h + 1) != 0);
}

inline AttentionVariant variant_of(const VariantRecipe& r) {
  AttentionVariant variant;
  if (r.norm || r.turn != Turn::none) {
    const auto encode = [r](bool of_key) {
      return [r, of_key](std::span<long double> row, Index position) {
        if (r.norm) divide_by_root_mean_square(row, of_key);
        if (r.turn != Turn::none) turn_row(row, r.turn, r.turned, position);
      };
    };
    variant.encode_query = encode(false);
    variant.encode_key = encode(true);
  }
  if (r.softcap || r.alibi || r.relative || r.bias || r.head_scale || r.fading) {
    variant.score = [r](long double s, const VariantPosition& at) {
      return score_of_recipe(r, s, at);
    };
  }
  if (r.window > 0 || r.document > 0 || r.kept_keys > 0 || r.every_third_hidden || r.dilated) {
    variant.hides = [r](const VariantPosition& at) { return hides(r, at); };
  }
  if (r.sinks) variant.sink = [](Index h) { return VariantRecipe::sink_of(h); };
  variant.by_position = r.turn != Turn::none || r.alibi || r.relative || r.bias || r.fading;
  return variant;
}

/// Each variant alone, and those that combine in one.
inline const std::vector<VariantRecipe>& variant_recipes() {
  static const std::vector<VariantRecipe> recipes = {
      {.name = "softcap", .softcap = true},
      {.name = "ALiBi", .alibi = true},
      {.name = "relative bias", .relative = true},
      {.name = "bias of pairs", .bias = true},
      {.name = "scale of a head", .head_scale = true},
      {.name = "score function", .fading = true},
      {.name = "sinks", .sinks = true},
      {.name = "norm of queries and keys", .norm = true},
      {.name = "rotary, halves", .turn = Turn::halves},
      {.name = "rotary, interleaved", .turn = Turn::interleaved},
      {.name = "rotary, halves of 4", .turn = Turn::halves, .turned = 4},
      {.name = "rotary, interleaved in 4", .turn = Turn::interleaved, .turned = 4},
      {.name = "window", .window = 3},
      {.name = "window and first keys", .window = 3, .first_keys = 2},
      {.name = "documents", .document = 4},
      {.name = "padding", .kept_keys = 9},
      {.name = "mask function", .every_third_hidden = true},
      {.name = "mask function with bounds", .dilated = true},
      {.name = "all that bends",
       .norm = true,
       .turn = Turn::halves,
       .softcap = true,
       .alibi = true,
       .relative = true,
       .bias = true,
       .fading = true,
       .sinks = true},
      {.name = "all",
       .norm = true,
       .turn = Turn::interleaved,
       .turned = 4,
       .softcap = true,
       .alibi = true,
       .relative = true,
       .bias = true,
       .fading = true,
       .sinks = true,
       .window = 5,
       .first_keys = 2,
       .document = 7,
       .kept_keys = 12,
       .every_third_hidden = true},
  };
  return recipes;
}

}  // namespace headwise_tests
