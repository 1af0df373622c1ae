// Cases that both of the library's paths and the oracle are run on: inputs, options and masks.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "headwise/ops/attention.hpp"
#include "support/bent_score.hpp"
#include "support/mask_patterns.hpp"
#include "support/oracle.hpp"
#include "support/tile_sizes.hpp"

namespace headwise_tests {

/// Two blocks of queries and two of keys, of each the second a part of one.
inline constexpr Sizes beyond_tiles{1, 2, 1, TileSizes::queries + 3, TileSizes::keys + 7, 5, 3};

/// Numbers in (-2, 2) and coin throws, the same on every standard library.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : bits_(seed) {}
  double unit() { return static_cast<double>(bits_() >> 11) * 0x1.0p-53; }
  double number() { return 4.0 * unit() - 2.0; }
  bool coin(double heads) { return unit() < heads; }
  Index below(Index n) { return static_cast<Index>(unit() * static_cast<double>(n)); }
  template <class T, int R>
  Tensor<T, R> tensor(const Shape<R>& shape) {
    Tensor<T, R> x(shape);
    for (T& value : x) value = static_cast<T>(number());
    return x;
  }

 private:
  std::mt19937_64 bits_;
};

template <class T, int R>
Field field(const Tensor<T, R>& x) {
  Field y(x.size());
  std::copy(x.begin(), x.end(), y.values.begin());
  return y;
}

/// Inputs, the library's options and, beside them, the same masks as the oracle reads them. The
/// rules own what the options view, so that a Case may be copied.
template <class T>
struct Case {
  Sizes sizes;
  Numbers numbers;
  Tensor4<T> q, k, v, d_o;
  AttentionOptions<T> options = {};
  std::vector<PairRule> rules = {};
  std::vector<PairValue> biases = {};
  std::vector<Real> caps = {};  // one or none
  std::shared_ptr<Tensor<T, 1>> logits = {};
  std::shared_ptr<BentFunction<T>> bent = {};

  explicit Case(const Sizes& s, std::uint64_t seed = 1)
      : sizes(s),
        numbers(seed),
        q(numbers.tensor<T>(Shape{s.B, s.H, s.L, s.d})),
        k(numbers.tensor<T>(Shape{s.B, s.G, s.S, s.d})),
        v(numbers.tensor<T>(Shape{s.B, s.G, s.S, s.dv})),
        d_o(numbers.tensor<T>(Shape{s.B, s.H, s.L, s.dv})) {}

  void causal() {
    options.mask.add(headwise::causal);
    rules.push_back(
        [past = sizes.S - sizes.L](Index, Index, Index i, Index j) { return j <= i + past; });
  }
  void window(Index size, Index first = 0) {
    options.mask.add(Mask::window(size).keeping_first(first));
    rules.push_back([past = sizes.S - sizes.L, size, first](Index, Index, Index i, Index j) {
      return std::abs(i + past - j) < size || j < first;
    });
  }
  /// 0, S and numbers between.
  void key_lengths() {
    const auto lengths = std::make_shared<std::vector<Index>>();
    for (Index b = 0; b < sizes.B; ++b) {
      lengths->push_back(b % 3 == 1 ? 0 : b % 3 == 2 ? sizes.S : numbers.below(sizes.S + 1));
    }
    options.mask.add(Mask::key_lengths(*lengths));
    rules.push_back([lengths](Index b, Index, Index, Index j) {
      return j < (*lengths)[static_cast<std::size_t>(b)];
    });
  }
  /// Documents of some `length` keys and, in places, of one, the same for the whole batch or not;
  /// ids rise, but for the last document's, which is the least.
  template <class Id>
  void documents(Index length, Index batch) {
    const auto ids = std::make_shared<Tensor<Id, 2>>(Shape{batch, sizes.S});
    for (Index b = 0; b < batch; ++b) {
      Id id = 5;
      for (Index j = 0; j < sizes.S; ++j) {
        if (numbers.below(length) == 0 || numbers.coin(0.05)) id = static_cast<Id>(id + 1 + b);
        (*ids)(b, j) = 4 * j > 3 * sizes.S + 8 ? Id{-1} : id;
      }
    }
    const In<Id, 2> view = *ids;
    options.mask.add(Mask::documents(view));
    rules.push_back([ids, past = sizes.S - sizes.L](Index b, Index, Index i, Index j) {
      const Index row = std::min(b, ids->extent(0) - 1), place = i + past;
      return place >= 0 && (*ids)(row, place) == (*ids)(row, j);
    });
  }
  void pairs(const Shape<4>& shape, bool keep) {
    const auto bits = coins(shape);
    options.mask.add(keep ? Mask::keep(as_in(*bits)) : Mask::drop(as_in(*bits)));
    add_rule(bits, keep);
  }
  void square(bool keep) {  // [L, S]
    const auto bits = coins(Shape{1, 1, sizes.L, sizes.S});
    const In<bool, 2> view(bits->data(), Shape{sizes.L, sizes.S});
    options.mask.add(keep ? Mask::keep(view) : Mask::drop(view));
    add_rule(bits, keep);
  }
  void keys(bool keep) {  // [B, S]
    const auto bits = coins(Shape{sizes.B, 1, 1, sizes.S});
    const In<bool, 2> view(bits->data(), Shape{sizes.B, sizes.S});
    options.mask.add(keep ? Mask::keep_keys(view) : Mask::drop_keys(view));
    add_rule(bits, keep);
  }
  /// Whole tiles are hidden, by bits [L, S].
  void tiles(bool keep) {
    const auto bits = std::make_shared<Tensor<bool, 4>>(Shape{1, 1, sizes.L, sizes.S});
    for_each_index(bits->shape(), [&](const Shape<4>& at) {
      (*bits)(at) = ((at[2] / TileSizes::queries + at[3] / TileSizes::keys) % 2 == 0) == keep;
    });
    options.mask.add(keep ? Mask::keep(as_in(*bits)) : Mask::drop(as_in(*bits)));
    add_rule(bits, keep);
  }
  /// The same tiles, by a bias of 0 and -infinity.
  void bias_of_tiles() {
    const auto values = std::make_shared<Tensor4<T>>(Shape{1, 1, sizes.L, sizes.S});
    const auto hidden = [](Index i, Index j) {
      return (i / TileSizes::queries + j / TileSizes::keys) % 2 != 0;
    };
    for_each_index(values->shape(), [&](const Shape<4>& at) {
      (*values)(at) = hidden(at[2], at[3]) ? -std::numeric_limits<T>::infinity() : T(0);
    });
    options.mask.add(Mask::bias(*values));
    rules.push_back([values, hidden](Index, Index, Index i, Index j) { return !hidden(i, j); });
  }
  /// Numbers, `share` of them replaced by `special`; the oracle hides what is -infinity.
  void bias(const Shape<4>& shape, double share = 0, T special = T(0)) {
    const auto values = std::make_shared<Tensor4<T>>(numbers.tensor<T>(shape));
    for (T& value : *values) value = numbers.coin(share) ? special : value;
    options.mask.add(Mask::bias(*values));
    rules.push_back([values](Index b, Index h, Index i, Index j) {
      return (*values)(broadcast(values->shape(), b, h, i, j)) > -std::numeric_limits<T>::max() / 4;
    });
    biases.push_back([values](Index b, Index h, Index i, Index j) {
      return Real{(*values)(broadcast(values->shape(), b, h, i, j))};
    });
  }
  /// A mask function of coins that fall for most pairs, asked between bounds in no order or of all.
  void function(bool bounded) {
    const CoinPattern coins{static_cast<std::uint64_t>(numbers.below(1000)), 6};
    const ScatteredBounds bounds{sizes.S, bounded};
    const auto f = std::make_shared<MaskFunction<CoinPattern, ScatteredBounds>>(coins, bounds);
    options.mask.add(bounded ? Mask::function(*f) : without_bounds(*f));
    rules.push_back([f, coins, bounds](Index b, Index h, Index i, Index j) {
      const KeyRange own = bounds({b, h, i, 0});
      return j >= own.begin && j < own.end && coins({b, h, i, j});
    });
  }
  void softcap(double most) {
    options.score.softcap = static_cast<T>(most);
    caps.push_back(static_cast<Real>(static_cast<T>(most)));
  }
  void alibi() {
    const auto slopes = std::make_shared<Tensor<T, 1>>(numbers.tensor<T>(Shape{sizes.H}));
    options.score.alibi_slopes = *slopes;
    biases.push_back([slopes, past = sizes.S - sizes.L](Index, Index h, Index i, Index j) {
      return -Real{(*slopes)(h)} * static_cast<Real>(std::abs(j - i - past));
    });
  }
  void relative(Index reach, bool shared) {
    const auto table = std::make_shared<Tensor<T, 2>>(
        numbers.tensor<T>(Shape{shared ? Index{1} : sizes.H, 2 * reach + 1}));
    options.score.relative_bias = *table;
    biases.push_back(
        [table, reach, shared, past = sizes.S - sizes.L](Index, Index h, Index i, Index j) {
          const Index distance = std::max(-reach, std::min(reach, j - i - past));
          return Real{(*table)(shared ? Index{0} : h, distance + reach)};
        });
  }
  void sinks() {
    logits = std::make_shared<Tensor<T, 1>>(numbers.tensor<T>(Shape{sizes.H}));
    options.score.sinks = *logits;
  }
  void bend() {
    bent = std::make_shared<BentFunction<T>>(BentScore{}, std::array{T(0.75), T(-0.5)});
    options.score.function = *bent;
  }
  void scale(double factor) { options.scale = static_cast<T>(factor); }
  void dropout(double rate) { options.dropout = {.rate = rate, .seed = 11, .step = 3}; }

  bool visible(Index b, Index h, Index i, Index j) const {
    return std::all_of(rules.begin(), rules.end(), [&](auto& rule) { return rule(b, h, i, j); });
  }
  bool sees_any(Index b, Index h, Index i) const {
    for (Index j = 0; j < sizes.S; ++j) {
      if (visible(b, h, i, j)) return true;
    }
    return false;
  }
  OracleProblem problem() const {
    OracleProblem x{sizes, field(q), field(k), field(v), field(d_o)};
    x.scale = options.scale ? Real{*options.scale}
                            : 1 / std::sqrt(static_cast<Real>(std::max(sizes.d, Index{1})));
    x.visible = [this](Index b, Index h, Index i, Index j) { return visible(b, h, i, j); };
    x.bias = [this](Index b, Index h, Index i, Index j) {
      Real sum = 0;
      for (const PairValue& bias : biases) sum += bias(b, h, i, j);
      return sum;
    };
    if (!caps.empty()) {
      x.change = [most = caps[0]](Index, Index, Index, Index, Real s) {
        const Real t = std::tanh(s / most);
        return ChangedScore{most * t, 1 - t * t};
      };
    }
    if (logits) x.sink = [logits = logits](Index h) { return Real{(*logits)(h)}; };
    if (bent) {
      x.last = [w = bent->parameters](Index b, Index h, Index i, Index j, Real s) {
        const Position at{b, h, i, j};
        const Real factor = Real{w[0]} + Real{BentScore::share(at)};
        return ChangedScore{factor * s + Real{w[1]} * std::cos(s) + Real{BentScore::bias(at)},
                            factor - Real{w[1]} * std::sin(s)};
      };
    }
    const Real rate = options.dropout.rate;
    const DropoutMask mask(options.dropout, DropoutStream::weights);
    if (rate > 0) {
      x.factor = [rate, mask](Index b, Index h, Index i, Index j) {
        return mask.kept(b, h, i, j) ? 1 / (1 - rate) : Real{0};
      };
    }
    return x;
  }

 private:
  static Shape<4> broadcast(const Shape<4>& shape, Index b, Index h, Index i, Index j) {
    return {std::min(b, shape[0] - 1), std::min(h, shape[1] - 1), std::min(i, shape[2] - 1),
            std::min(j, shape[3] - 1)};
  }
  static In<bool, 4> as_in(const Tensor<bool, 4>& x) { return x; }
  std::shared_ptr<Tensor<bool, 4>> coins(const Shape<4>& shape) {
    auto bits = std::make_shared<Tensor<bool, 4>>(shape);
    for (bool& bit : *bits) bit = numbers.coin(0.5);
    return bits;
  }
  void add_rule(const std::shared_ptr<Tensor<bool, 4>>& bits, bool keep) {
    rules.push_back([bits, keep](Index b, Index h, Index i, Index j) {
      return (*bits)(broadcast(bits->shape(), b, h, i, j)) == keep;
    });
  }
};

/// A kind of mask, by the name that a failure shows.
template <class T>
struct Recipe {
  const char* name;
  std::function<void(Case<T>&)> apply;
};

}  // namespace headwise_tests
