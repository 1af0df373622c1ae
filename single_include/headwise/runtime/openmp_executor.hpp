// headwise 0.1.0: headwise/runtime/openmp_executor.hpp and the headers below it in one file, made from include/ by
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

#include <algorithm>
#include <omp.h>

#include "../headwise.hpp"

// headwise/runtime/openmp_executor.hpp
// Tasks on OpenMP's threads, for programs that are compiled with -fopenmp. For who includes it: the
// umbrella does not, and nothing else of headwise asks for OpenMP.

#if !defined(_OPENMP)
#error "headwise/runtime/openmp_executor.hpp needs OpenMP: compile with -fopenmp"
#endif

namespace headwise::inline v0_1 {

/// As many of OpenMP's threads as a parallel region had when it was made (OMP_NUM_THREADS,
/// omp_set_num_threads). Inside a parallel region a run stays on its own thread.
class OpenMpExecutor {
 public:
  /// Threads of a team, the calling one among them.
  Index concurrency() const { return threads_; }

  /// As the Executor concept says.
  void run(Index tasks, TaskRef task) const {
    if (threads_ == 1 || tasks <= 1 || omp_in_parallel() != 0) {
      return SerialExecutor().run(tasks, task);
    }
    share(tasks, task, static_cast<int>((std::min)(tasks, Index{threads_})));
  }

 private:
  static void share(Index tasks, TaskRef task, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (Index t = 0; t < tasks; ++t) task(t, omp_get_thread_num());
  }

  int threads_ = omp_get_max_threads();
};

}  // namespace headwise::inline v0_1
