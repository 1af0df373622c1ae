// The next token from a row of logits: a pure function of the row, the options, and of a seed and a
// step that name the random number. It refuses logits that are no numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "headwise/runtime/context.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

/// How a token is chosen. Tokens that top_k and top_p leave keep their odds among each other.
struct SamplingOptions {
  double temperature = 1;  // logits are divided by it; 0: the greatest, nothing is drawn
  Index top_k = 0;         // only among so many of the greatest logits; 0: all
  double top_p = 1;        // only among the fewest whose probability is so much, in (0, 1]
  std::uint64_t seed = 0;  // of the stream of random numbers
  std::uint64_t step = 0;  // its number: the position of the token, say
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

inline void require_sampling(std::string_view function, const SamplingOptions& o) {
  require(is_finite_option(o.temperature) && o.temperature >= 0, function, "temperature is ",
          o.temperature, ", expected a finite number of 0 or more");
  require(o.top_k >= 0, function, "top_k is ", o.top_k, ", expected 1 or more, or 0 for all");
  require(o.top_p > 0 && o.top_p <= 1, function, "top_p is ", o.top_p,
          ", expected above 0 and at most 1");
}

/// The first of the greatest logits. Throws ArgumentError for NaN, +infinity, or nothing but
/// -infinity.
template <class T>
Index first_greatest(std::string_view function, const In<T, 1>& logits) {
  const T most = (std::numeric_limits<T>::max)(), least = std::numeric_limits<T>::lowest();
  Index greatest = -1;
  for (Index v = 0; v < logits.extent(0); ++v) {
    require(logits(v) <= most, function, "logits(", v,
            ") is NaN or infinity, expected a number or -infinity");
    const bool here = least <= logits(v);
    if (here && (greatest < 0 || logits(greatest) < logits(v))) greatest = v;
  }
  require(greatest >= 0, function, "logits ", logits.shape(),
          " hold no number above -infinity, expected one token at least");
  return greatest;
}

/// Tokens of a row by falling logit, equal ones by number; the first ones are sorted on demand.
template <class T>
class RankedTokens {
 public:
  /// order has room for as many numbers as there are logits.
  RankedTokens(const In<T, 1>& logits, Index* order)
      : logits_(logits), order_(order), count_(logits.extent(0)) {
    for (Index v = 0; v < count_; ++v) order_[v] = v;
  }
  /// The token of rank n.
  Index at(Index n) {
    while (n >= sorted_) {  // far fewer than all are asked for as a rule
      const Index next = std::min<Index>(count_, std::max<Index>(64, 8 * sorted_));
      const auto before = [&](Index a, Index b) {
        const T x = logits_(a), y = logits_(b);
        return y < x || (!(x < y) && a < b);
      };
      Index *const from = order_ + sorted_, *const to = order_ + next, *const end = order_ + count_;
      if (sorted_ == 0) {
        std::partial_sort(from, to, end, before);
      } else {
        // Half of partial_sort's time for many tokens; for the first few it takes seven times.
        std::nth_element(from, to, end, before);
        std::sort(from, to, before);
      }
      sorted_ = next;
    }
    return order_[n];
  }

 private:
  In<T, 1> logits_;
  Index* order_;
  Index count_, sorted_ = 0;
};

/// Copies to `kept`, of zeros, the weights of the tokens that top_k and top_p leave.
template <class T>
void keep_top(const SamplingOptions& o, RankedTokens<T> ranked, In<double, 1> weights,
              Out<double, 1> kept) {
  const Index count = weights.extent(0);
  const Index most = o.top_k == 0 ? count : std::min<Index>(o.top_k, count);
  double total = 0, sum = 0;
  for (Index n = 0; n < most; ++n) {
    total = total + weights(most == count ? n : ranked.at(n));  // of all of them: in any order
  }
  for (Index n = 0; n < most && (n == 0 || o.top_p == 1 || sum < o.top_p * total); ++n) {
    const Index token = ranked.at(n);
    kept(token) = weights(token);
    sum = sum + weights(token);
  }
}

/// The token at which the weights of it and those before reach a part of all of them that is drawn.
inline Index draw_token(In<double, 1> weights, double part) {
  const Index count = weights.extent(0);
  double total = 0, sum = 0;
  for (Index v = 0; v < count; ++v) total = total + weights(v);
  Index token = 0;
  for (Index v = 0; v < count; ++v) {
    if (!(weights(v) > 0)) continue;
    token = v;
    sum = sum + weights(v);
    if (sum >= part * total) break;
  }
  return token;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// A token by its logit: token v with probability e^(logits_v / temperature), over the sum of those
/// that top_k and then top_p leave.
///
/// logits   [V]   in; -infinity for a token that is never chosen
/// options        how; the same seed and step choose the same token of the same logits
///
/// At temperature 0 it is the greatest logit. Of equal logits the lower token is ranked first,
/// everywhere. Probabilities are in double. What is drawn walks the tokens in order of their
/// numbers, so that options which leave all of them change nothing. Rows of a batch need a seed or
/// a step of their own.
///
/// Work    V e^x; with top_k or top_p, ranking those that are asked for.
/// Throws  ArgumentError for options out of range, NaN, +infinity, or no number at all; ShapeError;
///         std::bad_alloc.
/// Source  top-p: Holtzman et al., 2020, arXiv 1904.09751.
template <Scalar T>
Index sample_token(In<T, 1> logits, const SamplingOptions& options = {},
                   const Context& context = {}) {
  constexpr std::string_view function = "sample_token";
  require_countable(function, "logits", logits);
  detail::require_sampling(function, options);
  const Index V = logits.extent(0), greatest = detail::first_greatest(function, logits);
  if (options.temperature == 0) return greatest;
  using Wide = std::conditional_t<std::same_as<T, long double>, T, double>;  // holds every logit
  const Wide most = static_cast<Wide>(logits(greatest)), temperature = options.temperature;
  auto weights = Tensor<double, 1>::uninitialized({V}, context.memory);
  for (Index v = 0; v < V; ++v) {
    const Wide below = static_cast<Wide>(logits(v)) - most;
    weights(v) = static_cast<double>(std::exp(below / temperature));
  }
  if ((options.top_k != 0 && options.top_k < V) || options.top_p != 1) {
    Tensor<double, 1> kept(Shape{V}, context.memory);
    auto order = Tensor<Index, 1>::uninitialized({V}, context.memory);
    detail::keep_top<T>(options, {logits, order.data()}, weights, kept);
    weights = std::move(kept);
  }
  constexpr std::uint32_t samples = 0x73616D70;  // "samp": apart from what else this seed draws
  const auto words = philox<10>({static_cast<std::uint32_t>(options.step),
                                 static_cast<std::uint32_t>(options.step >> 32), 0, samples},
                                philox_key(options.seed));
  return detail::draw_token(weights, unit_interval(words[0], words[1]));
}
/// The same of a tensor that owns its elements.
template <Scalar T>
Index sample_token(const Tensor<T, 1>& logits, const SamplingOptions& options = {},
                   const Context& context = {}) {
  return sample_token(In<T, 1>(logits), options, context);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
