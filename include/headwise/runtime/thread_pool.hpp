// A small pool of threads for short parallel regions: between two runs its workers ask for the next
// one for a moment, and then sleep. A run allocates nothing and waits only for workers that have
// come in: one that is still asleep, or that the system lets wait, holds nobody up.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "headwise/runtime/executor.hpp"
#include "headwise/runtime/processor.hpp"

namespace headwise::inline v0_1 {

/// More than that is a mistake.
inline constexpr Index max_threads = 65536;

namespace detail {

/// Of a clock that only goes on. (<chrono> would cost every program 0.06 s to compile.)
inline std::int64_t nanoseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

/// Where one thread waits for something that others bring about: it asks for a while, then sleeps.
class alignas(64) Bell {
 public:
  /// Returns when ready() holds, after `spin` nanoseconds by sleep. What ready() reads has to be
  /// atomic, in sequential order, and changed before ring().
  template <class Ready>
  void wait(std::int64_t spin, const Ready& ready) {
    while (!spin_until(spin, ready)) {
      // Either ready() sees the change now, or ring() sees asleep_.
      asleep_.store(1);
      if (!ready()) asleep_.wait(1);
      asleep_.store(0);
    }
  }

  /// Wakes the thread that sleeps here, if there is one.
  void ring() {
    if (asleep_.load() != 0 && asleep_.exchange(0) != 0) asleep_.notify_one();
  }

 private:
  template <class Ready>
  static bool spin_until(std::int64_t spin, const Ready& ready) {
    constexpr int relaxes = 32;  // about a microsecond: asking what time it is costs 30 ns
    const std::int64_t end = nanoseconds_now() + spin;
    do {
      for (int n = 0; n < relaxes; ++n) {
        if (ready()) return true;
        relax();
      }
    } while (nanoseconds_now() < end);
    return false;
  }

  std::atomic<int> asleep_ = 0;
};

}  // namespace detail

/// `threads` workers, the calling thread among them as worker 0. Run from anywhere: a run that
/// meets another on the same pool, be it of another thread or of a task that it is itself part of,
/// does its tasks on its own thread until the workers are free. The numbers of workers belong to a
/// run: two runs at a time may both have a worker 0.
///
/// In a child process after fork() there are no workers: runs are serial there, and right.
class ThreadPool {
 public:
  /// Throws ArgumentError for fewer than 1 thread or more than 65536, std::system_error if one
  /// cannot be started.
  explicit ThreadPool(Index threads) {
    require(threads >= 1 && threads <= max_threads, "ThreadPool", "threads is ", threads,
            ", expected 1 to ", max_threads);
    // Where threads outnumber cores, one that spins takes the core of one that works.
    const Index cores = std::thread::hardware_concurrency();
    spin_ = cores == 0 || threads <= cores ? spin_time : 0;
    bells_ = std::make_unique<detail::Bell[]>(static_cast<std::size_t>(threads));
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
    Index first = 0;
    for (; concurrency() > 1 && tasks - first > 1; ++first) {
      if (!in_use_.load() && !in_use_.exchange(true)) {
        share(first, tasks, task);
        in_use_.store(false);
        return;
      }
      task(first, 0);
    }
    for (; first < tasks; ++first) task(first, 0);
  }

 private:
  /// Sends its threads home when it goes, also out of a constructor that could not start them all.
  struct Workers {
    ThreadPool& pool;
    pid_t process;
    std::vector<std::thread> threads;

    ~Workers() {
      if (::getpid() != process) {  // after fork(): these threads are the parent's
        static_cast<void>(std::make_unique<std::vector<std::thread>>(std::move(threads)).release());
        return;
      }
      pool.stop_ = true;
      for (Index worker = 1; worker < pool.concurrency(); ++worker) pool.bell_of(worker).ring();
      for (std::thread& thread : threads) thread.join();
    }
  };

  // What a run is at this moment, in one number: how many workers are inside, the first that it
  // has no work for, whether one may still come in, and which run it is. (That wraps: a worker that
  // slept through exactly 2^23 runs misses one.)
  static constexpr int limit_shift = 20, run_shift = 41;
  static constexpr std::uint64_t open = std::uint64_t{1} << 40, field = (1 << limit_shift) - 1;
  static Index inside(std::uint64_t state) { return static_cast<Index>(state & field); }
  static Index limit(std::uint64_t state) {
    return static_cast<Index>(state >> limit_shift & field);
  }
  static std::uint64_t run_number(std::uint64_t state) { return state >> run_shift; }

  // Nanoseconds that a thread asks before it sleeps: a dozen times what waking one costs a run.
  // Measured on 2 cores of an AMD EPYC server: an empty run takes 0.2 us with a worker that spins,
  // 7 us with one that has to be woken; with a mutex and a condition variable it took 24. Forward
  // of [1, 16, 64] with 4 heads: 37 us on one thread, 29 on two, 43 where they sleep at once; 1000
  // us instead of 200 changed nothing.
  static constexpr std::int64_t spin_time = 200000;

  detail::Bell& bell_of(Index worker) { return bells_[static_cast<std::size_t>(worker)]; }

  /// Tasks [first, tasks) by all workers. No exception may leave it: others work on.
  void share(Index first, Index tasks, TaskRef task) noexcept {
    task_ = task;
    tasks_ = tasks;
    next_.store(first, std::memory_order_relaxed);
    const Index workers = (std::min)(concurrency(), tasks - first);
    const std::uint64_t run = run_number(state_.load()) + 1;
    state_.store(run << run_shift | open | static_cast<std::uint64_t>(workers) << limit_shift);
    for (Index worker = 1; worker < workers; ++worker) bell_of(worker).ring();
    work(0);
    state_.fetch_and(~open);
    bell_of(0).wait(spin_, [this] { return inside(state_.load()) == 0; });
  }

  void work(Index worker) {
    const TaskRef task = *task_;
    const Index tasks = tasks_;
    const auto take = [this] { return next_.fetch_add(1, std::memory_order_relaxed); };
    for (Index t = take(); t < tasks; t = take()) task(t, worker);
  }

  void serve(Index worker) noexcept {
    std::uint64_t seen = 0;
    while (true) {
      std::uint64_t state = 0;
      bell_of(worker).wait(spin_, [&] {
        state = state_.load();
        return stop_.load() || (worker < limit(state) && run_number(state) != seen);
      });
      if (stop_.load()) return;
      // A run that is over already was missed; while they come this often, it does not sleep.
      if ((state & open) == 0) {
        seen = run_number(state);
        continue;
      }
      if (!state_.compare_exchange_weak(state, state + 1)) continue;  // it has changed: look again
      seen = run_number(state);
      work(worker);
      const std::uint64_t left = state_.fetch_sub(1) - 1;
      if ((left & open) == 0 && inside(left) == 0) bell_of(0).ring();
    }
  }

  alignas(64) std::atomic<std::uint64_t> state_ = 0;
  std::atomic<bool> in_use_ = false;
  std::atomic<bool> stop_ = false;
  std::int64_t spin_ = 0;  // nanoseconds
  std::unique_ptr<detail::Bell[]> bells_;
  alignas(64) std::atomic<Index> next_ = 0;  // with what is read beside it
  Index tasks_ = 0;
  std::optional<TaskRef> task_;
  Workers workers_{*this, ::getpid(), {}};  // the last: it goes first
};

}  // namespace headwise::inline v0_1
