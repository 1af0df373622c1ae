// Attention as the textbook writes it: plain loops in long double over visible pairs, forward and
// backward. It takes containers from the library, no arithmetic.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headwise/tensor/tensor.hpp"

namespace headwise_tests {

using namespace headwise;
using Real = long double;
using PairRule = std::function<bool(Index b, Index h, Index i, Index j)>;
/// A score that a scaled product becomes, and its derivative by it.
struct ChangedScore {
  Real value, slope;
};
using PairChange = std::function<ChangedScore(Index b, Index h, Index i, Index j, Real s)>;
using PairValue = std::function<Real(Index b, Index h, Index i, Index j)>;

struct Sizes {
  Index B, H, G, L, S, d, dv;

  std::string format() const { return format_extents(std::array{B, H, G, L, S, d, dv}); }
};

/// Numbers in row-major order. `size` is the greatest of the sums that made them, taken over
/// absolute values: what rounding errors are proportional to.
struct Field {
  std::vector<Real> values, sums;

  explicit Field(Index n = 0)
      : values(static_cast<std::size_t>(n)), sums(static_cast<std::size_t>(n)) {}
  Real& operator[](Index n) { return values[static_cast<std::size_t>(n)]; }
  Real operator[](Index n) const { return values[static_cast<std::size_t>(n)]; }
  void add(Index n, Real term, Real absolute) {
    values[static_cast<std::size_t>(n)] += term;
    sums[static_cast<std::size_t>(n)] += absolute;
  }
  Real size() const { return sums.empty() ? 0 : *std::max_element(sums.begin(), sums.end()); }
};

struct OracleProblem {
  Sizes sizes;
  Field q, k, v, d_o;  // [B, H, L, d], [B, G, S, d], [B, G, S, dv], [B, H, L, dv]
  Real scale = 1;
  PairRule visible = [](Index, Index, Index, Index) { return true; };
  PairValue bias = [](Index, Index, Index, Index) { return Real{0}; };
  PairChange change = [](Index, Index, Index, Index, Real s) { return ChangedScore{s, 1}; };
  PairChange last = change;                // of what stands behind the biases
  std::function<Real(Index h)> sink = {};  // a logit without a value; {} for none
  PairValue factor = [](Index, Index, Index, Index) { return Real{1}; };  // dropout's 0 or 1/(1-r)
};

struct OracleResult {
  Field weights, o, lse, dq, dk, dv;
  // [B, H, L, S]: into scores before `last` and behind it, into scale q k^T; q k^T, and the scores
  // before `last`.
  Field flow, last_flow, scaled_flow, products, biased;
  Field sink_flow;     // [B, H, L]: into the sinks
  Real condition = 0;  // the greatest |terms| of a score that has weight: errors of exp's argument
};

inline OracleResult oracle_attention(const OracleProblem& x) {
  const auto [B, H, G, L, S, d, dv] = x.sizes;
  OracleResult y{Field(B * H * L * S), Field(B * H * L * dv), Field(B * H * L),
                 Field(B * H * L * d), Field(B * G * S * d),  Field(B * G * S * dv),
                 Field(B * H * L * S), Field(B * H * L * S),  Field(B * H * L * S),
                 Field(B * H * L * S), Field(B * H * L * S),  Field(B * H * L)};
  std::vector<Index> keys;
  std::vector<Real> s, slopes, last_slopes, terms, p, dp, dp_terms;
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < L; ++i) {
        const Index row = (b * H + h) * L + i, first = (b * G + h / (H / G)) * S;
        keys.clear();
        for (auto* x_of : {&s, &slopes, &last_slopes, &terms, &p, &dp, &dp_terms}) x_of->clear();
        for (Index j = 0; j < S; ++j) {
          if (!x.visible(b, h, i, j)) continue;
          const Real bias = x.bias(b, h, i, j);
          Real dot = 0, absolute = 0;
          for (Index c = 0; c < d; ++c) {
            dot += x.q[row * d + c] * x.k[(first + j) * d + c];
            absolute += std::abs(x.q[row * d + c] * x.k[(first + j) * d + c]);
          }
          keys.push_back(j);
          const ChangedScore changed = x.change(b, h, i, j, x.scale * dot);
          y.products.add(row * S + j, dot, absolute);
          const ChangedScore last = x.last(b, h, i, j, changed.value + bias);
          y.biased.add(row * S + j, changed.value + bias, std::abs(changed.value + bias));
          s.push_back(last.value);
          slopes.push_back(changed.slope);
          last_slopes.push_back(last.slope);
          terms.push_back(std::abs(x.scale) * absolute + std::abs(bias));
        }
        if (keys.empty()) {
          y.lse[row] = -std::numeric_limits<Real>::infinity();
          continue;
        }
        Real greatest = *std::max_element(s.begin(), s.end());
        if (x.sink) greatest = std::max(greatest, x.sink(h));
        Real mass = x.sink ? std::exp(x.sink(h) - greatest) : 0, delta = 0, delta_terms = 0;
        for (const Real score : s) mass += std::exp(score - greatest);
        y.lse.add(row, greatest + std::log(mass),
                  1 + *std::max_element(terms.begin(), terms.end()));
        for (std::size_t n = 0; n < keys.size(); ++n) {
          p.push_back(std::exp(s[n] - greatest) / mass);
          if (p[n] > 0) y.condition = std::max(y.condition, terms[n]);
          const Real factor = x.factor(b, h, i, keys[n]);
          Real dot = 0, absolute = 0;
          for (Index c = 0; c < dv; ++c) {
            const Real dy = x.d_o[row * dv + c], value = x.v[(first + keys[n]) * dv + c];
            y.o.add(row * dv + c, p[n] * factor * value, p[n] * factor * std::abs(value));
            y.dv.add((first + keys[n]) * dv + c, p[n] * factor * dy, p[n] * factor * std::abs(dy));
            dot += dy * value;
            absolute += std::abs(dy * value);
          }
          y.weights.add(row * S + keys[n], p[n], 1);
          dp.push_back(factor * dot);
          dp_terms.push_back(factor * absolute);
          delta += p[n] * dp[n];
          delta_terms += p[n] * dp_terms[n];
        }
        if (x.sink) {
          const Real weight = std::exp(x.sink(h) - greatest) / mass;
          y.sink_flow.add(row, -weight * delta, weight * delta_terms);
        }
        for (std::size_t n = 0; n < keys.size(); ++n) {
          const Real out = p[n] * (dp[n] - delta), out_terms = p[n] * (dp_terms[n] + delta_terms);
          const Real flow = last_slopes[n] * out, flow_terms = std::abs(last_slopes[n]) * out_terms;
          y.last_flow.add(row * S + keys[n], out, out_terms);
          y.flow.add(row * S + keys[n], flow, flow_terms);
          y.scaled_flow.add(row * S + keys[n], slopes[n] * flow, std::abs(slopes[n]) * flow_terms);
          const Real ds = x.scale * slopes[n] * flow;
          const Real ds_terms = std::abs(x.scale * slopes[n]) * flow_terms;
          for (Index c = 0; c < d; ++c) {
            const Index at_q = row * d + c, at_k = (first + keys[n]) * d + c;
            y.dq.add(at_q, ds * x.k[at_k], ds_terms * std::abs(x.k[at_k]));
            y.dk.add(at_k, ds * x.q[at_q], ds_terms * std::abs(x.q[at_q]));
          }
        }
      }
    }
  }
  return y;
}

}  // namespace headwise_tests
