// Random calls of multi-head attention, drawn by number alone: shapes, masks, dropout, memory
// layouts. A test that fails with one names its number, and nothing else is needed to draw it
// again.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/tensor/dual.hpp"
#include "support/mask_patterns.hpp"
#include "support/score_tensors.hpp"
#include "support/tile_sizes.hpp"

namespace headwise_tests {

using namespace headwise;

/// Random numbers, the same on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : key_(philox_key(seed, 0x64726177u, 0)) {}

  double unit() {
    const auto words = philox({static_cast<std::uint32_t>(count_++), 0, 1, 0}, key_);
    return unit_interval(words[0], words[1]);
  }
  Index between(Index low, Index high) {
    return std::min(high, low + static_cast<Index>(unit() * static_cast<double>(high - low + 1)));
  }
  bool coin(double heads = 0.5) { return unit() <= heads; }
  double normal() { return philox_normal(key_, count_++); }

  template <class T, int R>
  Tensor<T, R> tensor(const Shape<R>& shape) {
    Tensor<T, R> x(shape);
    for (T& value : x) value = static_cast<T>(normal());
    return x;
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint64_t count_ = 0;
};

template <class T, int R>
Tensor<T, R> random_tensor(const Shape<R>& shape, std::uint64_t seed) {
  return Draw(seed).tensor<T>(shape);
}

/// Where the elements of a tensor lie.
enum class Layout { dense, in_wider_rows, in_longer_sequence, sequence_first, columns_first };

/// A tensor in one of the layouts. NaN lies between its elements, so that what reads them shows.
template <class T, int R>
struct LaidOut {
  Tensor<T, R> storage;
  TensorView<T, R> view;

  LaidOut(const Shape<R>& shape, Layout layout) : storage(storage_shape(shape, layout)) {
    std::fill(storage.begin(), storage.end(), std::numeric_limits<T>::quiet_NaN());
    view = as_view(storage);
    if (layout == Layout::in_wider_rows) view = slice(view, R - 1, 2, shape[R - 1]);
    if (layout == Layout::in_longer_sequence) view = slice(view, R - 2, 1, shape[R - 2]);
    if (layout == Layout::sequence_first) view = transpose(view, 0, R - 2);
    if (layout == Layout::columns_first) view = transpose(view, R - 2, R - 1);
  }
  LaidOut(const In<T, R>& values, Layout layout) : LaidOut(values.shape(), layout) {
    copy(values, view);
  }

 private:
  static Shape<R> storage_shape(Shape<R> shape, Layout layout) {
    if (layout == Layout::in_wider_rows) shape[R - 1] += 5;
    if (layout == Layout::in_longer_sequence) shape[R - 2] += 2;
    if (layout == Layout::sequence_first) std::swap(shape[0], shape[R - 2]);
    if (layout == Layout::columns_first) std::swap(shape[R - 2], shape[R - 1]);
    return shape;
  }
};

/// Any number of masks, and what they view.
struct RandomMask {
  enum class Form { pairs, square, keys };  // [B, H, L, S] or 1, [L, S], [B, S]
  struct Pairs {
    Form form;
    bool keep;
    Tensor<bool, 4> values;
  };
  struct Bias {
    bool square;  // [L, S]
    Tensor<double, 4> values;
    // The same values, for calls of other types.
    std::tuple<Tensor<long double, 4>, Tensor<Dual<double>, 4>, Tensor<Dual<long double>, 4>>
        others;
  };

  bool causal = false;
  Index window = 0;
  std::optional<std::vector<Index>> lengths = {};
  std::vector<Pairs> pairs = {};
  std::vector<Bias> biases = {};
  std::optional<MaskFunction<CoinPattern, ScatteredBounds>> function = {};
  bool bounded = false;  // whether the function has bounds

  int terms() const {
    return int{causal} + int{window != 0} + int{lengths.has_value()} + int{function.has_value()} +
           static_cast<int>(pairs.size() + biases.size());
  }

  /// Of its own biases, or of others of the same shapes.
  template <class T>
  AttentionMask<T> view(const std::vector<Tensor<T, 4>>* others = nullptr) const {
    AttentionMask<T> mask;
    if (causal) mask.add(headwise::causal);
    if (window != 0) mask.add(Mask::window(window));
    if (lengths) mask.add(Mask::key_lengths(*lengths));
    for (const Pairs& p : pairs) {
      const Shape<4>& s = p.values.shape();
      const In<bool, 2> square(p.values.data(), Shape{s[2], s[3]});
      const In<bool, 2> keys(p.values.data(), Shape{s[0], s[3]});
      if (p.form == Form::pairs) mask.add(p.keep ? Mask::keep(p.values) : Mask::drop(p.values));
      if (p.form == Form::square) mask.add(p.keep ? Mask::keep(square) : Mask::drop(square));
      if (p.form == Form::keys) mask.add(p.keep ? Mask::keep_keys(keys) : Mask::drop_keys(keys));
    }
    for (std::size_t n = 0; n < biases.size(); ++n) {
      const Bias& bias = biases[n];
      const In<T, 4> values = others != nullptr ? In<T, 4>((*others)[n]) : values_of<T>(bias);
      const Shape<4>& s = values.shape();
      mask.add(bias.square ? Mask::bias(In<T, 2>(values.data(), Shape{s[2], s[3]}))
                           : Mask::bias(values));
    }
    if (function) mask.add(bounded ? Mask::function(*function) : without_bounds(*function));
    return mask;
  }

 private:
  template <class T>
  static In<T, 4> values_of(const Bias& bias) {
    if constexpr (std::is_same_v<T, double>) {
      return bias.values;
    } else {
      return std::get<Tensor<T, 4>>(bias.others);
    }
  }
};

/// What is done to scores, in double and, the same values, for calls of other types.
struct RandomScores {
  std::optional<double> softcap = {};
  bool learned_biases = false;  // gradients of the mask's, where all are numbers like others
  ScoreTensors<double> tensors = {};
  std::tuple<ScoreTensors<long double>, ScoreTensors<Dual<double>>, ScoreTensors<Dual<long double>>>
      others = {};

  template <class T>
  ScoreOptions<T> view() const {
    std::optional<T> cap;
    if (softcap) cap = T(*softcap);
    if constexpr (std::is_same_v<T, double>) {
      return tensors.options(cap);
    } else {
      return std::get<ScoreTensors<T>>(others).options(cap);
    }
  }
};

/// One call, with everything that may vary from one to the next.
struct RandomConfiguration {
  std::uint64_t seed = 0;
  bool bare = false;  // attention alone, without projections
  bool self = false;  // keys and values from the input of the queries
  Index B = 0, L = 0, S = 0;
  MultiHeadAttentionOptions options = {};
  std::optional<double> scale = {};
  Dropout weight_dropout = {}, output_dropout = {};
  RandomMask mask = {};
  RandomScores score = {};
  std::array<Layout, 4> layouts = {};  // of query, key, value and dy
  Index dead_rows = 0;                 // queries of all heads that see no key

  template <class T>
  MultiHeadAttentionCall<T> call(Path path) const {
    MultiHeadAttentionCall<T> call;
    call.mask = mask.view<T>();
    call.score = score.view<T>();
    call.path = path;
    if (scale) call.scale = static_cast<T>(*scale);
    call.weight_dropout = weight_dropout;
    call.output_dropout = output_dropout;
    return call;
  }
  /// Multiply-adds of a forward call.
  Index work() const {
    const MultiHeadAttentionOptions& o = options;
    const Index core = B * o.num_heads * L * S * (o.d_head + o.d_value);
    if (bare) return core;
    return core + B * L * o.d_model * (o.q_width() + o.context_width()) +
           B * S * (o.kdim * o.k_width() + o.vdim * o.v_width());
  }
};

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
  if (c.scale) s.tensors.scale = Tensor<double, 1>(Shape{1}), s.tensors.scale(0) = *c.scale;
  s.learned_biases = !c.mask.biases.empty();
  for (const auto& bias : c.mask.biases) {
    for (const double value : bias.values) s.learned_biases = s.learned_biases && value > -1e8;
  }
  for (const auto& bias : c.mask.biases) {
    if (s.learned_biases) s.tensors.biases.push_back(bias.values);
  }
  s.others = {s.tensors.converted<long double>(), s.tensors.converted<Dual<double>>(),
              s.tensors.converted<Dual<long double>>()};
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
  c.dead_rows = count_dead_rows(c, -1e9);
  draw_positions(c);
  draw_scores(c);
  for (auto& bias : c.mask.biases) {
    const In<double, 4> values = bias.values;
    bias.others = {convert<long double>(values), convert<Dual<double>>(values),
                   convert<Dual<long double>>(values)};
  }
  return c;
}

}  // namespace headwise_tests
