// Mask functions of the user's own, without their types: what is asked for the visibility of pairs,
// a run of keys of one query at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "headwise/score/key_range.hpp"
#include "headwise/score/score_function.hpp"

namespace headwise::inline v0_1 {

/// A view of a mask function: kernels/mask_function.hpp makes them. What it views must outlive the
/// call, and for training the backward call too.
struct MaskFunctionRef {
  const void* function = nullptr;  // null for none
  /// bytes[n] becomes 0 where the query of `first` does not see key first.key + n.
  void (*hide)(const void* function, const Position& first, Index count,
               std::uint8_t* bytes) = nullptr;
  /// The keys that the function is asked about for a query; null for all.
  KeyRange (*bounds)(const void* function, const Position& query) = nullptr;

  /// Whether there is none.
  bool absent() const { return function == nullptr; }

  static constexpr int max_terms = 4;  // of one mask
};

/// The mask functions of one head.
class HeadMaskFunctions {
 public:
  /// At most MaskFunctionRef::max_terms, of the head whose pair (0, 0) stands at `first` and whose
  /// keys from the gap on stand further.
  HeadMaskFunctions(std::span<const MaskFunctionRef> functions, const Position& first,
                    const KeyGap& gap)
      : first_(first), gap_(gap) {
    for (const MaskFunctionRef& function : functions) {
      functions_[static_cast<std::size_t>(count_++)] = function;
      have_bounds_ = have_bounds_ || function.bounds != nullptr;
    }
  }

  /// Whether there are any.
  bool present() const { return count_ != 0; }
  /// Whether one has bounds.
  bool have_bounds() const { return have_bounds_; }

  /// What of keys is within the bounds of all of them for query i.
  KeyRange in_bounds(Index i, KeyRange keys) const {
    for (int t = 0; have_bounds_ && t < count_; ++t) {
      const MaskFunctionRef& f = functions_[static_cast<std::size_t>(t)];
      if (f.bounds == nullptr) continue;
      const KeyRange own = KeyRange{place(i, keys.begin).key, place(i, keys.end).key}.in(
          f.bounds(f.function, first_.of_pair(i, 0)));
      keys = {number(own.begin), number(own.end)};
    }
    return keys;
  }

  /// Of keys, those from the first to the last within the bounds of one of the queries first ...
  /// first + count - 1; {0, 0} for none.
  KeyRange between_bounds(Index first, Index count, KeyRange keys) const {
    KeyRange hull{keys.end, keys.begin};
    for (Index i = first; i < first + count; ++i) {
      const KeyRange own = in_bounds(i, keys);
      if (own.size() == 0) continue;
      hull = {std::min<Index>(hull.begin, own.begin), std::max<Index>(hull.end, own.end)};
    }
    return hull.begin < hull.end ? hull : KeyRange{0, 0};
  }

  /// bytes [keys] become 0 where one of them hides the pair. None is asked beyond the bounds.
  void ask(Index i, KeyRange keys, std::uint8_t* bytes) const {
    const KeyRange own = in_bounds(i, keys);
    const Index n = own.size();
    if (n != keys.size()) {
      const Index before = n == 0 ? keys.size() : own.begin - keys.begin;
      std::memset(bytes, 0, static_cast<std::size_t>(before));
      std::memset(bytes + before + n, 0, static_cast<std::size_t>(keys.size() - before - n));
    }
    for (int t = 0; n != 0 && t < count_; ++t) {
      const MaskFunctionRef& f = functions_[static_cast<std::size_t>(t)];
      const Index gap = std::clamp(gap_.at, own.begin, own.end);
      for (const KeyRange part : {KeyRange{own.begin, gap}, KeyRange{gap, own.end}}) {
        if (part.size() == 0) continue;
        f.hide(f.function, place(i, part.begin), part.size(), bytes + (part.begin - keys.begin));
      }
    }
  }

 private:
  /// Where query i and key j stand.
  Position place(Index i, Index j) const { return first_.of_pair(i, j + gap_.before(j)); }
  /// Which key stands at `key`; of those that are lacking, the next.
  Index number(Index key) const {
    const Index j = key - first_.key;
    return j < gap_.at ? j : std::max<Index>(gap_.at, j - gap_.size);
  }

  Position first_;
  KeyGap gap_;
  int count_ = 0;
  bool have_bounds_ = false;
  std::array<MaskFunctionRef, MaskFunctionRef::max_terms> functions_{};
};

}  // namespace headwise::inline v0_1
