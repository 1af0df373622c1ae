// Tasks on OpenMP's threads, for programs that are compiled with -fopenmp. For who includes it: the
// umbrella does not, and nothing else of headwise asks for OpenMP.
#pragma once

#include <algorithm>

#include "headwise/runtime/executor.hpp"

#if !defined(_OPENMP)
#error "headwise/runtime/openmp_executor.hpp needs OpenMP: compile with -fopenmp"
#endif

#include <omp.h>

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
