// Random calls of multi-head attention, drawn by number alone. A test that fails with one names its
// number, and nothing else is needed to draw it again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/draw.hpp"
#include "support/random_call.hpp"
#include "support/tile_sizes.hpp"

namespace headwise_tests {

inline void draw_sizes(Draw& draw, RandomConfiguration& c) {
  const auto length = [&] {
    if (draw.coin(0.2)) return draw.between(0, 1);
    return draw.coin(0.75) ? draw.between(2, 6) : draw.between(7, 20);
  };
  c.bare = draw.coin(0.2);
  c.self = !c.bare && draw.coin();
  c.B = draw.coin(0.1) ? 0 : draw.between(1, 3);
  c.L = length();
  c.S = c.self ? c.L : length();
  const bool is_long = draw.coin(0.15);
  if (is_long) c.L = draw.between(45, 60), c.S = c.self ? c.L : draw.between(60, 80);
  if (is_long && draw.coin(0.15)) {  // more than a block of queries, and of keys
    c.L = TileSizes::queries + draw.between(1, 9);
    c.S = c.self ? c.L : TileSizes::keys + draw.between(1, 9);
  }
  const auto width = [&] {
    return is_long || draw.coin(0.75) ? draw.between(1, 4) : draw.between(5, 17);
  };
  MultiHeadAttentionOptions& o = c.options;
  o.num_heads = is_long ? draw.between(1, 2) : draw.between(1, 6);
  do {
    o.num_kv_heads = draw.between(1, o.num_heads);
  } while (o.num_heads % o.num_kv_heads != 0);
  o.d_head = width();
  o.d_value = draw.coin() ? o.d_head : width();
  o.layer_norm = !c.bare && draw.coin(0.4);
  o.layer_norm_affine = draw.coin(0.6);
  o.d_model = std::max(width(), Index{o.layer_norm ? 3 : 1});
  if (!c.bare && !c.self && draw.coin()) o.kdim = width(), o.vdim = width();
  for (bool* bias : {&o.q_bias, &o.k_bias, &o.v_bias, &o.o_bias}) *bias = draw.coin();
  o.seed = c.seed;
  o = o.resolved();
}

inline Index broadcast_offset(const Tensor<double, 4>& x, Index b, Index h, Index i, Index j) {
  Shape<4> at{b, h, i, j};
  for (int r = 0; r < 4; ++r) at[r] = std::min(at[r], x.extent(r) - 1);
  return x.offset(at);
}

/// How many queries of all heads see no key. In rows where all visible keys have `fill` as their
/// first bias, one loses it: a number of 1e9 on every score would leave 7 digits of the scores.
inline Index count_dead_rows(RandomConfiguration& c, double fill) {
  Index dead = 0;
  for_each_index(Shape{c.B, c.options.num_heads, c.L}, [&](const Shape<3>& at) {
    const HeadVisibility<double> visible(c.mask.view<double>(), at[0], at[1], c.L, c.S);
    double* first = nullptr;
    bool sees = false, all_filled = !c.mask.biases.empty();
    for (Index j = 0; j < c.S; ++j) {
      if (!visible.visible(at[2], j)) continue;
      sees = true;
      if (!all_filled) continue;
      Tensor<double, 4>& values = c.mask.biases[0].values;
      double* bias = values.data() + broadcast_offset(values, at[0], at[1], at[2], j);
      if (first == nullptr) first = bias;
      all_filled = *bias == fill;
    }
    if (!sees) ++dead;
    if (sees && all_filled) *first = 0.5;
  });
  return dead;
}

inline void draw_mask(Draw& draw, RandomConfiguration& c) {
  RandomMask& m = c.mask;
  if (draw.coin(0.15)) return;
  const Index H = c.options.num_heads;
  const auto axes = [&] {
    return Shape{draw.coin(0.6) ? c.B : 1, draw.coin(0.6) ? H : 1, draw.coin(0.7) ? c.L : 1,
                 draw.coin(0.7) ? c.S : 1};
  };
  m.causal = draw.coin(0.25);
  if (draw.coin(0.2)) m.window = draw.between(1, 8);
  if (draw.coin(0.25)) {
    m.lengths.emplace();
    for (Index b = 0; b < c.B; ++b) m.lengths->push_back(draw.between(0, c.S));
  }
  const auto pairs = [&](RandomMask::Form form, bool keep, const Shape<4>& shape) {
    if (!draw.coin(0.16) || m.pairs.size() == 4) return;
    const double visible = draw.coin(0.8) ? 0.8 : 0.3;
    Tensor<bool, 4> values(shape);
    for (bool& value : values) value = draw.coin(visible) == keep;
    m.pairs.push_back({form, keep, std::move(values)});
  };
  for (const bool keep : {true, false}) {
    pairs(RandomMask::Form::pairs, keep, axes());
    pairs(RandomMask::Form::square, keep, Shape{1, 1, c.L, c.S});
    pairs(RandomMask::Form::keys, keep, Shape{c.B, 1, 1, c.S});
  }
  for (int n = 0; n < 2; ++n) {
    if (!draw.coin(n == 0 ? 0.45 : 0.25)) continue;
    const bool square = draw.coin(0.3);
    auto values = draw.tensor<double>(square ? Shape{1, 1, c.L, c.S} : axes());
    const Index special = m.biases.empty() ? draw.between(0, 2) : draw.between(0, 1);
    for (double& value : values) {
      if (special == 1 && draw.coin(0.3)) value = -std::numeric_limits<double>::infinity();
      if (special == 2 && draw.coin(0.4)) value = -1e9;
    }
    m.biases.push_back({square, std::move(values), {}});
  }
}

/// A mask function, apart from the other masks, so that the rest of a number stays what it is.
inline void draw_mask_function(RandomConfiguration& c) {
  Draw draw(c.seed + 5000000);
  if (!draw.coin(0.2)) return;
  c.mask.bounded = draw.coin();
  c.mask.function.emplace(CoinPattern{c.seed, draw.coin() ? 2u : 6u}, ScatteredBounds{c.S});
}

/// What leaves gaps between a query's keys, and more biases than two, likewise.
inline void draw_gaps(RandomConfiguration& c) {
  Draw draw(c.seed + 6000000);
  RandomMask& m = c.mask;
  if (m.window != 0 && draw.coin()) m.first = draw.between(1, 3);
  if (draw.coin(0.12)) {
    m.documents.emplace(Shape{draw.coin() ? c.B : 1, c.S});
    for_each_index(m.documents->shape(), [&](const Shape<2>& at) {
      const Index before = at[1] == 0 ? 0 : (*m.documents)(at[0], at[1] - 1);
      (*m.documents)(at) = before + (draw.coin(0.2) ? 1 : 0);
    });
  }
  if (!draw.coin(0.1)) return;
  for (std::size_t wanted = draw.coin() ? 3 : 4; m.biases.size() < wanted;) {
    const Shape<4> shape{draw.coin() ? c.B : 1, draw.coin() ? c.options.num_heads : 1,
                         draw.coin() ? c.L : 1, draw.coin() ? c.S : 1};
    m.biases.push_back({false, draw.tensor<double>(shape), {}});
  }
}

/// Norms and positions of queries and keys, behind everything else, so that the rest of a number
/// stays what it is. The norm's epsilon is large: of rows of one element it is all that bends.
inline void draw_positions(RandomConfiguration& c) {
  Draw draw(c.seed + 3000000);
  MultiHeadAttentionOptions& o = c.options;
  if (c.bare) return;
  o.qk_norm = draw.coin(0.4);
  o.qk_norm_affine = draw.coin(0.6);
  o.qk_norm_epsilon = 0.1 + draw.unit();
  if (o.d_head < 2 || !draw.coin(0.7)) return;
  RotaryOptions rotary;
  rotary.theta = draw.coin() ? 10000 : 10;
  rotary.width = 2 * draw.between(1, o.d_head / 2);
  if (rotary.width == o.d_head && draw.coin()) rotary.width = 0;
  rotary.pairing = draw.coin() ? RotaryPairing::halves : RotaryPairing::interleaved;
  if (draw.coin()) rotary.offset = draw.between(1, 100);
  if (draw.coin()) {
    std::vector<double> frequencies;
    for (Index t = 0; t < rotary.width_of(o.d_head) / 2; ++t) frequencies.push_back(draw.normal());
    rotary.frequencies = frequencies;
  }
  o.rotary = rotary;
}

/// What is done to scores, likewise. Caps are near the scores, where they bend.
inline void draw_scores(RandomConfiguration& c) {
  Draw draw(c.seed + 4000000);
  RandomScores& s = c.score;
  const Index H = c.options.num_heads;
  if (draw.coin(0.4)) s.softcap = 0.5 + 3 * draw.unit();
  if (draw.coin(0.3)) s.tensors.slopes = draw.tensor<double>(Shape{H});
  if (draw.coin(0.3)) s.tensors.sinks = draw.tensor<double>(Shape{H});
  if (draw.coin(0.3)) {
    const Index reach = draw.between(0, draw.coin(0.8) ? 5 : 100);
    s.tensors.table = draw.tensor<double>(Shape{draw.coin(0.7) ? H : 1, 2 * reach + 1});
  }
  if (draw.coin(0.1)) {
    s.tensors.function = Tensor<double, 1>({2}, {0.3 + draw.unit(), draw.unit() - 0.5});
  }
  if (c.scale) s.tensors.scale = Tensor<double, 1>(Shape{1}), s.tensors.scale(0) = *c.scale;
  s.learned_biases = !c.mask.biases.empty();
  for (const auto& bias : c.mask.biases) {
    for (const double value : bias.values) s.learned_biases = s.learned_biases && value > -1e8;
  }
  for (const auto& bias : c.mask.biases) {
    if (s.learned_biases) s.tensors.biases.push_back(bias.values);
  }
  s.convert_all();
}

/// What changes scores and is the module's own, likewise.
inline void draw_own_scores(RandomConfiguration& c) {
  Draw draw(c.seed + 7000000);
  const auto& given = c.score.tensors;
  c.options.sinks = !c.bare && given.sinks.absent() && draw.coin(0.3);
  c.options.alibi = !c.bare && given.slopes.absent() && draw.coin(0.2);
  if (!c.bare && given.table.absent() && draw.coin(0.2)) {
    c.options.relative_reach = draw.between(1, 6);
  }
}

/// The configuration of this number.
inline RandomConfiguration random_configuration(std::uint64_t seed) {
  Draw draw(seed);
  RandomConfiguration c;
  c.seed = seed;
  draw_sizes(draw, c);
  draw_mask(draw, c);
  if (draw.coin(0.25)) c.scale = (draw.coin(0.7) ? 1.0 : -1.0) * (0.2 + draw.unit());
  const auto dropout = [&] {
    return Dropout{.rate = draw.coin(0.1) ? 1.0 : 0.6 * draw.unit(), .seed = seed, .step = 3};
  };
  if (draw.coin(0.3)) c.weight_dropout = dropout();
  if (!c.bare && draw.coin(0.3)) c.output_dropout = dropout();
  for (Layout& layout : c.layouts) layout = static_cast<Layout>(draw.between(0, 4));
  draw_mask_function(c);
  draw_gaps(c);
  c.dead_rows = count_dead_rows(c, -1e9);
  draw_positions(c);
  draw_scores(c);
  draw_own_scores(c);
  for (auto& bias : c.mask.biases) {
    const In<double, 4> values = bias.values;
    bias.others = {convert<long double>(values), convert<Dual<double>>(values),
                   convert<Dual<long double>>(values)};
  }
  return c;
}

}  // namespace headwise_tests
