// A plain thread pool: workers wait for a run, take task numbers from a counter, and wait again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "headwise/runtime/executor.hpp"

namespace headwise::inline v0_1 {

/// `threads` workers, the calling thread among them. One run at a time; concurrent callers queue.
/// A task must not call run on the pool that runs it: it would wait for itself.
class ThreadPool {
 public:
  /// Throws ArgumentError for fewer than 1 thread or more than 65536, std::system_error if one
  /// cannot be started.
  explicit ThreadPool(Index threads) {
    require(threads >= 1 && threads <= 65536, "ThreadPool",
            "threads is " + std::to_string(threads) + ", expected 1 to 65536");
    workers_.threads.reserve(static_cast<std::size_t>(threads - 1));
    for (Index worker = 1; worker < threads; ++worker) {
      workers_.threads.emplace_back([this, worker] { serve(worker); });
    }
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Workers, the calling thread among them.
  Index concurrency() const { return static_cast<Index>(workers_.threads.size()) + 1; }

  /// As the Executor concept says: returns when every task is done.
  void run(Index tasks, TaskRef task) {
    const std::lock_guard one_run(run_mutex_);
    if (workers_.threads.empty() || tasks <= 1) return SerialExecutor().run(tasks, task);
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      tasks_ = tasks;
      next_.store(0);
      busy_ = static_cast<Index>(workers_.threads.size());
      ++generation_;
    }
    wake_.notify_all();
    work(task, tasks, 0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  /// Sends its threads home when it goes, also out of a constructor that could not start them all.
  struct Workers {
    ThreadPool& pool;
    std::vector<std::thread> threads;

    ~Workers() {
      {
        const std::lock_guard lock(pool.mutex_);
        pool.stop_ = true;
      }
      pool.wake_.notify_all();
      for (std::thread& thread : threads) thread.join();
    }
  };

  void work(TaskRef task, Index tasks, Index worker) {
    for (Index t = next_.fetch_add(1); t < tasks; t = next_.fetch_add(1)) task(t, worker);
  }

  void serve(Index worker) {
    std::size_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      const TaskRef task = *task_;
      const Index tasks = tasks_;
      lock.unlock();
      work(task, tasks, worker);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex run_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<Index> next_ = 0;
  const TaskRef* task_ = nullptr;
  Index tasks_ = 0;
  Index busy_ = 0;
  std::size_t generation_ = 0;
  bool stop_ = false;
  Workers workers_{*this, {}};  // the last: it goes first
};

}  // namespace headwise::inline v0_1
