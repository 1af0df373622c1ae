// What plain loops in long double make of a problem and its kernel's variant, forward and backward.
// They share no code with any kernel, and stay strict in programs that are compiled with
// -ffast-math.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/attention_problem.hpp"

namespace headwise::inline v0_1::detail {

/// Sums, and beside each the sum of its terms' absolute values: what rounding is proportional to.
struct LawSums {
  Tensor<long double, 4> values, absolute;
};

struct LawOracle {
  LawSums o, weights, dq, dk, dv;
  double condition = 0;  // the greatest |terms| of a score, to which errors of e^x are proportional
};

inline namespace HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

inline LawSums law_sums(const Shape<4>& shape) {
  return {Tensor<long double, 4>(shape), Tensor<long double, 4>(shape)};
}

inline void add_term(LawSums& sums, const Shape<4>& at, long double term, long double absolute) {
  sums.values(at) += term;
  sums.absolute(at) += absolute;
}

/// What errors of a tensor are measured by: the greatest sum in it, no less than min / epsilon^2 of
/// T. (A kernel may take flows into scores below min / epsilon for 0, as their sums are denormal:
/// an error of epsilon of that. Beside a sink all weights may be so small.)
template <class T>
double size_of(const LawSums& sums) {
  constexpr auto epsilon = static_cast<long double>(std::numeric_limits<T>::epsilon());
  long double greatest = (std::numeric_limits<T>::min)() / (epsilon * epsilon);
  for (const long double& sum : sums.absolute) greatest = std::max<long double>(greatest, sum);
  return static_cast<double>(greatest);
}

/// sum_c x[.., i, c] y[.., j, c], and the same of absolute values.
template <class T>
std::array<long double, 2> law_dot(const In<T, 4>& x, const Shape<3>& i, const In<T, 4>& y,
                                   const Shape<3>& j) {
  std::array<long double, 2> sums{0, 0};
  for (Index c = 0; c < x.extent(3); ++c) {
    const long double term = static_cast<long double>(x(i[0], i[1], i[2], c)) *
                             static_cast<long double>(y(j[0], j[1], j[2], c));
    sums[0] += term;
    sums[1] += std::abs(term);
  }
  return sums;
}

/// The rows of x [B, H, L, d], the first at position `first`, as they go into q k^T.
template <class T>
Tensor<long double, 4> law_rows(const In<T, 4>& x, Index first,
                                const std::function<void(std::span<long double>, Index)>& encode) {
  auto rows = convert<long double>(x);
  const Index L = x.extent(2), d = x.extent(3);
  if (!encode || d == 0) return rows;
  for (Index n = 0; n < rows.size() / d; ++n) {
    encode({rows.data() + n * d, static_cast<std::size_t>(d)}, first + n % L);
  }
  return rows;
}

/// A key that a query sees.
struct LawPair {
  Index key;
  long double weight;           // its score, until softmax
  long double slope;            // of the score, by q k^T
  long double dp, dp_absolute;  // d_o v^T
};

/// What the loops read: q and k as they go into q k^T.
template <class T>
struct LawInputs {
  const AttentionProblem<T>& x;
  const In<T, 4>& d_o;             // [B, H, L, dv]
  const Tensor<long double, 4> q;  // [B, H, L, d]
  const Tensor<long double, 4> k;  // [B, G, S, d]
  const AttentionVariant& variant;
};

/// The keys that a query sees, with their scores.
template <class T>
std::vector<LawPair> law_scores(const LawInputs<T>& in, Index b, Index h, Index i, LawOracle& y) {
  const AttentionProblem<T>& x = in.x;
  const Index g = h / (x.q.extent(1) / x.k.extent(1));
  const auto scale = static_cast<long double>(x.scale);
  std::vector<LawPair> pairs;
  for (Index j = 0; j < x.k.extent(2); ++j) {
    if (!x.sees(b, h, i, j)) continue;
    const auto s = law_dot<long double>(in.q, {b, h, i}, in.k, {b, g, j});
    VariantScore changed{scale * s[0], 1};
    long double terms = std::abs(scale) * s[1];
    if (in.variant.score) {
      changed = in.variant.score(scale * s[0], x.position(h, i, j));
      terms = terms * std::max<long double>(1, std::abs(changed.slope)) + std::abs(changed.value);
    }
    y.condition = std::max<double>(y.condition, static_cast<double>(terms));
    const auto dp = law_dot<T>(in.d_o, {b, h, i}, x.v, {b, g, j});
    pairs.push_back({j, changed.value, scale * changed.slope, dp[0], dp[1]});
  }
  return pairs;
}

/// Scores become weights; a sink takes its share.
template <class T>
void law_softmax(const LawInputs<T>& in, Index h, std::vector<LawPair>& pairs, LawOracle& y) {
  if (pairs.empty()) return;
  long double greatest = pairs[0].weight, mass = 0;
  for (const LawPair& pair : pairs) greatest = std::max<long double>(greatest, pair.weight);
  if (in.variant.sink) {
    const long double sink = in.variant.sink(h);
    y.condition = std::max<double>(y.condition, static_cast<double>(std::abs(sink)));
    greatest = std::max<long double>(greatest, sink);
    mass = std::exp(sink - greatest);
  }
  for (LawPair& pair : pairs) mass += pair.weight = std::exp(pair.weight - greatest);
  for (LawPair& pair : pairs) pair.weight /= mass;
}

/// One query, forward and backward, over the keys it sees.
template <class T>
void law_oracle_query(const LawInputs<T>& in, Index b, Index h, Index i, LawOracle& y) {
  const AttentionProblem<T>& x = in.x;
  const Index g = h / (x.q.extent(1) / x.k.extent(1));
  auto pairs = law_scores(in, b, h, i, y);
  law_softmax(in, h, pairs, y);
  long double delta = 0, delta_absolute = 0;
  for (const LawPair& pair : pairs) {
    delta += pair.weight * pair.dp;
    delta_absolute += pair.weight * pair.dp_absolute;
  }
  for (const auto& [j, p, slope, dp, dp_absolute] : pairs) {
    add_term(y.weights, {b, h, i, j}, p, p);
    for (Index c = 0; c < x.v.extent(3); ++c) {
      const long double value = p * static_cast<long double>(x.v(b, g, j, c));
      const long double flow = p * static_cast<long double>(in.d_o(b, h, i, c));
      add_term(y.o, {b, h, i, c}, value, std::abs(value));
      add_term(y.dv, {b, g, j, c}, flow, std::abs(flow));
    }
    const long double ds = slope * p * (dp - delta);
    const long double absolute = std::abs(slope) * p * (dp_absolute + delta_absolute);
    for (Index c = 0; c < x.q.extent(3); ++c) {
      const long double at_q = in.q(b, h, i, c), at_k = in.k(b, g, j, c);
      add_term(y.dq, {b, h, i, c}, ds * at_k, absolute * std::abs(at_k));
      add_term(y.dk, {b, g, j, c}, ds * at_q, absolute * std::abs(at_q));
    }
  }
}

/// dq and dk are those of rows as they go into q k^T.
template <class T>
LawOracle law_oracle(const AttentionProblem<T>& x, const In<T, 4>& d_o) {
  const Index B = x.q.extent(0), H = x.q.extent(1), L = x.q.extent(2), S = x.k.extent(2);
  const AttentionVariant none, &variant = x.variant == nullptr ? none : *x.variant;
  const LawInputs<T> in{x, d_o, law_rows(x.q, S - L, variant.encode_query),
                        law_rows(x.k, 0, variant.encode_key), variant};
  LawOracle y{law_sums(d_o.shape()), law_sums({B, H, L, S}), law_sums(x.q.shape()),
              law_sums(x.k.shape()), law_sums(x.v.shape())};
  for_each_index(Shape{B, H, L},
                 [&](const Shape<3>& row) { law_oracle_query(in, row[0], row[1], row[2], y); });
  return y;
}

HEADWISE_STRICT_MATH_END

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1::detail
