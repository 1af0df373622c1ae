// Plain loops that do what one variant says, and may declare another.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/laws.hpp"

namespace headwise_tests {

using namespace headwise;

/// One head in T. Rows are encoded in forward alone.
template <class T>
struct VariantLoopHead {
  const AttentionProblem<T>& x;
  const AttentionVariant& does;
  Index b, h;
  bool top_left = false;  // places are counted as if the first query stood beside the first key
  Index L = x.q.extent(2), S = x.k.extent(2), d = x.q.extent(3), dv = x.v.extent(3);
  Index g = h / (x.q.extent(1) / x.k.extent(1));

  VariantPosition place(Index i, Index j) const { return {h, top_left ? i : i + (S - L), j}; }
  bool sees(Index i, Index j) const {
    if (x.causal && j > i + (S - L)) return false;
    if (!x.keep.absent() && !x.keep(b, h, i, j)) return false;
    return !does.hides || !does.hides(place(i, j));
  }

  template <class Encode>
  std::vector<long double> row(const In<T, 4>& of, Index head, Index n, Index position,
                               const Encode& encode) const {
    std::vector<long double> values;
    for (Index c = 0; c < d; ++c) values.push_back(static_cast<long double>(of(b, head, n, c)));
    if (encode) encode(values, position);
    return values;
  }

  /// The weights [S] of query i, and the slope of each score.
  void weigh(Index i, std::vector<T>& p, std::vector<T>& slopes) const {
    p.assign(static_cast<std::size_t>(S), T(0));
    slopes.assign(static_cast<std::size_t>(S), T(1));
    const auto q = row(x.q, h, i, place(i, 0).query, does.encode_query);
    T greatest = does.sink ? T(does.sink(h)) : std::numeric_limits<T>::lowest(), mass = 0;
    for (Index j = 0; j < S; ++j) {
      if (!sees(i, j)) continue;
      const auto k = row(x.k, g, j, j, does.encode_key);
      T s = 0;
      for (std::size_t c = 0; c < q.size(); ++c) s += T(q[c]) * T(k[c]);
      s *= x.scale;
      const auto n = static_cast<std::size_t>(j);
      if (does.score) {
        const VariantScore changed = does.score(s, place(i, j));
        s = T(changed.value);
        slopes[n] = T(changed.slope);
      }
      p[n] = s;
      greatest = std::max<T>(greatest, s);
    }
    for (Index j = 0; j < S; ++j) {
      T& weight = p[static_cast<std::size_t>(j)];
      if (sees(i, j)) mass += weight = std::exp(weight - greatest);
    }
    if (does.sink) mass += std::exp(T(does.sink(h)) - greatest);
    for (T& weight : p) weight = weight == 0 ? T(0) : weight / mass;
  }

  void forward(const AttentionAnswer<T>& y) const {
    std::vector<T> p, slopes;
    for (Index i = 0; i < L; ++i) {
      weigh(i, p, slopes);
      for (Index c = 0; c < dv; ++c) y.o(b, h, i, c) = 0;
      for (Index j = 0; j < S; ++j) {
        const T weight = p[static_cast<std::size_t>(j)];
        y.weights(b, h, i, j) = weight;
        for (Index c = 0; c < dv && sees(i, j); ++c) y.o(b, h, i, c) += weight * x.v(b, g, j, c);
      }
    }
  }

  void backward(const In<T, 4>& d_o, const AttentionAnswerGradients<T>& y) const {
    std::vector<T> p, slopes, dp(static_cast<std::size_t>(S));
    for (Index i = 0; i < L; ++i) {
      weigh(i, p, slopes);
      T delta = 0;
      for (Index j = 0; j < S; ++j) {
        const auto n = static_cast<std::size_t>(j);
        dp[n] = 0;
        if (!sees(i, j)) continue;
        for (Index c = 0; c < dv; ++c) dp[n] += d_o(b, h, i, c) * x.v(b, g, j, c);
        delta += p[n] * dp[n];
      }
      for (Index j = 0; j < S; ++j) {
        const auto n = static_cast<std::size_t>(j);
        if (!sees(i, j)) continue;
        const T ds = x.scale * slopes[n] * p[n] * (dp[n] - delta);
        for (Index c = 0; c < d; ++c) {
          y.dq(b, h, i, c) += ds * x.k(b, g, j, c);
          y.dk(b, g, j, c) += ds * x.q(b, h, i, c);
        }
        for (Index c = 0; c < dv; ++c) y.dv(b, g, j, c) += p[n] * d_o(b, h, i, c);
      }
    }
  }
};

/// What plain loops declare, and what they do in its place.
struct VariantLoops {
  AttentionVariant declares = {}, forward_does = {}, backward_does = {};
  bool top_left = false;  // in forward and backward
};

template <class T>
AttentionKernel<T> variant_loops_kernel(const VariantLoops& loops) {
  AttentionKernel<T> kernel{"plain loops of a variant", {}};
  kernel.variant = loops.declares;
  kernel.gives_weights = true;
  const auto each_head = [](const AttentionProblem<T>& x, const auto& run) {
    for_each_index(Shape{x.q.extent(0), x.q.extent(1)},
                   [&](const Shape<2>& at) { run(at[0], at[1]); });
  };
  kernel.forward = [=](const AttentionProblem<T>& x, const AttentionAnswer<T>& y) {
    each_head(x, [&](Index b, Index h) {
      VariantLoopHead<T>{x, loops.forward_does, b, h, loops.top_left}.forward(y);
    });
  };
  if (loops.forward_does.encodes()) return kernel;
  kernel.backward = [=](const AttentionProblem<T>& x, const In<T, 4>& d_o,
                        const AttentionAnswerGradients<T>& y) {
    for (const auto& gradient : {y.dq, y.dk, y.dv}) fill(gradient, 0);
    each_head(x, [&](Index b, Index h) {
      VariantLoopHead<T>{x, loops.backward_does, b, h, loops.top_left}.backward(d_o, y);
    });
  };
  return kernel;
}

}  // namespace headwise_tests
