// One trial of a kernel: numbers of a shape, what the kernel makes of them, and what plain loops in
// long double make of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/law_oracle.hpp"
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
