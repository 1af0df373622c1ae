// How many of a step's tokens belong to each sequence of a batch.
#pragma once

#include <concepts>
#include <span>
#include <string_view>

#include "headwise/tensor/config.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// What counts of tokens are read from: a vector, a span. `{}` alone is none of them, so that a
/// call may be left out by it.
template <class Counts>
concept TokenCounts = std::convertible_to<const Counts&, std::span<const Index>>;

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// How many of n tokens count for sequence b: counts[b], or all where none are given.
inline Index count_of(std::span<const Index> counts, Index b, Index n) {
  return counts.empty() ? n : counts[static_cast<std::size_t>(b)];
}

/// Throws ArgumentError unless there is a count of 0 to n for each sequence, or none at all.
inline void require_counts(std::string_view function, std::span<const Index> counts, Index B,
                           Index n) {
  if (counts.empty()) return;
  require(static_cast<Index>(counts.size()) == B, function, "counts are ", counts.size(),
          ", expected ", B, " (the batch size), or none for all");
  for (const Index count : counts) {
    require(count >= 0 && count <= n, function, "counts holds ", count, ", expected 0 to ", n,
            " (the tokens given)");
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
