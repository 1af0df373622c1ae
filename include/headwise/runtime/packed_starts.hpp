// Sequences that lie one behind the other, without padding: their cumulative lengths, 0 ... N, and
// what every call of them is held to.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "headwise/runtime/path.hpp"
#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Throws ArgumentError unless starts are cumulative lengths of `rows` rows.
inline void require_starts(std::string_view function, std::string_view argument,
                           std::span<const Index> starts, Index rows, std::string_view whence) {
  require(!starts.empty(), function, argument, " has 0 numbers, expected one more than sequences");
  require(starts.front() == 0, function, argument, " begins with ", starts.front(), ", expected 0");
  for (std::size_t b = 1; b < starts.size(); ++b) {
    require(starts[b - 1] <= starts[b], function, argument, " falls from ", starts[b - 1], " to ",
            starts[b], " at ", b, ", expected cumulative lengths");
  }
  require(starts.back() == rows, function, argument, " ends with ", starts.back(), ", expected ",
          rows, " (", whence, ")");
}

/// The same of queries and keys, as many sequences of one as of the other.
inline void require_packed_starts(std::string_view function, std::span<const Index> query_starts,
                                  Index N, std::string_view rows_of_queries,
                                  std::span<const Index> key_starts, Index M,
                                  std::string_view rows_of_keys) {
  require_starts(function, "query_starts", query_starts, N, rows_of_queries);
  require_starts(function, "key_starts", key_starts, M, rows_of_keys);
  require(query_starts.size() == key_starts.size(), function, "key_starts has ", key_starts.size(),
          " numbers, expected ", query_starts.size(), " (as many as query_starts)");
}

/// Throws ArgumentError for a path that has a place for every pair of rows.
inline void require_packed_path(std::string_view function, Path path) {
  require(path == Path::flash, function,
          "path is materialized, expected flash (packed sequences have no [L, S] in common)");
}

/// The rows of the longest sequence.
inline Index longest_of(std::span<const Index> starts) {
  Index longest = 0;
  for (std::size_t b = 1; b < starts.size(); ++b) {
    longest = std::max<Index>(longest, starts[b] - starts[b - 1]);
  }
  return longest;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
