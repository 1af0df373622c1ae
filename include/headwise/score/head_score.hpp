// What is done to the scaled scores of one head before its mask, as scalar functions of a pair.
// Kernels run them over their tiles; the readable attention calls them pair by pair.
#pragma once

#include <algorithm>
#include <limits>

#include "headwise/score/score_function.hpp"
#include "headwise/score/visibility.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// Softcap, biases by distance, the user's function and the sink of head h, of L queries and S
/// keys. Distances are j - i - (S - L), 0 where a query meets its own key; of keys before a gap
/// that many more.
template <Scalar T>
struct HeadScore {
  T softcap = T(0);          // 0 for none
  bool alibi = false;        // whether `slope` is asked for
  T slope = T(0);            // of ALiBi
  const T* table = nullptr;  // [2 reach + 1]; null for none
  Index table_step = 1;      // from number to number of it
  Index reach = 0;           // distances beyond it count as it
  bool has_sink = false;     // whether `sink` is asked for
  T sink = T(0);             // the sink's logit
  Index offset = 0;          // S - L, and the keys that are lacking

  ScoreFunctionRef<T> function = {};  // the user's own
  Position first = {};                // where its pair (0, 0) stands
  KeyGap gap = {};                    // in its keys

  // Inlined: a function that is compiled apart from kernels does without AVX, and an Intel
  // processor takes 131 ns to go from a kernel's vectors to such code and back (Xeon, model 167).

  /// Whether a score is more than scale q k^T + the biases of its mask.
  HEADWISE_INLINE bool changes() const { return has_softcap() || by_distance() || has_function(); }
  /// Whether what flows into a score is not what flows into scale q k^T.
  HEADWISE_INLINE bool has_slope() const { return has_softcap() || has_function(); }
  /// Whether the user's function is called.
  HEADWISE_INLINE bool has_function() const { return !function.absent(); }
  /// Whether it may make scores -infinity, all those of a query too.
  HEADWISE_INLINE bool may_leave_nothing() const { return has_function() || table != nullptr; }
  /// Whether scores are capped.
  HEADWISE_INLINE bool has_softcap() const { return softcap != T(0); }
  /// Whether something is added by the distance of key and query.
  HEADWISE_INLINE bool by_distance() const { return alibi || table != nullptr; }
  /// Whether the sink takes weight: one that is as low as a bias that hides does not.
  HEADWISE_INLINE bool sink_counts() const {
    return has_sink && !(sink < std::numeric_limits<T>::lowest() / T(4));
  }
  /// The sink's logit where it takes weight, else null.
  HEADWISE_INLINE const T* counting_sink() const { return sink_counts() ? &sink : nullptr; }
  /// The distance of a pair.
  Index distance(Index i, Index j) const { return j + gap.before(j) - i - offset; }
  /// The element of the table that a distance reads.
  Index entry(Index distance) const { return std::clamp(distance, -reach, reach) + reach; }

  /// c tanh(s / c).
  T cap(const T& s) const { return softcap * hyperbolic_tangent(T(s / softcap)); }
  /// The derivative of cap, from what it returned.
  T cap_slope(const T& capped) const {
    const T share = capped / softcap;
    return T(1) - share * share;
  }
  /// What is added at a distance: -slope |distance| + table.
  T distance_bias(Index distance) const {
    T sum = T(0);
    if (alibi) sum = T(0) - slope * magnitude(distance);
    if (table != nullptr) sum = sum + table[entry(distance) * table_step];
    return sum;
  }
  /// |distance| as a T.
  static T magnitude(Index distance) {
    return T(static_cast<double>(distance < 0 ? -distance : distance));
  }
  /// The changed score of a pair, from scale q k^T, before biases of pairs and the user's function.
  T operator()(const T& s, Index i, Index j) const {
    T changed = has_softcap() ? cap(s) : s;
    if (alibi) changed = changed - slope * magnitude(distance(i, j));
    if (table != nullptr) changed = changed + table[entry(distance(i, j)) * table_step];
    return changed;
  }
  /// Pairs from (i, j) on, on one side of the gap.
  PairRun run(Index i, Index j, Index query_step, Index key_step, Index count) const {
    return {first.of_pair(i, j + gap.before(j)), query_step, key_step, count};
  }
  /// What the user's function makes of a score.
  T call(T s, Index i, Index j) const {
    if (has_function()) function.change(function.function, run(i, j, 0, 1, 1), &s);
    return s;
  }
  /// Operations that this costs a pair, forward: quotient, tanh and product; product and
  /// difference; sum.
  HEADWISE_INLINE std::int64_t operations() const {
    return (has_softcap() ? 3 : 0) + (alibi ? 2 : 0) + (table != nullptr ? 1 : 0);
  }
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
