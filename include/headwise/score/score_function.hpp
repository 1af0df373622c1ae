// A score function of the user's own, without its type: what kernels call, a run of pairs at a
// time.
#pragma once

#include <concepts>
#include <span>

#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/shape.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1 {

/// Where a pair stands.
struct Position {
  Index batch = 0, head = 0;  // b and h
  Index query = 0, key = 0;   // i and j, from 0

  /// Where batch element b and head h stand that are counted from here.
  constexpr Position of_head(Index b, Index h) const { return {batch + b, head + h, query, key}; }
  /// Where the pair (i, j) stands that is counted from here.
  HEADWISE_INLINE constexpr Position of_pair(Index i, Index j) const {
    return {batch, head, query + i, key + j};
  }
};

/// Keys that a call lacks in the midst of a whole: its own from `at` on stand `size` further.
struct KeyGap {
  static constexpr Index block = 128;  // that `at` is a multiple of, as tiles are on one side of it

  Index at = 0, size = 0;

  /// How many are lacking before key j.
  constexpr Index before(Index j) const { return j < at ? 0 : size; }
};

/// Pairs in a row: the first, and how far the next stands from each.
struct PairRun {
  Position first;              // the first of them
  Index query_step, key_step;  // from pair to pair
  Index count;                 // pairs
  /// The n-th of them.
  HEADWISE_INLINE constexpr Position operator()(Index n) const {
    return {first.batch, first.head, first.query + n * query_step, first.key + n * key_step};
  }
};

/// What a call in T can view as its score function.
template <class F, class T>
concept MadeForScoresOf = std::same_as<typename F::Score, T>;

/// A view of a score function: kernels/score_function.hpp makes them. What it views must outlive
/// the call, and for training the backward call too.
template <Scalar T>
struct ScoreFunctionRef {
  using Score = T;                 ///< of the calls that it is for
  const void* function = nullptr;  // null for none
  const T* values = nullptr;       // [P], of its parameters
  Index parameters = 0;            // P, of which it has gradients
  /// scores[n] becomes f(scores[n]).
  void (*change)(const void* function, const PairRun& run, T* scores) = nullptr;
  /// The same, and slopes[n] becomes df / d scores[n].
  void (*change_with_slopes)(const void* function, const PairRun& run, T* scores,
                             T* slopes) = nullptr;
  /// sums[p step] += flow[n] df / d parameter p at scores[n], where flow[n] is not 0.
  void (*add_flows)(const void* function, const PairRun& run, const T* scores, const T* flow,
                    T* sums, Index step) = nullptr;

  /// Of none.
  constexpr ScoreFunctionRef() noexcept {}
  /// Of a ScoreFunction, which converts itself.
  constexpr ScoreFunctionRef(const void* of, std::span<const T> numbers,
                             decltype(change) change_scores,
                             decltype(change_with_slopes) and_slopes, decltype(add_flows) flows)
      : function(of),
        values(numbers.data()),
        parameters(static_cast<Index>(numbers.size())),
        change(change_scores),
        change_with_slopes(and_slopes),
        add_flows(flows) {}
  /// Anything else is refused, by a sentence that says what is taken.
  template <class F>
  requires(!MadeForScoresOf<F, T>) ScoreFunctionRef(const F&) {
    static_assert(MadeForScoresOf<F, T>,
                  "the score function of a call in T is what score_function makes for T, under a "
                  "name: const auto f = score_function<T>(callable), then .function = f");
  }

  /// Whether there is none.
  bool absent() const { return function == nullptr; }
  /// Its parameters [P].
  In<T, 1> numbers() const { return {values, Shape{parameters}}; }
};

}  // namespace headwise::inline v0_1
