// What changes the scores of an attention call, drawn from bytes: softcap, biases by distance,
// sinks, functions of one's own and where the call stands in a whole. In the library's words, and
// as plain functions of a pair for naive loops.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "fuzz/placed.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/ops/attention_options.hpp"
#include "support/mask_patterns.hpp"
#include "support/oracle.hpp"

namespace headwise_fuzz {

using headwise_tests::ChangedScore;
using headwise_tests::Field;
using headwise_tests::OracleResult;
using headwise_tests::Real;
using headwise_tests::Sizes;

/// Another number for each pair, far from the origin too. Multiples of 1/4.
inline float number_of(const Position& at) {
  const auto n = [](Index i) { return static_cast<std::uint64_t>(i); };
  return static_cast<float>((n(at.batch) + 2 * n(at.head) + 3 * n(at.query) + 5 * n(at.key)) % 7) /
         4;
}

/// s w_0 + w_1 number_of(at), as a user writes it.
inline constexpr auto drawn_score = [](auto s, const Position& at, const auto& w) {
  return s * w[0] + w[1] * decltype(s)(number_of(at));
};

/// Three keys of a query, which rise and fall.
struct DrawnBounds {
  Position origin;
  KeyRange operator()(const Position& query) const {
    const Index begin = origin.key + (query.query - origin.query) % 3;
    return {begin, begin + 3};
  }
};

template <class T>
class AttentionScores {
 public:
  AttentionScores(ByteReader& in, const Sizes& sizes, bool with_faults, Numbers& numbers)
      : sizes_(sizes) {
    const unsigned which = in.byte();
    const Index H = sizes.H;
    const auto length = [&] { return with_faults && in.once_in(32) ? H + 1 : H; };
    if ((which & 1u) != 0) {
      constexpr std::array<double, 6> caps{2, 0.5, 8,
                                           0, -1,  std::numeric_limits<double>::infinity()};
      softcap_ = T(caps[in.byte() % (with_faults ? 6 : 3)]);
    }
    if ((which & 2u) != 0) slopes_ = drawn(in, Shape<1>{length()}, numbers);
    if ((which & 4u) != 0) {
      const Index rows = in.flag() ? length() : 1, reach = in.between(0, 3);
      table_ =
          drawn(in, Shape<2>{rows, 2 * reach + (with_faults && in.once_in(32) ? 2 : 1)}, numbers);
    }
    if ((which & 8u) != 0) sinks_ = drawn(in, Shape<1>{length()}, numbers);
    if ((which & 16u) != 0) {
      function_.emplace(
          score_function(std::array<T, 2>{T(numbers.next()), T(numbers.next())}, drawn_score));
    }
    if ((which & 128u) != 0) draw_origin(in, with_faults);
    if ((which & 32u) != 0) {
      coin_ = {in.byte(), 3};
      mask_.emplace(mask_function(coin_, DrawnBounds{origin_}));
    }
    asks_ = (which & 64u) != 0;
    d_slopes_ = gradient(in, slopes_), d_table_ = gradient(in, table_);
    d_sinks_ = gradient(in, sinks_);
    if (asks_ && function_) d_function_ = Placed<T, 1>(in, Shape<1>{2}, Role::output, start);
  }

  /// Whether it fits the call.
  bool fits(const Dropout& dropout) const {
    const auto fits_heads = [&](const auto& x) { return !x || x->view().extent(0) == sizes_.H; };
    const bool fits_table = !table_ || ((fits_heads(table_) || table_->view().extent(0) == 1) &&
                                        table_->view().extent(1) % 2 == 1);
    bool in_range = !softcap_ || (*softcap_ > T(0) && std::isfinite(*softcap_));
    for (const Index n : {origin_.batch, origin_.head, origin_.query, origin_.key}) {
      in_range = in_range && n >= 0 && n <= far;
    }
    const bool moved = origin_.query != 0 || origin_.key != 0;
    return in_range && fits_heads(slopes_) && fits_heads(sinks_) && fits_table &&
           !(moved && dropout.active());
  }

  void set(AttentionOptions<T>& options) const {
    options.origin = origin_;
    if (mask_) options.mask.add(*mask_);
    options.score.softcap = softcap_;
    if (slopes_) options.score.alibi_slopes = slopes_->view();
    if (table_) options.score.relative_bias = table_->view();
    if (function_) options.score.function = *function_;
    if (sinks_) options.score.sinks = sinks_->view();
  }
  ScoreGradients<T> gradients() const {
    ScoreGradients<T> to;
    if (d_slopes_) to.d_alibi_slopes = d_slopes_->view();
    if (d_table_) to.d_relative_bias = d_table_->view();
    if (d_sinks_) to.d_sinks = d_sinks_->view();
    if (d_function_) to.d_function = d_function_->view();
    return to;
  }
  bool untouched() const {
    return each([](const auto& x) { return x.untouched(); });
  }
  bool gaps_untouched() const {
    return each([](const auto& x) { return x.gaps_untouched(); });
  }

  bool caps() const { return softcap_.has_value(); }
  const Position& origin() const { return origin_; }
  bool visible(Index b, Index h, Index i, Index j) const {
    if (!mask_) return true;
    const KeyRange keys = DrawnBounds{origin_}(at(b, h, i, j));
    const Index key = origin_.key + j;
    return key >= keys.begin && key < keys.end && coin_(at(b, h, i, j));
  }

  /// What a scaled product becomes before `bias` is added, which the function is asked with.
  ChangedScore change(Index b, Index h, Index i, Index j, Real s, Real bias) const {
    Real slope = 1;
    const Real x = argument(h, i, j, s, bias, slope);
    if (!function_) return {x - bias, slope};
    const auto& w = function_->parameters;
    return {Real{w[0]} * x + Real{w[1]} * Real{number_of(at(b, h, i, j))} - bias,
            Real{w[0]} * slope};
  }
  std::function<Real(Index)> sink() const {
    if (!sinks_) return {};
    return [this](Index h) { return Real{sinks_->view()(h)}; };
  }
  /// What bounds the sizes of what is added, and of what multiplies.
  Real size() const {
    Real size = 1;
    const auto add = [&](const auto& x, Real factor) {
      if (!x) return;
      const auto view = x->view();
      for_each_index(view.shape(),
                     [&](const auto& n) { size += factor * std::abs(Real{view(n)}); });
    };
    add(slopes_, 10), add(table_, 1), add(sinks_, 1);
    if (!function_) return size;
    const auto& w = function_->parameters;
    return (size + 2 * std::abs(Real{w[1]})) * (1 + std::abs(Real{w[0]}));
  }

  /// f(got, expected) of each gradient that was asked for: of what flowed into scores, by the bias
  /// of each pair.
  template <class Bias, class F>
  void compare(const OracleResult& y, Real scale, const Bias& bias, const F& f) const {
    const Index H = sizes_.H, columns = table_ ? table_->view().extent(1) : 1;
    const Index rows = table_ ? table_->view().extent(0) : 1;
    Field slopes(H), table(rows * columns), sinks(H), function(2);
    for_each_index(Shape<4>{sizes_.B, H, sizes_.L, sizes_.S}, [&](const Shape<4>& p) {
      const auto [b, h, i, j] = std::array{p[0], p[1], p[2], p[3]};
      const Index n = ((b * H + h) * sizes_.L + i) * sizes_.S + j;
      const Real flow = y.flow[n], terms = y.flow.sums[static_cast<std::size_t>(n)];
      if (terms == 0) return;
      Real slope = 1, factor = 1;
      if (function_) {
        const Real x = argument(h, i, j, scale * y.products[n], bias(b, h, i, j), slope);
        const Real number = number_of(at(b, h, i, j));
        function.add(0, flow * x, terms * (std::abs(x) + size()));
        function.add(1, flow * number, terms * number);
        factor = function_->parameters[0];
      }
      const Real magnitude = std::abs(static_cast<Real>(distance(i, j)));
      slopes.add(h, -flow * factor * magnitude, terms * std::abs(factor) * magnitude);
      if (table_) {
        table.add((rows == 1 ? 0 : h) * columns + column(i, j), flow * factor,
                  terms * std::abs(factor));
      }
    });
    for (Index row = 0; row < sizes_.B * H * sizes_.L; ++row) {
      sinks.add(row / sizes_.L % H, y.sink_flow[row],
                y.sink_flow.sums[static_cast<std::size_t>(row)]);
    }
    const auto check_one = [&](const auto& got, Field& expected) {
      if (!got) return;
      for (Index n = 0; n < got->view().size(); ++n) expected.add(n, Real{start}, Real{start});
      f(got->view(), expected);
    };
    check_one(d_slopes_, slopes), check_one(d_table_, table), check_one(d_sinks_, sinks);
    check_one(d_function_, function);
  }

 private:
  static constexpr T start = T(0.25);  // gradients are added to it
  static constexpr Index far = Index{1} << 62;

  template <int R>
  Placed<T, R> drawn(ByteReader& in, const Shape<R>& shape, Numbers& numbers) {
    Placed<T, R> x(in, shape, Role::input, std::numeric_limits<T>::quiet_NaN());
    x.set([&] { return numbers.next(); });
    return x;
  }
  template <int R>
  std::optional<Placed<T, R>> gradient(ByteReader& in, const std::optional<Placed<T, R>>& x) {
    if (!asks_ || !x) return {};
    return Placed<T, R>(in, x->view().shape(), Role::output, start);
  }
  void draw_origin(ByteReader& in, bool with_faults) {
    constexpr std::array<Index, 8> places{0, 1, 0, 5, 1000, far, -1, far + 1};
    for (Index* n : {&origin_.batch, &origin_.head, &origin_.query, &origin_.key}) {
      *n = places[in.byte() % (with_faults ? 8 : 6)];
    }
    if (!with_faults) origin_.query = origin_.key = 0;
  }

  Position at(Index b, Index h, Index i, Index j) const {
    return {origin_.batch + b, origin_.head + h, origin_.query + i, origin_.key + j};
  }
  Index distance(Index i, Index j) const { return j - i - (sizes_.S - sizes_.L); }
  Index column(Index i, Index j) const {
    const Index reach = table_->view().extent(1) / 2;
    return std::clamp(distance(i, j), -reach, reach) + reach;
  }
  /// What the function is asked with; slope: its derivative by s.
  Real argument(Index h, Index i, Index j, Real s, Real bias, Real& slope) const {
    Real x = s;
    if (softcap_) {
      const Real t = std::tanh(s / Real{*softcap_});
      x = Real{*softcap_} * t, slope = 1 - t * t;
    }
    if (slopes_) x -= Real{slopes_->view()(h)} * std::abs(static_cast<Real>(distance(i, j)));
    if (table_) x += Real{table_->view()(table_->view().extent(0) == 1 ? 0 : h, column(i, j))};
    return x + bias;
  }
  template <class F>
  bool each(const F& holds) const {
    return (!d_slopes_ || holds(*d_slopes_)) && (!d_table_ || holds(*d_table_)) &&
           (!d_sinks_ || holds(*d_sinks_)) && (!d_function_ || holds(*d_function_));
  }

  Sizes sizes_;
  Position origin_;
  std::optional<T> softcap_;
  std::optional<Placed<T, 1>> slopes_, sinks_, d_slopes_, d_sinks_, d_function_;
  std::optional<Placed<T, 2>> table_, d_table_;
  std::optional<ScoreFunction<T, 2, std::decay_t<decltype(drawn_score)>>> function_;
  headwise_tests::CoinPattern coin_{0, 3};
  std::optional<MaskFunction<headwise_tests::CoinPattern, DrawnBounds>> mask_;
  bool asks_ = false;
};

}  // namespace headwise_fuzz
