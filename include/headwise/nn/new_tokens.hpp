// Tokens on their way into a cache: what their queries see of it, for sequences of any lengths.
#pragma once

#include <span>
#include <type_traits>

#include "headwise/nn/kv_cache.hpp"
#include "headwise/score/mask.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// n tokens of each sequence, or counts[b] of sequence b, on their way into a cache. They are
/// written behind its length, and it is longer once a call has come to its end and keeps them.
template <class T>
class NewTokens {
 public:
  /// Written to the cache. They fit, and the counts are right.
  NewTokens(KeyValueCache<T>& cache, In<T, 4> k, In<T, 4> v, std::span<const Index> counts)
      : cache_(cache), n_(k.extent(2)), counts_(counts) {
    cache_.write(k, v, counts);
  }

  /// Makes a cache longer by what was written behind it.
  static void keep(KeyValueCache<T>& cache, Index n, std::span<const Index> counts) noexcept {
    cache.keep(n, counts);
  }

  Index batch() const { return cache_.options_.batch_size; }
  Index count(Index b) const { return count_of(counts_, b, n_); }
  /// Whether all sequences are alike: one call attends for all of them.
  bool uniform() const {
    bool same = true;
    for (Index b = 1; b < batch(); ++b) {
      same = same && cache_.at(b) == cache_.at(0) && count(b) == count(0);
    }
    return same;
  }
  /// Whether no sequence has more than one new query, which sees all that is held of it.
  bool one_each() const {
    bool one = true;
    for (Index b = 0; b < batch(); ++b) one = one && count(b) <= 1 && sees_all(b);
    return one;
  }
  /// The keys of sequence b with the new ones.
  Index held(Index b) const { return cache_.at(b).held() + count(b); }
  /// f(keys, values) of sequences b ... b + batch - 1 with the new ones, [batch, G, held, d] and
  /// [batch, G, held, dv], of the type that they are stored as.
  template <class F>
  void with_keys(Index b, Index batch, Index held, const F& f) const {
    cache_.k_.with_type([&]<class U>(std::type_identity<U>) {
      f(cache_.k_.template filled<U>(b, batch, held), cache_.v_.template filled<U>(b, batch, held));
    });
  }

  /// Where the first new query of sequence b stands in it.
  Position origin(Index b) const { return {b, 0, cache_.at(b).length, 0}; }
  /// The keys of sequence b that were dropped.
  KeyGap gap(Index b) const { return cache_.at(b).gap(cache_.slots_); }
  /// What the new queries of sequence b see: slots behind the first keys' are in the order of their
  /// positions, and the last are the queries' own.
  AttentionMask<T> mask(Index b) const {
    if (sees_all(b)) return {causal};
    return {causal, Mask::window(cache_.options_.window).keeping_first(cache_.options_.first_keys)};
  }

 private:
  /// Whether the window hides nothing from the new queries of sequence b.
  bool sees_all(Index b) const {
    const Index window = cache_.options_.window, first = cache_.options_.first_keys;
    return window == 0 || cache_.at(b).length + count(b) - window <= first;
  }

  KeyValueCache<T>& cache_;
  Index n_;
  std::span<const Index> counts_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
