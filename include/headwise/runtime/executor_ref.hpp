// Any executor, by reference: what a Context carries and every operation runs its tasks on.
#pragma once

#include <memory>

#include "headwise/runtime/num_threads.hpp"

namespace headwise::inline v0_1 {

/// Any executor, by reference. What it refers to must outlive it.
///
/// By default it is what num_threads() says when it is made: the calling thread, or the default
/// pool, of which it keeps the threads for as long as it lives, also past a set_num_threads.
/// Throws ArgumentError for an executor without workers.
class ExecutorRef {
 public:
  /// The default. Throws as num_threads() does, and std::system_error where the default pool is
  /// needed for the first time and cannot be started.
  ExecutorRef() : default_pool_(detail::share_default_pool()) {
    if (default_pool_) refer_to(*default_pool_);
  }

  /// Refers to an executor, which must outlive it.
  template <Executor E>
  requires(!std::same_as<E, ExecutorRef>) ExecutorRef(E& executor) {
    refer_to(executor);
    const Index workers = concurrency();
    require(workers >= 1, "ExecutorRef", "concurrency of the executor is ", workers,
            ", expected >= 1");
  }

  /// How many workers there are.
  Index concurrency() const { return executor_ == nullptr ? 1 : concurrency_(executor_); }
  /// As the Executor concept says.
  void run(Index tasks, TaskRef task) const {
    if (executor_ == nullptr) {
      SerialExecutor().run(tasks, task);
    } else {
      run_(executor_, tasks, task);
    }
  }

 private:
  template <class E>
  void refer_to(E& executor) {
    executor_ = std::addressof(executor);
    concurrency_ = [](void* e) { return Index{static_cast<E*>(e)->concurrency()}; };
    run_ = [](void* e, Index tasks, TaskRef task) { static_cast<E*>(e)->run(tasks, task); };
  }

  std::shared_ptr<ThreadPool> default_pool_;  // of a default one; null otherwise
  void* executor_ = nullptr;
  Index (*concurrency_)(void*) = nullptr;
  void (*run_)(void*, Index, TaskRef) = nullptr;
};

}  // namespace headwise::inline v0_1
