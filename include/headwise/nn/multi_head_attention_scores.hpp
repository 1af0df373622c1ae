// What changes the scores of a module's heads, which a call gives or the module has learned, and
// the gradients of both.
#pragma once

#include "headwise/nn/multi_head_attention_cache.hpp"
#include "headwise/ops/score_gradients.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Throws ShapeError unless what changes scores and is the module's own is as its options have it,
/// ArgumentError where a call gives it, too.
template <class T, class W>
void require_own_scores(std::string_view function, const MultiHeadAttentionOptions& o,
                        const MultiHeadAttentionParameters<T, W>& p, const ScoreOptions<T>& given) {
  const auto require_own = [&](const char* name, const auto& own, const auto& wanted, bool asked,
                               const auto& of_call) {
    using Extents = std::decay_t<decltype(wanted)>;
    require_shape(function, name, own, asked ? wanted : Extents(), "the module's options");
    require(!asked || of_call.absent(), function, "score.", name,
            " is given, expected none: the module has its own");
  };
  const Index H = o.num_heads, R = o.relative_reach;
  require_own("sinks", p.sinks, Shape{H}, o.sinks, given.sinks);
  require_own("alibi_slopes", p.alibi_slopes, Shape{H}, o.alibi, given.alibi_slopes);
  require_own("relative_bias", p.relative_bias, Shape{H, 2 * R + 1}, R > 0, given.relative_bias);
}

/// Beside what a call gives, what the module has learned.
template <class T, class W>
void add_learned(const MultiHeadAttentionParameters<T, W>& p, ScoreOptions<T>& score) {
  if (!p.sinks.absent()) score.sinks = p.sinks;
  if (!p.alibi_slopes.absent()) score.alibi_slopes = p.alibi_slopes;
  if (!p.relative_bias.absent()) score.relative_bias = p.relative_bias;
}
/// The part of a call that concerns attention, with what the module has learned.
template <class T, class W>
AttentionOptions<T> attention_options(const MultiHeadAttentionCall<T>& call,
                                      const MultiHeadAttentionParameters<T, W>& p) {
  AttentionOptions<T> options = call.attention();
  add_learned(p, options.score);
  return options;
}
/// Where their gradients go.
template <class T>
ScoreGradients<T> score_gradients(MultiHeadAttentionGradients<T>& gradients) {
  ScoreGradients<T> all = gradients.score;
  if (!gradients.sinks.absent()) all.d_sinks = gradients.sinks;
  if (!gradients.alibi_slopes.absent()) all.d_alibi_slopes = gradients.alibi_slopes;
  if (!gradients.relative_bias.absent()) all.d_relative_bias = gradients.relative_bias;
  return all;
}

/// Throws ShapeError or ArgumentError unless the views that a caller gave for what changes scores
/// belong to something in the call, have its shape, and share memory with nothing that backward
/// reads or adds to, as far as it knows.
template <class T, class W>
void require_given_score_gradients(std::string_view function,
                                   const MultiHeadAttentionParameters<T, W>& p,
                                   const MultiHeadAttentionGradients<T>& gradients,
                                   const MultiHeadAttentionCache<T>& cache, const Footprint& dy) {
  const ScoreGradients<T>& given = gradients.score;
  if (!given.any()) return;
  require_score_gradients<T>(function, given, attention_options(cache.call, p), {dy});
  given.for_each([&](const auto& view) {
    const Footprint place("gradients.score", view);
    gradients.require_clear_of(function, place);
    p.for_each([&](const std::string& name, const auto& parameter) {
      const Footprint other(name, parameter);
      require_disjoint(function, place, {&other, 1});
    });
  });
}

HEADWISE_STRICT_MATH_BEGIN

/// A tensor of 0 for each gradient that is asked for: what a backward gathers before it adds to
/// the caller's, so that a call that fails on its way leaves those as they were.
template <class T>
class ScoreGradientTensors {
 public:
  /// Throws std::bad_alloc.
  ScoreGradientTensors(const ScoreGradients<T>& asked, std::pmr::memory_resource* memory) {
    walk(*this, asked, [&](auto& tensor, const auto& like) {
      if (!like.absent()) tensor = std::decay_t<decltype(tensor)>(like.shape(), memory);
    });
  }

  /// Views of them.
  ScoreGradients<T> views() {
    ScoreGradients<T> to;
    walk(*this, to, [](auto& tensor, auto& view) {
      if (!tensor.absent()) view = tensor;
    });
    return to;
  }

  /// Adds those that have a place there.
  void add_to(const ScoreGradients<T>& to) const {
    walk(*this, to, [](const auto& tensor, const auto& sum) {
      if (tensor.absent() || sum.absent()) return;
      for_each_index(tensor.shape(), [&](const auto& at) { sum(at) = sum(at) + tensor(at); });
    });
  }

 private:
  /// f(tensor, the gradient that it stands for) for each.
  template <class Self, class Gradients, class F>
  static void walk(Self& self, Gradients& of, const F& f) {
    f(self.scale_, of.d_scale);
    f(self.slopes_, of.d_alibi_slopes);
    f(self.table_, of.d_relative_bias);
    f(self.sinks_, of.d_sinks);
    f(self.function_, of.d_function);
    for (std::size_t n = 0; n < self.biases_.size(); ++n) f(self.biases_[n], of.d_biases[n]);
  }

  Tensor<T, 1> scale_, slopes_, sinks_, function_;
  Tensor<T, 2> table_;
  std::array<Tensor<T, 4>, AttentionMask<T>::max_terms> biases_;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
