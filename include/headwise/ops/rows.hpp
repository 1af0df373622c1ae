// How work along rows and down columns is cut into tasks, and which tasks threads share. No element
// depends on either.
#pragma once

#include <algorithm>

#include "headwise/runtime/context.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// How many parts of `size` n has, the last of which may be smaller.
constexpr Index count_parts(Index n, Index size) { return (n + size - 1) / size; }

/// Runs the tasks of attention, which have `multiply_adds` together: on the calling thread alone
/// where these take no longer than to hand a part of them to another. (Forward + backward of a
/// module of width 64 with 4 heads took two threads whose cores lie apart 1.5, 1.3, 1.2 and 0.96 of
/// the time of one for 16, 32, 64 and 128 tokens while all attention was shared; where they lie
/// beside each other attention alone took 1.0 to 0.5. AMD EPYC of family 26.)
inline void run_tasks(const Context& context, Index tasks, double multiply_adds, TaskRef task) {
  constexpr double worth_sharing = 500000;
  if (multiply_adds < worth_sharing) {
    SerialExecutor().run(tasks, task);
  } else {
    context.executor.run(tasks, task);
  }
}

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
