// What changes the scores of a call and is learned, as tensors: values, or gradients of the same
// shapes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "headwise/ops/attention_options.hpp"
#include "support/bent_score.hpp"

namespace headwise_tests {

using namespace headwise;

template <class T>
struct ScoreTensors {
  Tensor<T, 1> scale, slopes, sinks;  // [1], [H], [H]
  Tensor<T, 2> table;                 // [H or 1, 2 R + 1]
  std::vector<Tensor<T, 4>> biases;   // of the mask
  Tensor<T, 1> function;              // [2], the parameters of a BentScore

  /// f(name, tensor, the others' tensors ...) for each that is there; the others have the same.
  template <class F, class... Others>
  void for_each(F f, Others&... others) {
    const auto there = [&](const char* name, auto& x, auto&... theirs) {
      if (!x.absent()) f(name, x, theirs...);
    };
    there("scale", scale, others.scale...);
    there("alibi_slopes", slopes, others.slopes...);
    there("sinks", sinks, others.sinks...);
    there("relative_bias", table, others.table...);
    there("function", function, others.function...);
    for (std::size_t n = 0; n < biases.size(); ++n) there("bias", biases[n], others.biases[n]...);
  }

  /// Of the same shapes, in another type: the values, or 0.
  template <class U>
  ScoreTensors<U> converted() const {
    ScoreTensors<U> y;
    const auto convert_to = [](auto& to, const auto& from) {
      if (from.absent()) return;
      to = std::decay_t<decltype(to)>(from.shape());
      for_each_index(from.shape(), [&](const auto& at) { to(at) = U(from(at)); });
    };
    convert_to(y.scale, scale), convert_to(y.slopes, slopes), convert_to(y.sinks, sinks);
    convert_to(y.table, table), convert_to(y.function, function);
    y.biases.resize(biases.size());
    for (std::size_t n = 0; n < biases.size(); ++n) convert_to(y.biases[n], biases[n]);
    return y;
  }
  ScoreTensors zeros() const {
    ScoreTensors y = *this;
    y.for_each([](const char*, auto& x) { std::fill(x.begin(), x.end(), T(0)); });
    return y;
  }

  /// As what is read; the scale, the mask's biases and a function are put in by the caller.
  ScoreOptions<T> options(std::optional<T> softcap) const {
    ScoreOptions<T> o{.softcap = softcap};
    if (!slopes.absent()) o.alibi_slopes = slopes;
    if (!table.absent()) o.relative_bias = table;
    if (!sinks.absent()) o.sinks = sinks;
    return o;
  }
  /// The function, null for none.
  std::shared_ptr<BentFunction<T>> bent() const {
    if (function.absent()) return nullptr;
    return std::make_shared<BentFunction<T>>(BentScore{}, std::array{function(0), function(1)});
  }
  /// As what is added to.
  ScoreGradients<T> gradients() {
    ScoreGradients<T> to;
    if (!scale.absent()) to.d_scale = scale;
    if (!slopes.absent()) to.d_alibi_slopes = slopes;
    if (!table.absent()) to.d_relative_bias = table;
    if (!sinks.absent()) to.d_sinks = sinks;
    if (!function.absent()) to.d_function = function;
    for (std::size_t n = 0; n < biases.size(); ++n) {
      if (!biases[n].absent()) to.d_biases[n] = biases[n];
    }
    return to;
  }
};

}  // namespace headwise_tests
