// What the tasks of one run see, and the checks that hold for every executor.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "headwise/runtime/executor.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;

/// What one run did, as seen by its tasks.
struct Observed {
  std::vector<std::atomic<int>> calls;
  std::vector<std::atomic<int>> busy;  // by worker
  std::atomic<bool> worker_in_range = true;
  std::atomic<bool> worker_alone = true;

  Observed(Index tasks, Index workers)
      : calls(static_cast<std::size_t>(tasks)), busy(static_cast<std::size_t>(workers)) {}

  /// A task of the run, around whatever else it does.
  template <class Work>
  void visit(Index task, Index worker, const Work& work) {
    calls[static_cast<std::size_t>(task)].fetch_add(1);
    if (worker < 0 || worker >= static_cast<Index>(busy.size())) {
      worker_in_range = false;
      return;
    }
    auto& here = busy[static_cast<std::size_t>(worker)];
    if (here.fetch_add(1) != 0) worker_alone = false;
    work();
    here.fetch_sub(1);
  }
  void visit(Index task, Index worker) {
    visit(task, worker, [] {});
  }
  bool each_task_once() const {
    return std::all_of(calls.begin(), calls.end(), [](const auto& n) { return n == 1; });
  }
  bool well() const { return each_task_once() && worker_in_range && worker_alone; }
};

/// Every task once, by workers that exist, none of them in two places.
template <class E>
void check_runs(E& executor) {
  for (Index tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    CAPTURE(tasks, executor.concurrency());
    Observed observed(tasks, executor.concurrency());
    executor.run(tasks, [&](Index task, Index worker) { observed.visit(task, worker); });
    CHECK(observed.each_task_once());
    CHECK(observed.worker_in_range);
    CHECK(observed.worker_alone);
  }
}

/// Runs inside tasks, and inside their tasks: each complete, and no task of a run begun by a worker
/// that is in the middle of another task of it.
template <class E>
void check_nested_runs(E& executor) {
  const Index workers = executor.concurrency();
  std::atomic<int> inner_faults = 0;
  for (int round = 0; round < 10; ++round) {
    Observed outer(13, workers);
    executor.run(13, [&](Index task, Index worker) {
      outer.visit(task, worker, [&] {
        Observed middle(5, workers);
        executor.run(5, [&](Index t, Index w) {
          middle.visit(t, w, [&] {
            // Somebody waits for this one: time enough to begin what must not be begun.
            if (t % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(50));
            Observed inner(3, workers);
            executor.run(3, [&](Index i, Index v) { inner.visit(i, v); });
            if (!inner.well()) ++inner_faults;
          });
        });
        if (!middle.well()) ++inner_faults;
      });
    });
    CHECK(outer.well());
  }
  CHECK(inner_faults == 0);
}

/// Several threads with runs on one executor at the same time.
template <class E>
void check_concurrent_runs(E& executor) {
  constexpr int callers = 6, rounds = 100;
  std::atomic<int> faults = 0;
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&, caller] {
      for (int round = 0; round < rounds; ++round) {
        const Index tasks = 2 + (caller * 7 + round) % 29;
        Observed here(tasks, executor.concurrency());
        executor.run(tasks, [&](Index task, Index worker) { here.visit(task, worker); });
        if (!here.well()) ++faults;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(faults == 0);
}

/// Ends once so many have come; with fewer threads than that at work, never.
class Rendezvous {
 public:
  explicit Rendezvous(int expected) : expected_(expected) {}
  void arrive() {
    arrived_.fetch_add(1);
    while (arrived_.load() < expected_) std::this_thread::yield();
  }

 private:
  const int expected_;
  std::atomic<int> arrived_ = 0;
};

}  // namespace headwise_tests
