// headwise 0.1.0: headwise/runtime/tbb_executor.hpp and the headers below it in one file, made from include/ by
// tools/amalgamate. It is not for editing.
//
// MIT License
//
// Copyright (c) 2026 The headwise authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
#pragma once

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include "../headwise.hpp"

// headwise/runtime/tbb_executor.hpp
// Tasks on the threads of a oneTBB arena. For who includes it: the umbrella does not, and nothing
// else of headwise asks for TBB.

#if !__has_include(<tbb/task_arena.h>)
#error "headwise/runtime/tbb_executor.hpp needs oneTBB (Debian: libtbb-dev), and -ltbb"
#endif

namespace headwise::inline v0_1 {

/// The threads of a tbb::task_arena, which must outlive it. From any thread, also one of the
/// arena's.
class TbbExecutor {
 public:
  /// Refers to the arena.
  explicit TbbExecutor(tbb::task_arena& arena) : arena_(arena) {}

  /// Threads that may work in the arena at once.
  Index concurrency() const { return arena_.max_concurrency(); }

  /// As the Executor concept says. Throws what TBB throws where it gets no memory.
  void run(Index tasks, TaskRef task) {
    // (An arena of 1 has a second place for a thread that is lent to it.)
    if (tasks <= 1 || concurrency() == 1) return SerialExecutor().run(tasks, task);
    const auto body = [task](const tbb::blocked_range<Index>& range) {
      for (Index t = range.begin(); t < range.end(); ++t) {
        task(t, tbb::this_task_arena::current_thread_index());
      }
    };
    // Isolated, so that a thread which waits in a task's own run takes no task of this one: it
    // would be two with the same worker number.
    const auto loop = [&] {
      tbb::parallel_for(tbb::blocked_range<Index>(0, tasks), body, tbb::simple_partitioner());
    };
    arena_.execute([&] { tbb::this_task_arena::isolate(loop); });
  }

 private:
  tbb::task_arena& arena_;
};

}  // namespace headwise::inline v0_1
