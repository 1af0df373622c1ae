// Where the keys of one sequence lie in a cache: arithmetic alone. Key j of a sequence that drops
// none is in slot j. With a window, blocks of keys that no query will see again make room: the
// first blocks, which hold the keys that are kept for ever, stay where they are, and those behind
// the dropped ones move up. Slots are dropped by whole blocks of the kernels, so that a key keeps
// its place in its block, and sums their bits.
//
// (A ring would move nothing, but its oldest block lies behind its newest, and no view says so. To
// move a window of w keys once every `block` tokens is 2 w / block rows written and read a token,
// beside the w that a token's query reads: 1.6 % for blocks of 128.)
#pragma once

#include <algorithm>

#include "headwise/score/score_function.hpp"
#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1::detail {

/// Of all sequences of a cache.
struct KeyValueSlots {
  Index capacity = 0;  // slots of a sequence
  Index window = 0;    // keys that a query sees, its own among them; 0: all
  Index block = 1;     // keys are dropped by
  Index first = 0;     // slots of the first keys, whole blocks

  /// For a window behind `first_keys` keys that stay, at least `capacity` slots: enough for a step
  /// of a block at any time.
  static constexpr KeyValueSlots of_window(Index capacity, Index window, Index first_keys,
                                           Index block) {
    const auto whole = [&](Index n) { return (n + block - 1) / block * block; };
    const Index first = whole(first_keys), least = first + whole(window + 2 * block - 2);
    return {std::max<Index>(least, whole(capacity)), window, block, first};
  }
};

/// One sequence: so many tokens, of which so many behind the first slots are no longer held.
struct KeyValueSequence {
  Index length = 0;
  Index dropped = 0;  // a multiple of the block

  /// Slots that are filled.
  constexpr Index held() const { return length - dropped; }
  /// The position of the key in a slot.
  constexpr Index position(const KeyValueSlots& slots, Index slot) const {
    return slot + gap(slots).before(slot);
  }
  /// What the slots lack of the sequence.
  constexpr KeyGap gap(const KeyValueSlots& slots) const { return {slots.first, dropped}; }
  /// How many more could be dropped: blocks that no query from `length` on sees.
  constexpr Index droppable(const KeyValueSlots& slots) const {
    if (slots.window == 0) return 0;
    const Index needed = std::max<Index>(length - slots.window + 1, 0) / slots.block * slots.block;
    return std::max<Index>(needed - slots.first - dropped, 0);
  }
  /// Tokens that still fit.
  constexpr Index room(const KeyValueSlots& slots) const {
    return slots.capacity - held() + droppable(slots);
  }
  /// Whether all that a query behind `shorter` tokens would see is held.
  constexpr bool reaches_back_to(const KeyValueSlots& slots, Index shorter) const {
    if (shorter < 0 || shorter > length) return false;
    return dropped == 0 || shorter <= slots.first ||
           shorter - slots.window + 1 >= slots.first + dropped;
  }
  /// The sequence that it was then.
  constexpr KeyValueSequence back_to(const KeyValueSlots& slots, Index shorter) const {
    return {shorter, shorter <= slots.first ? 0 : dropped};
  }
  friend constexpr bool operator==(const KeyValueSequence&, const KeyValueSequence&) = default;
};

}  // namespace headwise::inline v0_1::detail
