// Softmax cross-entropy of one row of logits, forward and backward. Sums run in T, in a fixed
// order.
//
//   loss = lse - x_t,   lse = log sum_v e^{x_v},   d loss / d x_v = e^{x_v - lse} - [v = t]
//
// Where the target is certain, 1 + the others' sum and 1 - the target's probability would lose what
// is to be learned: the target's own term is left out of both sums. And lse is rounded to the
// digits of the logits, which multiplies every e^{x_v - lse} by the same number: backward divides
// by their sum, so that logits of 10,000 have a gradient as exact as those of 1. The steps are
// those of docs/derivations/cross_entropy_backward.md.
#pragma once

#include <cmath>
#include <concepts>

#include "headwise/kernels/softmax.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// What a row gives.
template <class T>
struct CrossEntropy {
  T lse, loss;
};

/// log(1 + x), x >= 0, to the last digits of a small x.
template <class T>
T log_of_one_plus(const T& x) {
  using std::log1p;
  if constexpr (requires {
                  { log1p(x) } -> std::same_as<T>;
                }) {
    return log1p(x);
  } else {  // Kahan's: what rounding does to 1 + x happens to both, and cancels
    using std::log;
    const T sum = T(1) + x, rounded = sum - T(1);
    if (!(T(0) < rounded)) return x;
    return T(log(sum)) * x / rounded;
  }
}

/// From the greatest logit, the target's, and the sums of weights e^{x - greatest}: of the target,
/// and of all others. An infinite greatest logit gives NaN.
template <class T>
CrossEntropy<T> cross_entropy_from(T greatest, T target, T weight, T others) {
  using std::log;
  const bool ahead = target == greatest;  // its weight is 1
  const T rest = ahead ? log_of_one_plus(others) : T(log(weight + others));
  return {greatest + rest, (greatest - target) + rest};
}

/// Forward of one row of V logits.
template <class T>
CrossEntropy<T> cross_entropy_row(Row<const T> x, Index V, Index target) {
  using std::exp;
  T greatest = std::numeric_limits<T>::lowest();
  for (Index v = 0; v < V; ++v) {
    if (greatest < x[v]) greatest = x[v];
  }
  const T others = sum_visible<T>(
      V, [&](Index v) { return v != target; }, [&](Index v) { return T(exp(x[v] - greatest)); });
  return cross_entropy_from<T>(greatest, x[target], T(exp(x[target] - greatest)), others);
}

/// Backward of one row: dx_v = factor (p_v - [v = target]), p_v = e^{x_v - lse} over their sum. dx
/// may be x.
template <class T>
void cross_entropy_backward_row(Row<const T> x, Index V, Index target, T lse, T factor, Row<T> dx) {
  using std::exp;
  const T weight = T(exp(x[target] - lse));
  const auto term = [&](Index v) { return dx[v] = T(exp(x[v] - lse)); };
  const T others = sum_visible<T>(
      V, [&](Index v) { return v != target; }, term);
  const T scale = factor / (others + weight);
  for (Index v = 0; v < V; ++v) {
    if (v != target) dx[v] = scale * dx[v];
  }
  dx[target] = T(0) - scale * others;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
