// A call of multi-head attention and all that may vary from one to the next: shapes, masks, what is
// done to scores, dropout, memory layouts. random_configuration.hpp draws them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/tensor/dual.hpp"
#include "support/laid_out.hpp"
#include "support/mask_patterns.hpp"
#include "support/score_tensors.hpp"

namespace headwise_tests {

using namespace headwise;

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
  Index window = 0, first = 0;                     // the first keys that it keeps
  std::optional<Tensor<Index, 2>> documents = {};  // [B or 1, S]
  std::optional<std::vector<Index>> lengths = {};
  std::vector<Pairs> pairs = {};
  std::vector<Bias> biases = {};
  std::optional<MaskFunction<CoinPattern, ScatteredBounds>> function = {};
  bool bounded = false;  // whether the function has bounds

  int terms() const {
    return int{causal} + int{window != 0} + int{lengths.has_value()} + int{documents.has_value()} +
           int{function.has_value()} + static_cast<int>(pairs.size() + biases.size());
  }

  /// Of its own biases, or of others of the same shapes.
  template <class T>
  AttentionMask<T> view(const std::vector<Tensor<T, 4>>* others = nullptr) const {
    AttentionMask<T> mask;
    if (causal) mask.add(headwise::causal);
    if (window != 0) mask.add(Mask::window(window).keeping_first(first));
    if (documents) mask.add(Mask::documents(In<Index, 2>(*documents)));
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
  std::tuple<std::shared_ptr<BentFunction<double>>, std::shared_ptr<BentFunction<long double>>,
             std::shared_ptr<BentFunction<Dual<double>>>,
             std::shared_ptr<BentFunction<Dual<long double>>>>
      functions = {};

  /// The values once more in every type.
  void convert_all() {
    others = {tensors.converted<long double>(), tensors.converted<Dual<double>>(),
              tensors.converted<Dual<long double>>()};
    functions = {tensors.bent(), std::get<0>(others).bent(), std::get<1>(others).bent(),
                 std::get<2>(others).bent()};
  }
  template <class T>
  ScoreOptions<T> view() const {
    ScoreOptions<T> options = tensors_of<T>().options(cap<T>());
    const auto& function = std::get<std::shared_ptr<BentFunction<T>>>(functions);
    if (function) options.function = *function;
    return options;
  }
  template <class T>
  std::optional<T> cap() const {
    return softcap ? std::optional<T>(T(*softcap)) : std::nullopt;
  }

 private:
  template <class T>
  const ScoreTensors<T>& tensors_of() const {
    if constexpr (std::is_same_v<T, double>) {
      return tensors;
    } else {
      return std::get<ScoreTensors<T>>(others);
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

/// A call of a configuration whose scores are changed by other values of the same shapes, which
/// must outlive it.
template <class T>
struct MovedCall {
  std::shared_ptr<BentFunction<T>> function;
  MultiHeadAttentionCall<T> call;

  MovedCall(const RandomConfiguration& c, const ScoreTensors<T>& scores, Path path)
      : function(scores.bent()), call(c.call<T>(path)) {
    call.score = scores.options(c.score.cap<T>());
    if (function) call.score.function = *function;
    if (call.scale) call.scale = scores.scale(0);
    if (c.score.learned_biases) call.mask = c.mask.view<T>(&scores.biases);
  }
};

}  // namespace headwise_tests
