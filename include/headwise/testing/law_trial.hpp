// One trial of a kernel: numbers of a shape, what the kernel makes of them, and what plain loops in
// long double make of them. The loops share no code with any kernel, and stay strict and truthful
// in programs that are compiled with -ffast-math.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/attention_problem.hpp"
#include "headwise/testing/number.hpp"

namespace headwise::inline v0_1 {

/// The extents that a trial is made of, and what hides pairs in it.
struct LawShape {
  Index B = 1, H = 1, G = 1, L = 1, S = 1, d = 1, dv = 1;  // every extent >= 1, G divides H
  bool causal = false;  // query i sees key j only where j <= i + (S - L)
  bool masked = false;  // a random keep mask, with a query that sees nothing and a key nobody sees

  /// `B2 H4 G2 L13 S17 d7 dv3 causal masked`
  std::string format() const {
    const auto extent = [](const std::string& name, Index n) {
      return name + std::to_string(n) + " ";
    };
    std::string text = extent("B", B) + extent("H", H) + extent("G", G) + extent("L", L) +
                       extent("S", S) + extent("d", d) + "dv" + std::to_string(dv);
    if (causal) text += " causal";
    if (masked) text += " masked";
    return text;
  }
};

/// A problem that owns its numbers, so that a law can change a copy.
template <class T>
struct LawData {
  Tensor<T, 4> q, k, v, d_o;  // as in AttentionProblem; d_o [B, H, L, dv]
  Tensor<bool, 4> keep;       // empty for none
  bool causal = false;        // as in AttentionProblem
  T scale = 1;                // what q k^T is multiplied by

  /// A view of it.
  AttentionProblem<T> problem() const { return {q, k, v, causal, keep, scale}; }
};

/// What a kernel returned.
template <class T>
struct LawAnswer {
  Tensor<T, 4> o, weights;  // [B, H, L, dv]; [B, H, L, S] or absent
};
/// What its backward returned.
template <class T>
struct LawGradients {
  Tensor<T, 4> dq, dk, dv;  // of the shapes of q, k, v
};

namespace detail {

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

inline double greatest_sum(const LawSums& sums) {
  long double greatest = 0;
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

/// One query, forward and backward, over the keys it sees.
template <class T>
void law_oracle_query(const LawData<T>& data, Index b, Index h, Index i, LawOracle& y) {
  const AttentionProblem<T> x = data.problem();
  const In<T, 4> d_o = data.d_o;
  const Index g = h / (x.q.extent(1) / x.k.extent(1));
  const auto scale = static_cast<long double>(x.scale);
  std::vector<Index> keys;
  std::vector<long double> p, dp, dp_absolute;
  long double greatest = 0, mass = 0, delta = 0, delta_absolute = 0;
  for (Index j = 0; j < x.k.extent(2); ++j) {
    if (!x.sees(b, h, i, j)) continue;
    const auto s = law_dot(x.q, {b, h, i}, x.k, {b, g, j});
    greatest = keys.empty() ? scale * s[0] : std::max<long double>(greatest, scale * s[0]);
    y.condition = std::max<double>(y.condition, static_cast<double>(std::abs(scale) * s[1]));
    keys.push_back(j);
    p.push_back(scale * s[0]);
  }
  for (long double& s : p) mass += s = std::exp(s - greatest);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    p[n] /= mass;
    const auto dot = law_dot(d_o, {b, h, i}, x.v, {b, g, keys[n]});
    dp.push_back(dot[0]);
    dp_absolute.push_back(dot[1]);
    delta += p[n] * dot[0];
    delta_absolute += p[n] * dot[1];
  }
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const Index j = keys[n];
    add_term(y.weights, {b, h, i, j}, p[n], p[n]);
    for (Index c = 0; c < x.v.extent(3); ++c) {
      const long double value = p[n] * static_cast<long double>(x.v(b, g, j, c));
      const long double slope = p[n] * static_cast<long double>(d_o(b, h, i, c));
      add_term(y.o, {b, h, i, c}, value, std::abs(value));
      add_term(y.dv, {b, g, j, c}, slope, std::abs(slope));
    }
    const long double ds = scale * p[n] * (dp[n] - delta);
    const long double absolute = std::abs(scale) * p[n] * (dp_absolute[n] + delta_absolute);
    for (Index c = 0; c < x.q.extent(3); ++c) {
      const auto at_q = static_cast<long double>(x.q(b, h, i, c));
      const auto at_k = static_cast<long double>(x.k(b, g, j, c));
      add_term(y.dq, {b, h, i, c}, ds * at_k, absolute * std::abs(at_k));
      add_term(y.dk, {b, g, j, c}, ds * at_q, absolute * std::abs(at_q));
    }
  }
}

template <class T>
LawOracle law_oracle(const LawData<T>& data) {
  const Index B = data.q.extent(0), H = data.q.extent(1), L = data.q.extent(2);
  LawOracle y{law_sums(data.d_o.shape()), law_sums({B, H, L, data.k.extent(2)}),
              law_sums(data.q.shape()), law_sums(data.k.shape()), law_sums(data.v.shape())};
  for_each_index(Shape{B, H, L},
                 [&](const Shape<3>& row) { law_oracle_query(data, row[0], row[1], row[2], y); });
  return y;
}

/// Normal numbers of a stream of their own.
template <class T>
Tensor<T, 4> law_normal(const Shape<4>& shape, std::uint64_t seed, std::uint32_t stream) {
  Tensor<T, 4> x(shape);
  const auto key = philox_key(seed, stream, 0);
  std::uint64_t n = 0;
  for (T& element : x) element = static_cast<T>(philox_normal(key, n++));
  return x;
}

template <class T>
LawData<T> law_data(const LawShape& x, std::uint64_t seed, bool takes_scale) {
  LawData<T> data{law_normal<T>({x.B, x.H, x.L, x.d}, seed, 0),
                  law_normal<T>({x.B, x.G, x.S, x.d}, seed, 1),
                  law_normal<T>({x.B, x.G, x.S, x.dv}, seed, 2),
                  law_normal<T>({x.B, x.H, x.L, x.dv}, seed, 3),
                  {},
                  x.causal};
  const T width = static_cast<T>(std::max<Index>(x.d, 1));
  data.scale = static_cast<T>(takes_scale ? 0.75 : 1) / std::sqrt(width);
  if (!x.masked) return data;
  data.keep = Tensor<bool, 4>(Shape{x.B, x.H, x.L, x.S});
  const auto key = philox_key(seed, 4, 0);
  std::uint32_t n = 0;
  for_each_index(data.keep.shape(), [&](const Shape<4>& at) {
    const bool drawn = philox({n++, 0, 0, 0}, key)[0] % 4 != 0;
    const bool dead = at[2] == (x.L / 2 + at[0] + at[1]) % x.L;
    data.keep(at) = drawn && !dead && (x.S == 1 || at[3] != x.S / 2);
  });
  return data;
}

HEADWISE_STRICT_MATH_END

/// NaN, or an infinity, written by its bits.
template <class T>
void poison(T& element, bool nan) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  if constexpr (std::is_same_v<T, float>) {
    const std::uint32_t bits = nan ? 0x7FC00000u : 0x7F800000u;
    std::memcpy(&element, &bits, sizeof bits);
  } else {
    const std::uint64_t bits = std::uint64_t{nan ? 0x7FF8u : 0x7FF0u} << 48;
    std::memcpy(&element, &bits, sizeof bits);
  }
}

template <class T>
Tensor<T, 4> poisoned_tensor(const Shape<4>& shape) {
  Tensor<T, 4> x(shape);
  for (T& element : x) poison(element, true);
  return x;
}

}  // namespace HEADWISE_CODE
}  // namespace detail

inline namespace HEADWISE_CODE {

/// A kernel before one problem: what every law is asked about.
template <class T>
class LawTrial {
 public:
  /// Draws numbers by `seed` and runs the forward; `slack` multiplies tolerances.
  LawTrial(const AttentionKernel<T>& kernel, const LawShape& shape, std::uint64_t seed,
           double slack = 1)
      : LawTrial(kernel, detail::law_data<T>(shape, seed, kernel.takes_scale), seed, slack) {}
  /// The same over numbers that are given; `seed` is that of what a law draws besides.
  LawTrial(const AttentionKernel<T>& kernel, LawData<T> data, std::uint64_t seed, double slack = 1)
      : kernel_(kernel),
        seed_(seed),
        slack_(slack),
        data_(std::move(data)),
        oracle_(detail::law_oracle(data_)),
        answer_(forward(data_)) {}

  /// What the trial was made of, the answer to its data, and what plain loops make of them.
  ///@{
  const AttentionKernel<T>& kernel() const { return kernel_; }
  std::uint64_t seed() const { return seed_; }
  const LawData<T>& data() const { return data_; }
  AttentionProblem<T> problem() const { return data_.problem(); }
  const LawAnswer<T>& answer() const { return answer_; }
  const detail::LawOracle& oracle() const { return oracle_; }
  double slack() const { return slack_; }
  bool has_backward() const { return static_cast<bool>(kernel_.backward); }
  ///@}

  /// 32 epsilon (1 + the condition of the scores), of the largest sum of absolute terms. 32 covers
  /// a plain loop of a few hundred terms and an e^x of a few units in the last place.
  double tolerance() const {
    return slack_ * 32 * static_cast<double>(std::numeric_limits<T>::epsilon()) *
           (1 + oracle_.condition);
  }

  /// The kernel's answer to any data, into tensors that hold NaN before.
  LawAnswer<T> forward(const LawData<T>& x) const {
    LawAnswer<T> y{detail::poisoned_tensor<T>(x.d_o.shape()), {}};
    if (kernel_.gives_weights) {
      y.weights =
          detail::poisoned_tensor<T>({x.q.extent(0), x.q.extent(1), x.q.extent(2), x.k.extent(2)});
    }
    kernel_.forward(x.problem(), {y.o, y.weights});
    return y;
  }

  /// The kernel's gradients for any data, into tensors that hold NaN before.
  LawGradients<T> backward(const LawData<T>& x) const {
    LawGradients<T> y{detail::poisoned_tensor<T>(x.q.shape()),
                      detail::poisoned_tensor<T>(x.k.shape()),
                      detail::poisoned_tensor<T>(x.v.shape())};
    kernel_.backward(x.problem(), x.d_o, {y.dq, y.dk, y.dv});
    return y;
  }

 private:
  AttentionKernel<T> kernel_;
  std::uint64_t seed_;
  double slack_;
  LawData<T> data_;
  detail::LawOracle oracle_;
  LawAnswer<T> answer_;
};

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
