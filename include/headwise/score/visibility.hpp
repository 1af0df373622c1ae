// The masks of one head as scalar functions of a pair (i, j), with the bounds of what a query can
// see. Bounds let whole tiles be skipped; what is left is asked pair by pair.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "headwise/score/key_range.hpp"
#include "headwise/score/mask.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// What batch element b and head h may see, of L queries and S keys.
template <Scalar T>
class HeadVisibility {
 public:
  /// Of a mask that fits, whose functions count from `origin` and over a gap; what it views must
  /// outlive this.
  HeadVisibility(const AttentionMask<T>& mask, Index b, Index h, Index L, Index S,
                 const Position& origin = {}, const KeyGap& gap = {})
      : offset_(S - L),
        causal_(mask.is_causal()),
        window_(mask.window()),
        first_keys_(mask.first_keys()),
        keys_(mask.has_key_lengths() ? mask.key_lengths()[static_cast<std::size_t>(b)] : S),
        all_keys_(S),
        documents_(mask.documents(), b),
        functions_(mask.functions(), origin.of_head(b, h), gap),
        hidden_below_(std::numeric_limits<T>::lowest()) {
    if (!mask.biases().empty()) hidden_below_ = hidden_below_ / T(4);
    for (const PairMask& term : mask.pair_masks()) {
      pairs_[static_cast<std::size_t>(pair_count_++)] = {plane(term.pairs, b, h), term.keep};
    }
    for (const BiasMask<T>& term : mask.biases()) {
      biases_[static_cast<std::size_t>(bias_count_++)] = plane(term.values, b, h);
    }
  }

  /// The keys from the first to the last that causality, window, length and documents leave to
  /// query i. Both ends grow with i.
  KeyRange range(Index i) const {
    KeyRange keys = reach(i);
    if (first_keys_ != 0) keys = {0, std::max<Index>(keys.end, first_end(i))};
    return documents_.present() ? in_document(i, keys) : keys;
  }

  /// The keys that query i does not see between the first ones, which its window keeps, and the
  /// window. Both ends grow with i.
  KeyRange hidden_between(Index i) const {
    if (first_keys_ == 0) return {0, 0};
    const Index begin = first_end(i);
    return {begin, std::max<Index>(begin, reach(i).begin)};
  }

  /// Of its range, what the bounds of mask functions leave to query i. Its ends may fall where i
  /// grows.
  KeyRange own_range(Index i) const { return functions_.in_bounds(i, range(i)); }
  /// Whether causality, window and length alone make ranges.
  bool ranges_step() const { return first_keys_ == 0 && !documents_.present() && !has_bounds(); }
  /// What causality and window leave to query i of keys without begin and end: from query to query
  /// each end grows by 1, or is farther away than any key.
  KeyRange reach_of_any_keys(Index i) const {
    constexpr Index beyond = Index{1} << 60;
    const Index diagonal = i + offset_;
    return {window_ != 0 ? diagonal - window_ + 1 : -beyond,
            std::min<Index>(causal_ ? diagonal + 1 : beyond,
                            window_ != 0 ? diagonal + window_ : beyond)};
  }
  /// The keys that length leaves.
  Index key_count() const { return keys_; }
  /// Whether mask functions have bounds.
  bool has_bounds() const { return functions_.have_bounds(); }

  /// How many keys causality, window, length, documents and bounds leave to query i.
  Index count(Index i) const {
    const KeyRange keys = own_range(i);
    return keys.size() - hidden_between(i).in(keys).size();
  }

  /// The keys that at least one of the queries first ... first + count - 1 has in its range.
  KeyRange range(Index first, Index count) const {
    const KeyRange low = range(first);
    const KeyRange high = range(first + count - 1);
    return {low.begin, std::max<Index>(high.end, low.begin)};
  }

  /// The keys that each of the queries has hidden_between: first ... first + count - 1.
  KeyRange hidden_between(Index first, Index count) const {
    const Index begin = hidden_between(first + count - 1).begin;
    return {begin, std::max<Index>(begin, hidden_between(first).end)};
  }

  /// The blocks of `size` keys that the queries first ... first + count - 1 look at.
  KeyBlocks blocks(Index first, Index count, Index size) const {
    KeyRange keys = range(first, count);
    if (has_bounds()) keys = functions_.between_bounds(first, count, keys);
    if (first_keys_ == 0) return {keys, size, {0, 0}};
    const KeyRange hidden = hidden_between(first, count);
    if (hidden.end >= keys.end) keys.end = std::min<Index>(keys.end, hidden.begin);
    if (keys.end <= keys.begin) return {{0, 0}, size, {0, 0}};
    if (hidden.begin <= keys.begin) {
      return {{std::max<Index>(keys.begin, hidden.end), keys.end}, size, {0, 0}};
    }
    const Index begin = (hidden.begin + size - 1) / size * size;
    const Index end = std::max<Index>(begin, hidden.end / size * size);
    return {keys, size, {begin, end}};
  }

  /// Whether each of the queries first ... first + count - 1 has each of the keys in what its
  /// range, what is hidden between and bounds leave.
  bool ranges_hold(Index first, Index count, KeyRange keys) const {
    const Index last = first + count - 1;
    const KeyRange hidden{hidden_between(first).begin, hidden_between(last).end};
    return !has_bounds() && range(last).begin <= keys.begin && range(first).end >= keys.end &&
           hidden.in(keys).size() == 0;
  }

  /// Whether each of the queries first ... first + count - 1 sees each of the keys.
  bool sees_all(Index first, Index count, KeyRange keys) const {
    return !has_pair_masks() && ranges_hold(first, count, keys);
  }

  /// Whether pairs within the range have to be asked for one by one.
  bool has_pair_masks() const { return has_keep_masks() || bias_count_ != 0; }
  /// Whether there are keep and drop masks, or mask functions, among them.
  bool has_keep_masks() const { return pair_count_ != 0 || functions_.present(); }
  /// Whether keys within the range of a query may be hidden_between.
  bool has_hidden_between() const { return first_keys_ != 0; }
  /// How many biases are added to a score.
  int bias_count() const { return bias_count_; }
  /// A bias of pairs as it lies in memory: element (i, j) is data[i row + j column].
  template <class V>
  struct Plane {
    const V* data = nullptr;  // element (0, 0)
    Index row = 0;            // from row to row
    Index column = 0;         // from column to column
    /// Element (i, j).
    const V& at(Index i, Index j) const { return data[i * row + j * column]; }
  };
  /// The n-th of them.
  const Plane<T>& bias_plane(int n) const { return biases_[static_cast<std::size_t>(n)]; }
  /// How many keep and drop masks there are.
  int pair_mask_count() const { return pair_count_; }
  /// The n-th of them.
  const Plane<bool>& pair_mask_plane(int n) const {
    return pairs_[static_cast<std::size_t>(n)].pairs;
  }
  /// A bias below it hides its pair.
  T hidden_below() const { return hidden_below_; }

  /// Whether every query sees every key.
  bool sees_all() const {
    return !causal_ && window_ == 0 && keys_ == all_keys_ && !has_pair_masks() &&
           !documents_.present();
  }

  /// For a pair within the range: whether neither hidden_between, a keep or drop mask nor a mask
  /// function hides it.
  bool kept(Index i, Index j) const {
    const KeyRange hidden = hidden_between(i);
    if (j >= hidden.begin && j < hidden.end) return false;
    for (int t = 0; t < pair_count_; ++t) {
      const auto& [pairs, keep] = pairs_[static_cast<std::size_t>(t)];
      if (pairs.at(i, j) != keep) return false;
    }
    std::uint8_t seen = 1;
    if (functions_.present()) functions_.ask(i, {j, j + 1}, &seen);
    return seen != 0;
  }

  /// The same of all of a run of keys, a byte each.
  void kept(Index i, KeyRange keys, std::uint8_t* bytes) const {
    std::fill_n(bytes, keys.size(), std::uint8_t{1});
    const KeyRange hidden = hidden_between(i).in(keys);
    if (hidden.size() > 0) {
      std::fill_n(bytes + (hidden.begin - keys.begin), hidden.size(), std::uint8_t{0});
    }
    for (int t = 0; t < pair_count_; ++t) {
      const auto& [pairs, keep] = pairs_[static_cast<std::size_t>(t)];
      const bool* from = &pairs.at(i, keys.begin);
      Index n = 0;
      // Copied, words of 0s and 1s can't overlap `bytes`: else they are asked for one by one.
      using Words = std::array<std::uint64_t, 4>;
      constexpr auto together = static_cast<Index>(sizeof(Words));
      const std::uint64_t other = keep ? 0 : 0x0101010101010101u;
      for (; pairs.column == 1 && n + together <= keys.size(); n += together) {
        Words seen, kept;
        std::memcpy(&seen, bytes + n, sizeof seen);
        std::memcpy(&kept, from + n, sizeof kept);
        for (std::size_t m = 0; m < kept.size(); ++m) seen[m] &= kept[m] ^ other;
        std::memcpy(bytes + n, &seen, sizeof seen);
      }
      for (; n < keys.size(); ++n) {
        bytes[n] = static_cast<std::uint8_t>(bytes[n] & (from[n * pairs.column] == keep));
      }
    }
    if (functions_.present()) functions_.ask(i, keys, bytes);
  }

  /// For a pair within the range: whether no mask hides it.
  bool pair_visible(Index i, Index j) const {
    if (!kept(i, j)) return false;
    for (int t = 0; t < bias_count_; ++t) {
      if (biases_[static_cast<std::size_t>(t)].at(i, j) < hidden_below_) return false;
    }
    return true;
  }

  /// Whether query i sees key j, as a function of j that knows the range of i.
  auto seen_by(Index i) const {
    return [this, i, keys = range(i)](Index j) {
      return j >= keys.begin && j < keys.end && pair_visible(i, j);
    };
  }
  /// Whether query i sees key j.
  bool visible(Index i, Index j) const { return seen_by(i)(j); }

  /// What is added to the score of a visible pair; 0 without biases.
  T bias(Index i, Index j) const {
    if (bias_count_ == 0) return T(0);
    T sum = biases_[0].at(i, j);
    for (int t = 1; t < bias_count_; ++t) sum = sum + biases_[static_cast<std::size_t>(t)].at(i, j);
    return sum;
  }

 private:
  /// The keys that causality, window and length leave to query i, but for the first ones that the
  /// window keeps. Both ends grow with i.
  KeyRange reach(Index i) const {
    const KeyRange any = reach_of_any_keys(i);
    const Index begin = std::clamp(any.begin, Index{0}, keys_);
    return {begin, std::clamp(any.end, begin, keys_)};
  }
  /// What of keys is in the document of query i: ends that grow with i still do.
  KeyRange in_document(Index i, KeyRange keys) const {
    const Index place = i + offset_;
    if (place < 0) return {0, 0};
    const KeyRange own = documents_.around(place);
    return {std::clamp(keys.begin, own.begin, own.end), std::clamp(keys.end, own.begin, own.end)};
  }
  /// Where the first keys end that query i sees.
  Index first_end(Index i) const {
    const Index most = std::min<Index>(first_keys_, keys_);
    return causal_ ? std::clamp(i + offset_ + 1, Index{0}, most) : most;
  }

  struct PairPlane {
    Plane<bool> pairs;
    bool keep = true;
  };

  template <class V>
  static Plane<V> plane(const In<V, 4>& view, Index b, Index h) {
    const auto step = [&](int axis) {
      return view.extent(axis) == 1 ? Index{0} : view.stride(axis);
    };
    if (view.size() == 0) return {view.data(), 0, 0};  // null, perhaps: no step may be taken
    return {view.data() + b * step(0) + h * step(1), step(2), step(3)};
  }

  Index offset_;
  bool causal_;
  Index window_;
  Index first_keys_;
  Index keys_;
  Index all_keys_;
  DocumentRow documents_;
  HeadMaskFunctions functions_;
  T hidden_below_;
  int pair_count_ = 0;
  int bias_count_ = 0;
  std::array<PairPlane, AttentionMask<T>::max_terms> pairs_{};
  std::array<Plane<T>, AttentionMask<T>::max_terms> biases_{};
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
