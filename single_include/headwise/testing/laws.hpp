// headwise 0.1.0: headwise/testing/laws.hpp and the headers below it in one file, made from include/ by
// tools/amalgamate. It is not for editing.
//
// MIT License
//
// Copyright (c) 2026 The headwise authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iomanip>
#include <limits>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../headwise.hpp"

// headwise/testing/attention_variant.hpp
// What an attention does beyond softmax(scale q k^T) v, as a kernel declares it to the laws: rotary
// positions, norms, caps, biases, windows, documents, sinks, functions of one's own. Each part is
// a function over long double, written from the formula and not from the kernel.

namespace headwise::inline v0_1 {

/// Where a pair stands, counted so that a chunk of the queries keeps its places.
struct VariantPosition {
  Index head = 0;   // h, of the queries
  Index query = 0;  // i + (S - L): that of the key beside it; below 0 for queries before all keys
  Index key = 0;    // j
};

/// A score behind what is done to it, and the derivative by what it was.
struct VariantScore {
  long double value = 0, slope = 1;  // f(s), f'(s)
};

/// What is done, in this order; {} for nothing. No part may ask for a batch element, and none may
/// make a number that is not finite. A function is called many times with the same arguments, and
/// says the same each time.
struct AttentionVariant {
  /// What becomes of a row [d] of q before q k^T, at position i + (S - L), below 0 too: a norm, a
  /// rotation. Each row by itself.
  std::function<void(std::span<long double> row, Index position)> encode_query = {};
  /// The same of a row [d] of k, at position j.
  std::function<void(std::span<long double> row, Index position)> encode_key = {};
  /// What becomes of scale q k^T.
  std::function<VariantScore(long double score, const VariantPosition& at)> score = {};
  /// Whether a pair is hidden, beside those that causality and keep hide.
  std::function<bool(const VariantPosition& at)> hides = {};
  /// A logit of head h beside those of the keys a query sees; its weight goes nowhere.
  std::function<long double(Index h)> sink = {};
  /// Whether rows or scores are changed by where a query or a key stands. (`hides` always asks.)
  bool by_position = false;

  /// Whether rows are changed before q k^T.
  bool encodes() const { return encode_query || encode_key; }
  /// Whether scores may differ from scale q k^T, or share their weight.
  bool bends() const { return encodes() || score || sink; }
  /// Whether another place of a query or a key may give another o.
  bool by_place() const { return by_position || hides; }
  /// Whether nothing is done.
  bool plain() const { return !bends() && !hides; }
};

}  // namespace headwise::inline v0_1

// headwise/testing/attention_problem.hpp
// Attention as a problem that anybody's kernel can be given: what goes in, what comes out, and how
// a kernel is introduced. No kernel of this library is known here.

namespace headwise::inline v0_1 {

/// o = softmax(scale q k^T over the keys that a query sees) v, and what the kernel's variant does
/// beyond. The laws give dense tensors.
template <class T>
struct AttentionProblem {
  In<T, 4> q;        // [B, H, L, d]
  In<T, 4> k;        // [B, G, S, d]; query head h reads key head h / (H / G)
  In<T, 4> v;        // [B, G, S, dv]
  bool causal;       // query i sees key j only where j <= i + (S - L)
  In<bool, 4> keep;  // [B, H, L, S], true where the query may see the key; {} for every pair
  T scale;           // what q k^T is multiplied by
  /// The kernel's, viewed; null for none.
  const AttentionVariant* variant = nullptr;

  /// Where a pair stands to a variant.
  VariantPosition position(Index h, Index i, Index j) const {
    return {h, i + (k.extent(2) - q.extent(2)), j};
  }
  /// Whether query i of head h sees key j.
  bool sees(Index b, Index h, Index i, Index j) const {
    const VariantPosition at = position(h, i, j);
    if (causal && j > at.query) return false;
    if (!keep.absent() && !keep(b, h, i, j)) return false;
    return variant == nullptr || !variant->hides || !variant->hides(at);
  }
};

/// What a forward overwrites; it holds NaN before. A query that sees no key gets zeros.
template <class T>
struct AttentionAnswer {
  Out<T, 4> o;        // [B, H, L, dv]
  Out<T, 4> weights;  // [B, H, L, S], 0 for hidden pairs; {} where the kernel does not give them
};

/// What a backward overwrites; it holds NaN before.
template <class T>
struct AttentionAnswerGradients {
  Out<T, 4> dq;  // [B, H, L, d]
  Out<T, 4> dk;  // [B, G, S, d], summed over the query heads of a group
  Out<T, 4> dv;  // [B, G, S, dv], likewise
};

/// A kernel under test, and what it can do. What it cannot take it is not given.
template <class T>
struct AttentionKernel {
  std::string name;  // as the score card prints it
  /// Overwrites the answer.
  std::function<void(const AttentionProblem<T>&, const AttentionAnswer<T>&)> forward;
  /// From the problem and d_o [B, H, L, dv]; it runs its own forward where it needs one. May be {}.
  std::function<void(const AttentionProblem<T>&, const In<T, 4>&,
                     const AttentionAnswerGradients<T>&)>
      backward = {};
  bool gives_weights = false;  // whether forward writes them
  bool takes_causal = true;    // the causal mask
  bool takes_keep = true;      // masks of single pairs
  bool takes_groups = true;    // G < H
  bool takes_scale = true;     // false: it multiplies by 1 / sqrt(d) whatever the problem says
  /// What it does to any problem beyond what the problem says.
  AttentionVariant variant = {};
};

/// The same problem for a function that C can hold: dense row-major arrays and their extents.
template <class T>
struct AttentionArrays {
  const T* q;                  // [B, H, L, d]
  const T* k;                  // [B, G, S, d]
  const T* v;                  // [B, G, S, dv]
  const bool* keep;            // [B, H, L, S] or null
  Index B, H, G, L, S, d, dv;  // the extents above
  bool causal;                 // query i sees key j only where j <= i + (S - L)
  T scale;                     // what q k^T is multiplied by
};

/// o [B, H, L, dv] is overwritten.
template <class T>
using AttentionForwardFunction = void (*)(const AttentionArrays<T>* problem, T* o);
/// From d_o [B, H, L, dv]: dq [B, H, L, d], dk [B, G, S, d] and dv [B, G, S, dv] are overwritten.
template <class T>
using AttentionBackwardFunction = void (*)(const AttentionArrays<T>* problem, const T* d_o, T* dq,
                                           T* dk, T* dv);

inline namespace HEADWISE_CODE {

/// The arrays of a problem. Throws ShapeError unless all its tensors are dense.
template <class T>
AttentionArrays<T> attention_arrays(const AttentionProblem<T>& x) {
  const auto require_dense = [](std::string_view argument, const auto& tensor) {
    if (tensor.dense()) return;
    raise<ShapeError>("attention_arrays: " + std::string(argument) + " has strides " +
                      tensor.strides().format() + ", expected a dense tensor");
  };
  require_dense("q", x.q);
  require_dense("k", x.k);
  require_dense("v", x.v);
  require_dense("keep", x.keep);
  return {x.q.data(),    x.k.data(),    x.v.data(),    x.keep.data(), x.q.extent(0),
          x.q.extent(1), x.k.extent(1), x.q.extent(2), x.k.extent(2), x.q.extent(3),
          x.v.extent(3), x.causal,      x.scale};
}

/// A kernel from a pair of plain functions over arrays; backward may be null.
template <class T>
AttentionKernel<T> attention_kernel(std::string name, AttentionForwardFunction<T> forward,
                                    AttentionBackwardFunction<T> backward = nullptr) {
  require(forward != nullptr, "attention_kernel", "forward is null, expected a function");
  AttentionKernel<T> kernel{std::move(name), {}};
  kernel.forward = [forward](const AttentionProblem<T>& x, const AttentionAnswer<T>& y) {
    const auto arrays = attention_arrays(x);
    forward(&arrays, y.o.data());
  };
  if (backward != nullptr) {
    kernel.backward = [backward](const AttentionProblem<T>& x, const In<T, 4>& d_o,
                                 const AttentionAnswerGradients<T>& y) {
      const auto arrays = attention_arrays(x);
      backward(&arrays, d_o.data(), y.dq.data(), y.dk.data(), y.dv.data());
    };
  }
  return kernel;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1

// headwise/testing/law_oracle.hpp
// What plain loops in long double make of a problem and its kernel's variant, forward and backward.
// They share no code with any kernel, and stay strict in programs that are compiled with
// -ffast-math.

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

// headwise/testing/law_trial.hpp
// One trial of a kernel: numbers of a shape, what the kernel makes of them, and what plain loops in
// long double make of them.

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

  /// A view of it, without a variant.
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

namespace detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

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

}  // namespace detail::inline HEADWISE_CODE

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
        oracle_(detail::law_oracle<T>(problem(), data_.d_o)),
        answer_(forward(data_)) {}

  /// What the trial was made of, the answer to its data, and what plain loops make of them.
  ///@{
  const AttentionKernel<T>& kernel() const { return kernel_; }
  std::uint64_t seed() const { return seed_; }
  const LawData<T>& data() const { return data_; }
  AttentionProblem<T> problem() const { return problem(data_); }
  const LawAnswer<T>& answer() const { return answer_; }
  const detail::LawOracle& oracle() const { return oracle_; }
  double slack() const { return slack_; }
  bool has_backward() const { return static_cast<bool>(kernel_.backward); }
  ///@}

  /// Any data as the kernel is given them; views them, and the trial's kernel.
  AttentionProblem<T> problem(const LawData<T>& x) const {
    AttentionProblem<T> given = x.problem();
    given.variant = &kernel_.variant;
    return given;
  }

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
    kernel_.forward(problem(x), {y.o, y.weights});
    return y;
  }

  /// The kernel's gradients for any data, into tensors that hold NaN before.
  LawGradients<T> backward(const LawData<T>& x) const {
    LawGradients<T> y{detail::poisoned_tensor<T>(x.q.shape()),
                      detail::poisoned_tensor<T>(x.k.shape()),
                      detail::poisoned_tensor<T>(x.v.shape())};
    kernel_.backward(problem(x), x.d_o, {y.dq, y.dk, y.dv});
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

// headwise/testing/law_result.hpp
// What a law says of a kernel, and the comparisons that laws are made of.

namespace headwise::inline v0_1 {

/// A law that says nothing about a kernel or a shape is not applicable to it.
enum class LawStatus { pass, fail, not_applicable };

/// One law on one trial, or the worst of many.
struct LawResult {
  LawStatus status = LawStatus::not_applicable;  // of the trial
  std::string tensor = {};                       // the one that `worst` is about
  Closeness worst = {};                          // the worst number, and where
  std::string thrown = {};                       // what the kernel threw instead

  /// `o[0, 1, 3, 2] is nan, expected 0.25, error not finite > 1e-05; 3 of 24 elements fail`
  std::string message() const {
    if (!thrown.empty()) return "threw: " + thrown;
    if (status == LawStatus::not_applicable) return "not applicable";
    return tensor + worst.message();
  }
};

inline namespace HEADWISE_CODE {

/// A law by its name, and what it demands in one sentence. Users add their own.
template <class T>
struct AttentionLaw {
  std::string name, statement;                         // what the card prints; what the law demands
  std::function<LawResult(const LawTrial<T>&)> holds;  // asks a kernel
};

/// Whether `a` is the one to report of two: failure before success, then the larger error.
inline bool is_worse(const LawResult& a, const LawResult& b) {
  const auto severity = [](const LawResult& x) {
    if (!x.thrown.empty()) return 3;
    return x.status == LawStatus::fail ? 2 : x.status == LawStatus::pass ? 1 : 0;
  };
  if (severity(a) != severity(b)) return severity(a) > severity(b);
  return a.worst.error > b.worst.error;
}

/// Adds a comparison to what a law has found so far.
inline void add_finding(LawResult& result, std::string tensor, Closeness found) {
  if (found.count == 0) return;
  const LawResult next{found.ok ? LawStatus::pass : LawStatus::fail, std::move(tensor),
                       std::move(found)};
  if (is_worse(next, result)) result = next;
}

/// bitwise_equal, with how far apart the numbers are as its error.
template <class T, int R>
Closeness equal_bits(const In<T, R>& actual, const In<T, R>& expected) {
  Closeness bits = bitwise_equal(actual, expected);
  if (bits.ok) return bits;
  const Closeness numbers = close_to(actual, expected, 0);
  if (numbers.ok) {
    bits.error = 0;  // 0 and -0
    return bits;
  }
  const Index failures = bits.failures;
  bits = numbers;
  bits.failures = failures;
  return bits;
}

/// Elements that are to be 0, whatever the size of others. -0 is 0.
template <class T, int R>
Closeness all_zero(const In<T, R>& actual) {
  return close_to(actual, In<T, R>(Tensor<T, R>(actual.shape())), 0, {.floor = 1});
}

/// Those rows [b, h, i] of a [B, H, L, W] tensor that a rule picks; the others are `rest`'s.
template <class T, class Rule>
Tensor<T, 4> rows_where(const Tensor<T, 4>& picked, const Tensor<T, 4>& rest, Rule&& rule) {
  Tensor<T, 4> rows = picked;
  for_each_index(rows.shape(), [&](const Shape<4>& at) {
    if (!rule(at[0], at[1], at[2])) rows(at) = rest(at);
  });
  return rows;
}

/// Whether query (b, h, i) sees any key.
template <class T>
bool sees_any(const AttentionProblem<T>& x, Index b, Index h, Index i) {
  for (Index j = 0; j < x.k.extent(2); ++j) {
    if (x.sees(b, h, i, j)) return true;
  }
  return false;
}

/// Whether a trial has a query that sees no key.
template <class T>
bool has_dead_rows(const AttentionProblem<T>& x) {
  bool found = false;
  for_each_index(Shape{x.q.extent(0), x.q.extent(1), x.q.extent(2)}, [&](const Shape<3>& row) {
    found = found || !sees_any(x, row[0], row[1], row[2]);
  });
  return found;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1

// headwise/testing/forward_laws.hpp
// The laws of attention that need only a forward. Each is a function of a trial; nothing is known
// of the kernel but what it returns.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// o beside plain loops in long double, at all queries that see something.
template <class T>
LawResult oracle_law(const LawTrial<T>& trial) {
  LawResult result;
  const auto alive = [x = trial.problem()](Index b, Index h, Index i) {
    return sees_any(x, b, h, i);
  };
  const auto compare = [&](const char* name, const Tensor<T, 4>& actual, const LawSums& expected) {
    const auto narrow = convert<T>(In<long double, 4>(expected.values));
    add_finding(
        result, name,
        close_to(In<T, 4>(rows_where(actual, narrow, alive)), In<long double, 4>(expected.values),
                 trial.tolerance(), {.floor = size_of<T>(expected)}));
  };
  compare("o", trial.answer().o, trial.oracle().o);
  if (trial.kernel().gives_weights) {
    compare("weights", trial.answer().weights, trial.oracle().weights);
  }
  return result;
}

template <class T>
LawResult weights_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.kernel().gives_weights) return result;
  const AttentionProblem<T> x = trial.problem();
  const Tensor<T, 4>& weights = trial.answer().weights;
  const Index B = weights.extent(0), H = weights.extent(1), L = weights.extent(2);
  Tensor<long double, 3> sums(Shape{B, H, L}), ones(Shape{B, H, L});
  Tensor<T, 4> hidden(weights.shape());
  for_each_index(weights.shape(), [&](const Shape<4>& at) {
    const Shape<3> row{at[0], at[1], at[2]};
    if (!sees_any(x, at[0], at[1], at[2])) return;
    ones(row) = 1;
    sums(row) += static_cast<long double>(weights(at));
    if (!x.sees(at[0], at[1], at[2], at[3])) hidden(at) = weights(at);
  });
  if (!trial.kernel().variant.sink) {
    add_finding(result, "sum of weights", close_to(sums, ones, trial.tolerance()));
  }
  add_finding(result, "hidden weights", all_zero(In<T, 4>(hidden)));
  return result;
}

/// Where all values of a head are one row, every query that sees something returns that row.
template <class T>
LawResult equal_values_law(const LawTrial<T>& trial) {
  LawResult result;
  if (trial.kernel().variant.sink) return result;
  const AttentionProblem<T> x = trial.problem();
  LawData<T> data = trial.data();
  for_each_index(data.v.shape(),
                 [&](const Shape<4>& at) { data.v(at) = x.v(at[0], at[1], 0, at[3]); });
  Tensor<T, 4> expected(data.d_o.shape());
  const Index group = x.q.extent(1) / x.k.extent(1);
  for_each_index(expected.shape(),
                 [&](const Shape<4>& at) { expected(at) = x.v(at[0], at[1] / group, 0, at[3]); });
  const auto o = rows_where(trial.forward(data).o, expected,
                            [&](Index b, Index h, Index i) { return sees_any(x, b, h, i); });
  add_finding(result, "o", close_to(o, expected, trial.tolerance()));
  return result;
}

/// The first coordinate of all keys moves by one amount, so that all scores of a query move alike:
/// far enough for e^x to overflow where nothing is subtracted.
template <class T>
LawResult shift_law(const LawTrial<T>& trial) {
  LawResult result;
  LawData<T> data = trial.data();
  if (data.q.size() == 0 || trial.kernel().variant.bends()) return result;
  const T shift = std::numeric_limits<T>::digits < 53 ? 120 : 800;
  T greatest = 0;
  for (Index b = 0; b < data.q.extent(0); ++b) {
    for (Index h = 0; h < data.q.extent(1); ++h) {
      for (Index i = 0; i < data.q.extent(2); ++i) {
        greatest = std::max<T>(greatest, std::abs(data.scale * data.q(b, h, i, 0)));
      }
    }
  }
  for (Index b = 0; b < data.k.extent(0); ++b) {
    for (Index g = 0; g < data.k.extent(1); ++g) {
      for (Index j = 0; j < data.k.extent(2); ++j) data.k(b, g, j, 0) += shift / greatest;
    }
  }
  add_finding(result, "o",
              close_to(trial.forward(data).o, trial.answer().o,
                       trial.tolerance() * static_cast<double>(shift) / 4,
                       {.floor = size_of<T>(trial.oracle().o)}));
  return result;
}

HEADWISE_STRICT_MATH_END

/// Keys with their values in another order; what hides them goes along.
template <class T>
LawResult permutation_law(const LawTrial<T>& trial) {
  LawResult result;
  const LawData<T>& data = trial.data();
  const AttentionProblem<T> x = data.problem();
  const Index S = data.k.extent(2);
  if (S < 2 || trial.kernel().variant.by_place()) return result;
  if (data.causal && !trial.kernel().takes_keep) return result;
  LawData<T> moved = data;
  const auto from = [&](Index j) {
    return j % 2 == 0 ? S - 1 - j / 2 : j / 2;
  };  // interleaved ends
  for_each_index(data.k.shape(), [&](const Shape<4>& at) {
    moved.k(at) = data.k(at[0], at[1], from(at[2]), at[3]);
  });
  for_each_index(data.v.shape(), [&](const Shape<4>& at) {
    moved.v(at) = data.v(at[0], at[1], from(at[2]), at[3]);
  });
  if (data.causal || !data.keep.absent()) {
    moved.causal = false;
    moved.keep = Tensor<bool, 4>({data.q.extent(0), data.q.extent(1), data.q.extent(2), S});
    for_each_index(moved.keep.shape(), [&](const Shape<4>& at) {
      moved.keep(at) = x.sees(at[0], at[1], at[2], from(at[3]));
    });
  }
  add_finding(result, "o",
              close_to(trial.forward(moved).o, trial.answer().o, trial.tolerance(),
                       {.floor = size_of<T>(trial.oracle().o)}));
  return result;
}

/// Everything behind a query is exchanged for other numbers.
template <class T>
LawResult future_law(const LawTrial<T>& trial) {
  LawResult result;
  const LawData<T>& data = trial.data();
  const Index L = data.q.extent(2), S = data.k.extent(2);
  if (!data.causal || L < 2) return result;
  for (const Index last : std::set<Index>{0, L / 3, L / 2, L - 2}) {
    LawData<T> other = data;
    const auto exchange = [&](Tensor<T, 4>& x, Index seen, std::uint32_t stream) {
      const auto fresh = law_normal<T>(x.shape(), trial.seed(), stream);
      for_each_index(x.shape(), [&](const Shape<4>& at) {
        if (at[2] >= seen) x(at) = 5 * fresh(at);
      });
    };
    exchange(other.q, last + 1, 5);
    exchange(other.k, last + 1 + (S - L), 6);
    exchange(other.v, last + 1 + (S - L), 7);
    const auto o = rows_where(trial.forward(other).o, trial.answer().o,
                              [&](Index, Index, Index i) { return i <= last; });
    add_finding(result, "o", equal_bits<T, 4>(o, trial.answer().o));
  }
  return result;
}

/// A few keys to poison: the first, the last, some between.
inline std::set<Index> keys_to_poison(Index S) { return {0, S / 3, S / 2, S - 1}; }

template <class T>
void poison_key(LawData<T>& data, Index j, bool nan, bool also_key) {
  for (Index b = 0; b < data.k.extent(0); ++b) {
    for (Index g = 0; g < data.k.extent(1); ++g) {
      for (Index c = 0; c < data.v.extent(3); ++c) poison(data.v(b, g, j, c), nan);
      if (!also_key) continue;
      for (Index c = 0; c < data.k.extent(3); ++c) poison(data.k(b, g, j, c), nan);
    }
  }
}

/// The o of queries that do not see a key, where that key and its value are NaN or infinite. (Rows
/// that were not finite before are another law's.)
template <class T>
LawResult hidden_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  for (const Index j : keys_to_poison(x.k.extent(2))) {
    for (const bool nan : {true, false}) {
      LawData<T> data = trial.data();
      poison_key(data, j, nan, true);
      bool any = false;
      const auto o =
          rows_where(trial.forward(data).o, trial.answer().o, [&](Index b, Index h, Index i) {
            const bool hidden =
                !x.sees(b, h, i, j) && is_finite_number(trial.answer().o(b, h, i, 0));
            any = any || hidden;
            return hidden;
          });
      if (any) add_finding(result, "o", equal_bits<T, 4>(o, trial.answer().o));
    }
  }
  return result;
}

/// A NaN in a value shows in every query that sees it: 1 where o is finite all the same.
template <class T>
LawResult seen_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  for (const Index j : keys_to_poison(x.k.extent(2))) {
    LawData<T> data = trial.data();
    poison_key(data, j, true, false);
    const auto answer = trial.forward(data);
    Tensor<T, 4> finite(answer.o.shape());
    bool any = false;
    for_each_index(finite.shape(), [&](const Shape<4>& at) {
      if (!x.sees(at[0], at[1], at[2], j)) return;
      any = true;
      if (is_finite_number(answer.o(at))) finite(at) = 1;
    });
    if (any) add_finding(result, "finite o", all_zero(In<T, 4>(finite)));
  }
  return result;
}

template <class T>
LawResult dead_rows_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  if (!has_dead_rows(x)) return result;
  const auto dead = [&](Index b, Index h, Index i) { return !sees_any(x, b, h, i); };
  const auto check = [&](const char* name, const Tensor<T, 4>& rows) {
    add_finding(result, name,
                all_zero(In<T, 4>(rows_where(rows, Tensor<T, 4>(rows.shape()), dead))));
  };
  check("o", trial.answer().o);
  if (trial.kernel().gives_weights) check("weights", trial.answer().weights);
  return result;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/testing/backward_laws.hpp
// The laws of attention's gradients. The adjoint law differences the kernel's own forward, in its
// own type; the others need no differences.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Of dq and dk the oracle has those of rows that are encoded: where that is another thing, they
/// are the adjoint law's.
template <class T>
LawResult gradient_oracle_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.has_backward()) return result;
  const auto actual = trial.backward(trial.data());
  const LawOracle& expected = trial.oracle();
  const auto compare = [&](const char* name, const Tensor<T, 4>& a, const LawSums& e) {
    add_finding(result, name,
                close_to(In<T, 4>(a), In<long double, 4>(e.values), trial.tolerance(),
                         {.floor = size_of<T>(e)}));
  };
  const AttentionVariant& variant = trial.kernel().variant;
  if (!variant.encode_query) compare("dq", actual.dq, expected.dq);
  if (!variant.encode_key) compare("dk", actual.dk, expected.dk);
  compare("dv", actual.dv, expected.dv);
  return result;
}

/// sum a b over numbers in row-major order, in long double.
template <class A, class B>
long double inner_product(std::span<const A> a, std::span<const B> b) {
  long double sum = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    sum += static_cast<long double>(a[n]) * static_cast<long double>(b[n]);
  }
  return sum;
}

/// <d_o, J u> by central differences beside <J^T d_o, u>, u random signs over one input. The error
/// is of |d_o| (|J u| + |o|): a truncation of step^2, a rounding of epsilon / step.
template <class T>
void adjoint_of(const LawTrial<T>& trial, const char* name, const Tensor<T, 4>& gradient,
                LawData<T>& moved, Tensor<T, 4>& input, LawResult& result) {
  const auto values = [](const Tensor<T, 4>& x) {
    return std::span<const T>(x.data(), static_cast<std::size_t>(x.size()));
  };
  const T step = default_step<T>(Stencil::central);
  const double tolerance = trial.slack() * 32 * static_cast<double>(step) *
                           static_cast<double>(step) * (1 + trial.oracle().condition);
  std::vector<T*> elements;
  for (T& element : input) elements.push_back(&element);
  for (int direction = 0; direction < 3; ++direction) {
    const auto u =
        random_signs(elements.size(), trial.seed(), static_cast<std::size_t>(name[1]), direction);
    const auto ju = derivative<T>(Stencil::central, step, elements, u, [&] {
      const auto answer = trial.forward(moved);
      return std::vector<T>(answer.o.begin(), answer.o.end());
    });
    const std::span<const T> slope(ju), o = values(trial.answer().o);
    const std::span<const T> d_o = values(moved.d_o);
    Tensor<long double, 1> numeric(1), analytic(1);
    numeric(0) = inner_product(d_o, slope);
    analytic(0) = inner_product(values(gradient), std::span<const signed char>(u));
    const long double size =
        std::sqrt(inner_product(d_o, d_o)) *
        (std::sqrt(inner_product(slope, slope)) + std::sqrt(inner_product(o, o)));
    const bool finite = is_finite_number(size) && is_finite_number(analytic(0));
    Closeness found =
        close_to(analytic, numeric, tolerance, {.floor = finite ? static_cast<double>(size) : 1});
    if (!finite) {  // NaN on both sides is no agreement
      found.ok = false;
      found.failures = 1;
      found.error = no_error_bound;
    }
    add_finding(result, std::string("<") + name + ", u>", found);
  }
}

template <class T>
LawResult adjoint_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.has_backward()) return result;
  LawData<T> moved = trial.data();
  const auto gradients = trial.backward(moved);
  adjoint_of(trial, "dq", gradients.dq, moved, moved.q, result);
  adjoint_of(trial, "dk", gradients.dk, moved, moved.k, result);
  adjoint_of(trial, "dv", gradients.dv, moved, moved.v, result);
  return result;
}

HEADWISE_STRICT_MATH_END

/// Whether any query of a key head sees key j.
template <class T>
bool is_seen(const AttentionProblem<T>& x, Index b, Index g, Index j) {
  const Index group = x.q.extent(1) / x.k.extent(1);
  for (Index h = g * group; h < (g + 1) * group; ++h) {
    for (Index i = 0; i < x.q.extent(2); ++i) {
      if (x.sees(b, h, i, j)) return true;
    }
  }
  return false;
}

/// NaN or infinity in a key and its value: dq of queries that do not see it keeps its bits; where
/// nobody sees it, so do all of dk and dv, and its own are 0.
template <class T>
LawResult hidden_gradient_law(const LawTrial<T>& trial) {
  LawResult result;
  if (!trial.has_backward()) return result;
  const AttentionProblem<T> x = trial.problem();
  const auto before = trial.backward(trial.data());
  for (const Index j : keys_to_poison(x.k.extent(2))) {
    bool hidden = false;
    for_each_index(Shape{x.q.extent(0), x.q.extent(1), x.q.extent(2)}, [&](const Shape<3>& row) {
      hidden = hidden || !x.sees(row[0], row[1], row[2], j);
    });
    if (!hidden) continue;
    for (const bool nan : {true, false}) {
      LawData<T> data = trial.data();
      poison_key(data, j, nan, true);
      const auto after = trial.backward(data);
      const auto unseen = [&](Index b, Index h, Index i) {
        return !x.sees(b, h, i, j) && is_finite_number(before.dq(b, h, i, 0));
      };
      const auto of_unseen_heads = [&](Index b, Index g, Index) { return !is_seen(x, b, g, j); };
      add_finding(result, "dq",
                  equal_bits<T, 4>(rows_where(after.dq, before.dq, unseen), before.dq));
      add_finding(result, "dk",
                  equal_bits<T, 4>(rows_where(after.dk, before.dk, of_unseen_heads), before.dk));
      add_finding(result, "dv",
                  equal_bits<T, 4>(rows_where(after.dv, before.dv, of_unseen_heads), before.dv));
    }
  }
  return result;
}

/// Gradients that arrive at dead rows alone: nothing flows on.
template <class T>
LawResult dead_gradient_law(const LawTrial<T>& trial) {
  LawResult result;
  const AttentionProblem<T> x = trial.problem();
  if (!trial.has_backward() || !has_dead_rows(x)) return result;
  LawData<T> data = trial.data();
  data.d_o = rows_where(data.d_o, Tensor<T, 4>(data.d_o.shape()),
                        [&](Index b, Index h, Index i) { return !sees_any(x, b, h, i); });
  const auto gradients = trial.backward(data);
  add_finding(result, "dq", all_zero(In<T, 4>(gradients.dq)));
  add_finding(result, "dk", all_zero(In<T, 4>(gradients.dk)));
  add_finding(result, "dv", all_zero(In<T, 4>(gradients.dv)));
  return result;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/testing/invariance_laws.hpp
// The laws that hold a kernel against itself on a part of the problem, or on the same problem put
// otherwise: batches, chunks, repeated heads, a second call.

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// How two answers to one question have to agree.
enum class Agreement { bits, rounding };

template <class T>
void compare_answers(const LawTrial<T>& trial, Agreement agreement, const In<T, 4>& actual,
                     const In<T, 4>& expected, LawResult& result) {
  add_finding(result, "o",
              agreement == Agreement::bits ? equal_bits(actual, expected)
                                           : close_to(actual, expected, trial.tolerance(),
                                                      {.floor = size_of<T>(trial.oracle().o)}));
}

/// `count` indices of one axis, from `begin` on.
template <class T>
Tensor<T, 4> part(const Tensor<T, 4>& tensor, int axis, Index begin, Index count) {
  if (tensor.absent()) return {};
  return contiguous(slice(tensor, axis, begin, count));
}

/// Queries [begin, end) by themselves, with the keys that stood there when the last of them did.
template <class T>
LawData<T> chunk_of(const LawData<T>& data, Index begin, Index end) {
  const Index L = data.q.extent(2), S = data.k.extent(2), keys = data.causal ? end + (S - L) : S;
  return {part(data.q, 2, begin, end - begin),
          part(data.k, 2, 0, keys),
          part(data.v, 2, 0, keys),
          part(data.d_o, 2, begin, end - begin),
          part(part(data.keep, 2, data.keep.absent() ? 0 : begin, end - begin), 3, 0, keys),
          data.causal,
          data.scale};
}

template <class T>
LawResult chunk_law(const LawTrial<T>& trial, Agreement agreement) {
  LawResult result;
  const LawData<T>& data = trial.data();
  const Index L = data.q.extent(2), S = data.k.extent(2);
  if (L < 2) return result;
  for (const auto& [begin, end] : std::set<std::pair<Index, Index>>{
           {0, 1}, {0, L / 2}, {L / 2, L / 2 + 1}, {L / 3, L}, {L / 2, L}, {L - 1, L}}) {
    if (begin >= end || (data.causal && end + (S - L) < 1)) continue;
    if (end != L && !data.causal && trial.kernel().variant.by_place()) continue;  // they would move
    compare_answers<T>(trial, agreement, trial.forward(chunk_of(data, begin, end)).o,
                       part(trial.answer().o, 2, begin, end - begin), result);
  }
  return result;
}

template <class T>
LawResult batch_law(const LawTrial<T>& trial, Agreement agreement) {
  LawResult result;
  const LawData<T>& data = trial.data();
  if (data.q.extent(0) < 2) return result;
  for (Index b = 0; b < data.q.extent(0); ++b) {
    const LawData<T> alone{part(data.q, 0, b, 1),
                           part(data.k, 0, b, 1),
                           part(data.v, 0, b, 1),
                           part(data.d_o, 0, b, 1),
                           part(data.keep, 0, b, 1),
                           data.causal,
                           data.scale};
    compare_answers<T>(trial, agreement, trial.forward(alone).o, part(trial.answer().o, 0, b, 1),
                       result);
  }
  return result;
}

/// [B, G, S, W] with every head written `group` times: [B, G group, S, W].
template <class T>
Tensor<T, 4> repeat_heads(const Tensor<T, 4>& x, Index group) {
  Tensor<T, 4> y({x.extent(0), x.extent(1) * group, x.extent(2), x.extent(3)});
  for_each_index(y.shape(),
                 [&](const Shape<4>& at) { y(at) = x(at[0], at[1] / group, at[2], at[3]); });
  return y;
}

template <class T>
LawResult grouped_law(const LawTrial<T>& trial) {
  LawResult result;
  LawData<T> data = trial.data();
  const Index group = data.q.extent(1) / data.k.extent(1);
  if (group == 1) return result;
  data.k = repeat_heads(data.k, group);
  data.v = repeat_heads(data.v, group);
  compare_answers<T>(trial, Agreement::rounding, trial.forward(data).o, trial.answer().o, result);
  return result;
}

template <class T>
LawResult repeat_law(const LawTrial<T>& trial) {
  LawResult result;
  compare_answers<T>(trial, Agreement::bits, trial.forward(trial.data()).o, trial.answer().o,
                     result);
  return result;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

// headwise/testing/laws.hpp
// The laws of attention, for anybody's kernel and without a test framework: a list of laws, a list
// of shapes, and a score card that says which laws hold, and where the worst number stands if one
// does not. It proves nothing about speed, and nothing about numbers that no shape here has.

namespace headwise::inline v0_1 {

/// One law over all shapes.
struct ScoreCardRow {
  std::string law, statement;  // its name, and what it demands
  LawResult worst;             // its status is the law's
  LawShape shape;              // of the worst
  int shapes = 0;              // that the law says something about
  int failures = 0;            // of those
};

/// All laws of one kernel. Converts to bool where a condition is expected; prints as a table.
struct ScoreCard {
  std::string kernel;              // its name
  std::vector<ScoreCardRow> rows;  // in the order of the laws

  /// The laws that fail on some shape.
  std::vector<std::string> failed() const {
    std::vector<std::string> names;
    for (const ScoreCardRow& row : rows) {
      if (row.worst.status == LawStatus::fail) names.push_back(row.law);
    }
    return names;
  }
  /// Whether no law fails.
  explicit operator bool() const { return failed().empty(); }

  /// The row of a law. Throws ArgumentError where the card has no such law.
  const ScoreCardRow& operator[](std::string_view law) const {
    for (const ScoreCardRow& row : rows) {
      if (row.law == law) return row;
    }
    raise<ArgumentError>("ScoreCard: law is " + std::string(law) + ", expected one of its rows");
  }

  /// Puts the rows of another card of the same kernel below its own.
  void append(ScoreCard other) {
    for (ScoreCardRow& row : other.rows) rows.push_back(std::move(row));
  }

  /// A line a law: name, result, worst error and what it was held against, shapes, worst shape;
  /// below a law that fails, what it demands and the worst number.
  std::string format() const {
    std::size_t longest = 0;
    for (const ScoreCardRow& row : rows) longest = std::max<std::size_t>(longest, row.law.size());
    const int width = static_cast<int>(longest) + 2;
    std::ostringstream out;
    out << kernel << '\n' << std::left;
    out << "  " << std::setw(width) << "law" << std::setw(8) << "result" << std::setw(12) << "worst"
        << std::setw(10) << "allowed" << std::setw(8) << "shapes"
        << "worst shape\n";
    for (const ScoreCardRow& row : rows) {
      const LawResult& worst = row.worst;
      out << "  " << std::setw(width) << row.law << std::setw(8);
      if (worst.status == LawStatus::not_applicable) {
        out << "-"
            << "not applicable\n";
        continue;
      }
      const bool fails = row.failures > 0, number = worst.thrown.empty();
      out << (fails ? "FAIL" : "pass") << std::setw(12)
          << (number ? detail::format_error(worst.worst.error) : "-") << std::setw(10)
          << (number ? detail::format_number(worst.worst.tolerance) : "-") << std::setw(8)
          << std::to_string(row.shapes - row.failures) + "/" + std::to_string(row.shapes)
          << row.shape.format() << '\n';
      if (fails) out << "      " << row.statement << "\n      " << worst.message() << '\n';
    }
    const auto count = failed().size();
    out << "  " << (count == 0 ? "every law that applies holds" : std::to_string(count) + " failed")
        << '\n';
    return out.str();
  }

  friend std::ostream& operator<<(std::ostream& out, const ScoreCard& card) {
    return out << card.format();
  }
};

inline namespace HEADWISE_CODE {

/// All laws, in the order in which a fault is best read: what the textbook says first.
template <class T>
std::vector<AttentionLaw<T>> attention_laws() {
  using Trial = LawTrial<T>;
  using detail::Agreement;
  const auto batch = [](Agreement how) {
    return [how](const Trial& trial) { return detail::batch_law(trial, how); };
  };
  const auto chunk = [](Agreement how) {
    return [how](const Trial& trial) { return detail::chunk_law(trial, how); };
  };
  return {
      {"agrees with plain loops",
       "o, and the weights, are those of plain loops in long double, for queries that see a key",
       detail::oracle_law<T>},
      {"weights sum to 1 over keys",
       "the weights of a query that sees a key sum to 1, and are 0 where a pair is hidden",
       detail::weights_law<T>},
      {"equal values come out as they are",
       "where all values of a head are one row, o is that row: softmax is over the keys",
       detail::equal_values_law<T>},
      {"a shift of all scores is nothing",
       "one number added to all scores of a query, far beyond where e^x overflows, changes nothing",
       detail::shift_law<T>},
      {"the order of keys is nothing",
       "keys in another order, with their values and what hides them, give the same o",
       detail::permutation_law<T>},
      {"grouped heads are repeated heads",
       "G key/value heads give what H heads give that repeat each of them H / G times",
       detail::grouped_law<T>},
      {"the future changes no bit",
       "with causal, other queries, keys and values behind query i leave o up to i bit for bit",
       detail::future_law<T>},
      {"what is hidden changes no bit",
       "NaN or infinity in a key and its value does not reach a query that may not see it",
       detail::hidden_law<T>},
      {"what is seen shows", "NaN in a value makes o of every query that sees it not finite",
       detail::seen_law<T>},
      {"a query that sees nothing gets 0", "o, and the weights, of a query without keys are 0",
       detail::dead_rows_law<T>},
      {"twice the same, same bits", "a second call on the same problem gives the same bits",
       detail::repeat_law<T>},
      {"alone as in a batch, to rounding", "an element of a batch by itself gives the same o",
       batch(Agreement::rounding)},
      {"alone as in a batch, same bits", "an element of a batch by itself gives the same bits of o",
       batch(Agreement::bits)},
      {"a chunk as in the whole, to rounding",
       "a part of the queries, with the keys up to the last of them if causal, gives the same o",
       chunk(Agreement::rounding)},
      {"a chunk as in the whole, same bits",
       "a part of the queries, with the keys up to the last of them if causal, gives the same bits",
       chunk(Agreement::bits)},
      {"gradients agree with plain loops",
       "dq, dk and dv are those of plain loops in long double (of rows that a variant encodes, dv)",
       detail::gradient_oracle_law<T>},
      {"backward is forward's adjoint",
       "<d_o, J u> by differences of forward equals <J^T d_o, u> of backward, for random signs u",
       detail::adjoint_law<T>},
      {"what is hidden moves no gradient",
       "NaN or infinity in a hidden key and value leaves the gradients it may not reach bit for "
       "bit",
       detail::hidden_gradient_law<T>},
      {"a query that sees nothing moves no gradient",
       "a gradient that arrives at queries without keys alone gives dq, dk and dv of 0",
       detail::dead_gradient_law<T>},
  };
}

}  // namespace HEADWISE_CODE

/// Extents of 1, primes, one below and one above 64, L != S both ways, G < H, dv != d.
inline std::vector<LawShape> law_shapes() {
  return {
      {1, 1, 1, 1, 1, 1, 1},
      {1, 1, 1, 1, 2, 3, 1, true},
      {2, 2, 2, 7, 7, 5, 5},
      {2, 2, 1, 7, 7, 5, 3, true},
      {1, 4, 2, 5, 11, 8, 4, true, true},
      {2, 3, 1, 11, 5, 4, 6, true},
      {3, 4, 2, 13, 17, 7, 3, false, true},
      {2, 2, 1, 63, 63, 4, 5, true},
      {1, 2, 2, 65, 67, 6, 3, true, true},
      {2, 2, 2, 3, 131, 5, 2},
      {1, 4, 2, 67, 130, 17, 8, true},
      {2, 2, 2, 1, 65, 4, 4, true},
  };
}

/// What a kernel is tried on.
struct ScoreCardOptions {
  std::vector<LawShape> shapes = law_shapes();  // every extent >= 1, G divides H
  std::uint64_t seed = 1;                       // of the numbers
  double slack = 1;  // multiplies every tolerance: more than 1 for a kernel with a coarse e^x
};

namespace detail::inline HEADWISE_CODE {

/// Whether a law says anything of a kernel that threw: found out by a kernel that takes and gives
/// the same, and answers 0. A law that throws even then says something.
template <class T>
bool has_a_say(const AttentionLaw<T>& law, const AttentionKernel<T>& kernel,
               const LawShape& shape) {
  AttentionKernel<T> silent = kernel;
  silent.forward = [](const AttentionProblem<T>&, const AttentionAnswer<T>& y) {
    fill(y.o, T(0));
    if (!y.weights.absent()) fill(y.weights, T(0));
  };
  if (silent.backward) silent.backward = [](const auto&, const auto&, const auto&) {};
  LawResult result;
  const auto error = error_of([&] { result = law.holds(LawTrial<T>(silent, shape, 1)); });
  return error || result.status != LawStatus::not_applicable;
}

}  // namespace detail::inline HEADWISE_CODE

inline namespace HEADWISE_CODE {

/// Holds a kernel against laws, on every shape that it can take. What it throws is a failure.
///
/// T        float or double
/// kernel   called a few dozen times a shape, with tensors of thousands of numbers
/// options  shapes, seed, slack
/// laws     attention_laws(), some of them, or more
///
/// Throws ArgumentError for a shape with an extent below 1, with heads that do not divide, for a
/// kernel without forward, no shapes, no laws, or a slack that is not above 0.
template <class T>
ScoreCard run_laws(const AttentionKernel<T>& kernel, const ScoreCardOptions& options = {},
                   const std::vector<AttentionLaw<T>>& laws = attention_laws<T>()) {
  require(static_cast<bool>(kernel.forward), "run_laws",
          "kernel.forward is empty, expected a function");
  require(!options.shapes.empty(), "run_laws", "shapes are 0, expected at least one");
  require(detail::is_finite_number(options.slack) && options.slack > 0, "run_laws", [&] {
    return "slack is " + detail::format_number(options.slack) +
           ", expected a finite number above 0";
  });
  require(!laws.empty(), "run_laws", "laws are 0, expected at least one");
  ScoreCard card{kernel.name, {}};
  for (const AttentionLaw<T>& law : laws) card.rows.push_back({law.name, law.statement, {}, {}});
  for (const LawShape& shape : options.shapes) {
    const Index least =
        std::min<Index>({shape.B, shape.H, shape.G, shape.L, shape.S, shape.d, shape.dv});
    require(least >= 1 && shape.H % shape.G == 0, "run_laws", [&] {
      return "shape is " + shape.format() + ", expected extents >= 1 and G a divisor of H";
    });
  }
  for (const LawShape& shape : options.shapes) {
    if ((shape.causal && !kernel.takes_causal) || (shape.masked && !kernel.takes_keep) ||
        (shape.G != shape.H && !kernel.takes_groups)) {
      continue;
    }
    std::optional<LawTrial<T>> trial;
    for (std::size_t n = 0; n < laws.size(); ++n) {
      LawResult result;
      const auto error = error_of([&] {
        if (!trial) trial.emplace(kernel, shape, options.seed, options.slack);
        result = laws[n].holds(*trial);
      });
      if (error && (trial || detail::has_a_say(laws[n], kernel, shape))) {
        result = {LawStatus::fail, "", {}, *error};
      }
      if (result.status == LawStatus::not_applicable) continue;
      ScoreCardRow& row = card.rows[n];
      ++row.shapes;
      if (result.status == LawStatus::fail) ++row.failures;
      if (is_worse(result, row.worst)) {
        row.worst = result;
        row.shape = shape;
      }
    }
  }
  return card;
}

/// Prints the score card of a kernel and returns how many laws failed: 0 as an exit status. Throws
/// as run_laws does.
template <class T>
int score_card(std::ostream& out, const AttentionKernel<T>& kernel,
               const ScoreCardOptions& options = {}) {
  const ScoreCard card = run_laws(kernel, options);
  out << card;
  return static_cast<int>(card.failed().size());
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
