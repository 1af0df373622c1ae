// Any executor, by reference: what a Context carries and every operation runs its tasks on.
#pragma once

#include <memory>
#include <type_traits>

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
    require(workers >= 1 && workers <= max_threads, "ExecutorRef",
            "concurrency of the executor is ", workers, ", expected 1 to ", max_threads);
  }

  /// How many workers there are.
  Index concurrency() const { return run_ == nullptr ? 1 : concurrency_(executor_); }
  /// As the Executor concept says.
  void run(Index tasks, TaskRef task) const {
    if (run_ == nullptr) {
      SerialExecutor().run(tasks, task);
    } else {
      run_(executor_, tasks, task);
    }
  }

 private:
  union Address {
    void* changing;
    const void* constant;
  };
  template <class E>
  static E& itself(Address executor) {
    if constexpr (std::is_const_v<E>) {
      return *static_cast<E*>(executor.constant);
    } else {
      return *static_cast<E*>(executor.changing);
    }
  }
  template <class E>
  void refer_to(E& executor) {
    if constexpr (std::is_const_v<E>) {
      executor_.constant = std::addressof(executor);
    } else {
      executor_.changing = std::addressof(executor);
    }
    concurrency_ = [](Address e) { return Index{itself<E>(e).concurrency()}; };
    run_ = [](Address e, Index tasks, TaskRef task) { itself<E>(e).run(tasks, task); };
  }

  std::shared_ptr<ThreadPool> default_pool_;  // of a default one; null otherwise
  Address executor_ = {nullptr};
  Index (*concurrency_)(Address) = nullptr;
  void (*run_)(Address, Index, TaskRef) = nullptr;  // null: the calling thread
};

}  // namespace headwise::inline v0_1
