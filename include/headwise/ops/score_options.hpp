// What changes scores, as a caller names it, with its gradients.
#pragma once

#include <array>
#include <limits>
#include <optional>

#include "headwise/score/head_score.hpp"
#include "headwise/score/mask.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// What is done to scaled scores: softcap, ALiBi and relative biases, the mask's biases, the
/// function, the mask; then the softmax, in which sinks take part. Viewed, not copied: what it
/// views must outlive the call, and for training the backward call too.
template <Scalar T>
struct ScoreOptions {
  std::optional<T> softcap = {};      // c > 0, normal: a score becomes c tanh(score / c)
  LastingIn<T, 1> alibi_slopes = {};  // [H]: less slope |j - i - (S - L)|
  /// [H or 1, 2 R + 1]: plus the number at clamp(j - i - (S - L), -R, R) + R. Source: Shaw,
  /// Uszkoreit and Vaswani, 2018, arXiv 1803.02155; Raffel et al., 2020, arXiv 1910.10683,
  /// section 2.1.
  LastingIn<T, 2> relative_bias = {};
  /// Behind the mask's biases: a function of one's own, of which this is a view
  /// (kernels/score_function.hpp); what hides pairs is asked apart from it.
  ScoreFunctionRef<T> function = {};
  LastingIn<T, 1> sinks = {};  // [H]: a logit that takes weight and has no value

  /// Whether nothing is done.
  bool plain() const { return !softcap && !by_position() && sinks.absent(); }
  /// Whether what is done to a score depends on where its pair stands.
  bool by_position() const {
    return !alibi_slopes.absent() || !relative_bias.absent() || !function.absent();
  }
  /// Throws ArgumentError unless the softcap is in range.
  void require_softcap(std::string_view caller) const {
    const T least = (std::numeric_limits<T>::min)();  // 1 / softcap is a number, too
    require(!softcap || (is_finite_option(*softcap) && !(*softcap < least)), caller, "softcap is ",
            shown_option(softcap.value_or(T(0))),
            ", expected a finite, normal number above 0, or none for no cap");
  }
  /// Throws ShapeError unless what a head has of its own is given for each of H heads.
  void require_heads(std::string_view caller, Index H) const {
    const auto require_each = [&](std::string_view name, const In<T, 1>& x) {
      if (!x.absent()) require_shape(caller, name, x, Shape{H}, "the number of heads");
    };
    require_each("alibi_slopes", alibi_slopes);
    require_each("sinks", sinks);
    const In<T, 2>& table = relative_bias;
    if (table.absent()) return;
    require_countable(caller, "relative_bias", table);
    if ((table.extent(0) != H && table.extent(0) != 1) || table.extent(1) % 2 == 0) {
      raise<ShapeError>(caller, ": relative_bias is ", table.shape(), ", expected [", H,
                        " or 1, 2 R + 1] (a number for each distance from -R to R)");
    }
  }
};

/// The gradients of what changes scores, where it is learned: added to; {} for what is not asked.
template <Scalar T>
struct ScoreGradients {
  InOut<T, 1> d_scale = {};          // [1]
  InOut<T, 1> d_alibi_slopes = {};   // [H]
  InOut<T, 2> d_relative_bias = {};  // [H or 1, 2 R + 1], as its values
  InOut<T, 1> d_sinks = {};          // [H]
  /// [P], of the parameters of a function of one's own, in memory apart from them.
  InOut<T, 1> d_function = {};
  /// Of the mask's biases in the order in which they were listed, each of its bias's shape.
  std::array<InOut<T, 4>, AttentionMask<T>::max_terms> d_biases = {};

  /// f(view) for each, those that are not asked for too.
  template <class F>
  void for_each(F&& f) const {
    f(d_scale);
    f(d_alibi_slopes);
    f(d_relative_bias);
    f(d_sinks);
    f(d_function);
    for (const InOut<T, 4>& d_bias : d_biases) f(d_bias);
  }
  /// Those that are asked for to 0.
  void zero() const {
    for_each([](const auto& view) { fill(view, T(0)); });
  }
  /// Whether one is asked for.
  bool any() const {
    bool asked = false;
    for_each([&](const auto& view) { asked = asked || !view.absent(); });
    return asked;
  }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// What the options do to the scores of head h, whose pair (0, 0) stands at `first`.
template <class T>
HeadScore<T> head_score(const ScoreOptions<T>& options, const Position& first, const KeyGap& gap,
                        Index h, Index L, Index S) {
  HeadScore<T> score{.offset = S - L + gap.size, .gap = gap};
  score.function = options.function;
  score.first = first;
  if (options.softcap) score.softcap = *options.softcap;
  if (!options.alibi_slopes.absent()) {
    score.alibi = true;
    score.slope = options.alibi_slopes(h);
  }
  if (const In<T, 2>& table = options.relative_bias; !table.absent()) {
    score.table = &table(table.extent(0) == 1 ? 0 : h, 0);
    score.table_step = table.stride(1);
    score.reach = (table.extent(1) - 1) / 2;
  }
  if (!options.sinks.absent()) {
    score.has_sink = true;
    score.sink = options.sinks(h);
  }
  return score;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
