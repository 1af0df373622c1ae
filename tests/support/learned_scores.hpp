// The gradients of what changes scores: what both paths give for a case, and what the oracle does.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/score_tensors.hpp"

namespace headwise_tests {

/// The gradients of all that a case has, each beginning with 1: they are added to.
template <class T>
struct LearnedGradients : ScoreTensors<T> {
  explicit LearnedGradients(const AttentionOptions<T>& options) {
    const ScoreOptions<T>& score = options.score;
    this->scale = Tensor<T, 1>(Shape{1});
    if (!score.alibi_slopes.absent()) this->slopes = Tensor<T, 1>(score.alibi_slopes.shape());
    if (!score.sinks.absent()) this->sinks = Tensor<T, 1>(score.sinks.shape());
    const auto& values = score.relative_bias;
    if (!values.absent()) this->table = Tensor<T, 2>(values.shape());
    for (const auto& bias : options.mask.biases()) this->biases.emplace_back(bias.values.shape());
    if (score.function.parameters > 0) this->function = Tensor<T, 1>(score.function.parameters);
    this->for_each([](const char*, auto& x) { std::fill(x.begin(), x.end(), T(1)); });
  }
};

/// What the definitions give for them, less the 1 that they begin with: sums over the flows of the
/// oracle.
struct ExpectedScores {
  Field scale{1}, slopes, sinks, table, function{2};
  std::vector<Field> biases;

  template <class T>
  ExpectedScores(const Case<T>& x, const OracleResult& y) : slopes(x.sizes.H), sinks(x.sizes.H) {
    const Index B = x.sizes.B, H = x.sizes.H, L = x.sizes.L, S = x.sizes.S;
    const auto& values = x.options.score.relative_bias;
    const Index width = values.extent(1), reach = (width - 1) / 2;
    table = Field(values.size());
    for (const auto& bias : x.options.mask.biases()) biases.emplace_back(bias.values.size());
    for_each_index(Shape{B, H, L, S}, [&](const Shape<4>& at) {
      const Index h = at[1], n = ((at[0] * H + h) * L + at[2]) * S + at[3];
      const auto add = [&](Field& to, Index m, Real factor) {
        to.add(m, y.flow[n] * factor, std::abs(factor) * y.flow.sums[static_cast<std::size_t>(n)]);
      };
      const auto u = static_cast<std::size_t>(n);
      scale.add(0, y.scaled_flow[n] * y.products[n], y.scaled_flow.sums[u] * y.products.sums[u]);
      const Real s = y.biased[n], last = y.last_flow[n], terms = y.last_flow.sums[u];
      function.add(0, last * s, terms * std::abs(s));
      function.add(1, last * std::cos(s), terms);
      const Index distance = at[3] - at[2] - (S - L);
      add(slopes, h, -static_cast<Real>(std::abs(distance)));
      if (width > 0) {
        const Index entry = std::max(-reach, std::min(reach, distance)) + reach;
        add(table, (values.extent(0) == 1 ? 0 : h) * width + entry, 1);
      }
      std::size_t number = 0;
      for (const auto& bias : x.options.mask.biases()) {
        const Shape<4>& shape = bias.values.shape();
        Index m = 0;
        for (int r = 0; r < 4; ++r) m = m * shape[r] + std::min(at[r], shape[r] - 1);
        add(biases[number++], m, 1);
      }
    });
    for (Index row = 0; row < B * H * L; ++row) {
      sinks.add(row / L % H, y.sink_flow[row], y.sink_flow.sums[static_cast<std::size_t>(row)]);
    }
  }
};

/// Forward and backward with every gradient asked for.
template <class T>
Outputs<T> run_learned(Path path, const Case<T>& x, LearnedGradients<T>& learned,
                       const Context& context = {}) {
  Outputs<T> y = run(path, x, context);
  const AttentionGradients<T> to{y.dq, y.dk, y.dv, learned.gradients()};
  if (path == Path::materialized) {
    attention_backward<T>(x.d_o, {x.q, x.k, x.v}, y.weights, x.options, to, context);
  } else {
    flash_attention_backward<T>(x.d_o, {x.q, x.k, x.v}, y.o, y.lse, x.options, to, context);
  }
  return y;
}

/// What of the learned gradients is not the oracle's. The tolerance is that of `disagreement`, with
/// the number of pairs as the longest sum.
template <class T>
std::string learned_disagreement(LearnedGradients<T>& got, const ExpectedScores& expected,
                                 const OracleResult& oracle, const Sizes& sizes) {
  const Index n = sizes.B * sizes.H * sizes.L * sizes.S;
  const Real tolerance = 4 * Real{std::numeric_limits<T>::epsilon()} *
                         (std::sqrt(static_cast<Real>(n)) + oracle.condition);
  std::ostringstream text;
  const auto compare = [&](const char* name, auto& x, const Field& y) {
    if (x.absent()) return;
    for (T& value : x) value -= T(1);
    const Real error = relative_error(In<T, std::decay_t<decltype(x)>::rank>(x), y);
    // 1 was added to what is compared: its rounding is that of a term of size 1.
    const Real size = y.size(), epsilon = std::numeric_limits<T>::epsilon();
    const Real most = size == 0 ? 0 : tolerance + 2 * epsilon / size;
    if (!(error <= most)) text << name << " is off by " << error << " > " << most << "; ";
  };
  compare("d_scale", got.scale, expected.scale);
  compare("d_alibi_slopes", got.slopes, expected.slopes);
  compare("d_sinks", got.sinks, expected.sinks);
  compare("d_relative_bias", got.table, expected.table);
  compare("d_function", got.function, expected.function);
  for (std::size_t m = 0; m < got.biases.size(); ++m) {
    compare("d_bias", got.biases[m], expected.biases[m]);
  }
  return text.str();
}

}  // namespace headwise_tests
