// What an attention does beyond softmax(scale q k^T) v, as a kernel declares it to the laws: rotary
// positions, norms, caps, biases, windows, documents, sinks, functions of one's own. Each part is
// a function over long double, written from the formula and not from the kernel.
#pragma once

#include <functional>
#include <span>

#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// Where a pair stands, counted so that a chunk of the queries keeps its places.
struct VariantPosition {
  Index head = 0;   // h, of the queries
  Index query = 0;  // i + (S - L): that of the key beside it; below 0 for queries before all keys
  Index key = 0;    // j
};

/// A score behind what is done to it, and the derivative by what it was.
struct VariantScore {
  long double value = 0, slope = 1;  // f(s), f'(s)
};

/// What is done, in this order; {} for nothing. No part may ask for a batch element, and none may
/// make a number that is not finite. A function is called many times with the same arguments, and
/// says the same each time.
struct AttentionVariant {
  /// What becomes of a row [d] of q before q k^T, at position i + (S - L), below 0 too: a norm, a
  /// rotation. Each row by itself.
  std::function<void(std::span<long double> row, Index position)> encode_query = {};
  /// The same of a row [d] of k, at position j.
  std::function<void(std::span<long double> row, Index position)> encode_key = {};
  /// What becomes of scale q k^T.
  std::function<VariantScore(long double score, const VariantPosition& at)> score = {};
  /// Whether a pair is hidden, beside those that causality and keep hide.
  std::function<bool(const VariantPosition& at)> hides = {};
  /// A logit of head h beside those of the keys a query sees; its weight goes nowhere.
  std::function<long double(Index h)> sink = {};
  /// Whether rows or scores are changed by where a query or a key stands. (`hides` always asks.)
  bool by_position = false;

  /// Whether rows are changed before q k^T.
  bool encodes() const { return encode_query || encode_key; }
  /// Whether scores may differ from scale q k^T, or share their weight.
  bool bends() const { return encodes() || score || sink; }
  /// Whether another place of a query or a key may give another o.
  bool by_place() const { return by_position || hides; }
  /// Whether nothing is done.
  bool plain() const { return !bends() && !hides; }
};

}  // namespace headwise::inline v0_1
