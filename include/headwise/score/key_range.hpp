// Ranges of keys, and the blocks that tiles walk over.
#pragma once

#include <algorithm>

#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// Keys begin ... end - 1.
struct KeyRange {
  Index begin;  // the first
  Index end;    // one behind the last
  /// How many they are.
  Index size() const { return end - begin; }
  /// Those that are in another range as well.
  KeyRange in(const KeyRange& other) const {
    const Index low = std::max<Index>(begin, other.begin);
    return {low, std::max<Index>(low, std::min<Index>(end, other.end))};
  }
};

/// The blocks of `size` keys, counted from key 0, that some queries look at; each by its first key.
struct KeyBlocks {
  KeyRange keys;    // from the first that one of them sees to the last
  Index size;       // of a block
  KeyRange hidden;  // whole blocks between, of which none of them sees a key

  /// The first block.
  Index first() const { return keys.begin / size * size; }
  /// The block after another. They end with keys.end.
  Index next(Index j0) const {
    const Index j = j0 + size;
    return j >= hidden.begin && j < hidden.end ? hidden.end : j;
  }
  /// Whether a block is one of them.
  bool holds(Index j0) const {
    return keys.end > j0 && keys.begin < j0 + size && (j0 < hidden.begin || j0 >= hidden.end);
  }
  /// How many of them are before one of them.
  Index before(Index j0) const {
    return (j0 - first() - (j0 >= hidden.end ? hidden.size() : 0)) / size;
  }
};

}  // namespace headwise::inline v0_1
