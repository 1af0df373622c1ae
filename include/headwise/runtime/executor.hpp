// How work is spread over threads. An operation cuts itself into tasks, by its shapes and the
// number of workers; what an element is computed from depends on no cut, and every task owns what
// it writes, so that an executor decides when a task runs and never what it computes: the same bits
// for any number of threads.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// One of many tasks: called once for each task number, on one of `concurrency` workers.
class TaskRef {
 public:
  /// Refers to function(task, worker), which must outlive it.
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, TaskRef>) TaskRef(const F& function)
      : closure_(std::addressof(function)),
        call_([](const void* closure, Index task, Index worker) {
          (*static_cast<const F*>(closure))(task, worker);
        }) {}

  /// Calls it.
  void operator()(Index task, Index worker) const { call_(closure_, task, worker); }

 private:
  const void* closure_;
  void (*call_)(const void*, Index, Index);
};

/// run(n, task) calls task(t, w) once for every t in [0, n), with w in [0, concurrency()), no two
/// calls with the same w at the same time, and returns when all are done. Tasks do not throw.
template <class E>
concept Executor = requires(E& executor, Index tasks, TaskRef task) {
  { executor.concurrency() } -> std::convertible_to<Index>;
  executor.run(tasks, task);
};

/// The calling thread does everything, in order.
struct SerialExecutor {
  /// One worker.
  Index concurrency() const { return 1; }
  /// Calls task(t, 0) for t = 0, 1, ... tasks - 1.
  void run(Index tasks, TaskRef task) const {
    for (Index t = 0; t < tasks; ++t) task(t, 0);
  }
};

}  // namespace headwise::inline v0_1
