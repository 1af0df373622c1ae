// How work along rows and down columns is cut into tasks. No element depends on the cut.
#pragma once

#include <algorithm>

#include "headwise/runtime/context.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// How many parts of `size` n has, the last of which may be smaller.
constexpr Index count_parts(Index n, Index size) { return (n + size - 1) / size; }

/// Elements of a task along rows: some microseconds.
inline constexpr Index elements_of_rows = 16384;

/// run(begin, end) for parts of N rows of `width` elements.
template <class F>
void for_rows(const Context& context, Index N, Index width, const F& run) {
  const Index rows = std::max<Index>(1, elements_of_rows / std::max<Index>(1, width));
  const auto task = [&](Index t, Index) { run(t * rows, std::min<Index>(N, (t + 1) * rows)); };
  context.executor.run(count_parts(N, rows), task);
}

/// run(begin, end) for parts of `columns` columns of N elements: as few as workers need, for a row
/// is read in parts as wide as they are.
template <class F>
void for_columns(const Context& context, Index N, Index columns, const F& run) {
  if (columns == 0) return;
  constexpr Index together = 64;
  const Index workers = context.executor.concurrency();
  const Index most = std::max<Index>(1, N * columns / elements_of_rows);
  const Index tasks = workers == 1 ? 1 : std::min<Index>(2 * workers, most);
  const Index width = count_parts(count_parts(columns, together), tasks) * together;
  const auto task = [&](Index t, Index) {
    run(t * width, std::min<Index>(columns, (t + 1) * width));
  };
  context.executor.run(count_parts(columns, width), task);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
