#include "headwise/runtime/executor.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "headwise/runtime/context.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

using namespace headwise;

namespace {

/// What one run did, as seen by its tasks.
struct Observed {
  std::vector<std::atomic<int>> calls;
  std::vector<std::atomic<int>> busy;  // by worker
  std::atomic<bool> worker_in_range = true;
  std::atomic<bool> worker_alone = true;

  Observed(Index tasks, Index workers)
      : calls(static_cast<std::size_t>(tasks)), busy(static_cast<std::size_t>(workers)) {}

  void enter(Index task, Index worker) {
    calls[static_cast<std::size_t>(task)].fetch_add(1);
    if (worker < 0 || worker >= static_cast<Index>(busy.size())) {
      worker_in_range = false;
      return;
    }
    auto& here = busy[static_cast<std::size_t>(worker)];
    if (here.fetch_add(1) != 0) worker_alone = false;
    here.fetch_sub(1);
  }
  bool each_task_once() const {
    return std::all_of(calls.begin(), calls.end(), [](const auto& n) { return n == 1; });
  }
};

template <class E>
void check_runs(E& executor) {
  for (Index tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    CAPTURE(tasks, executor.concurrency());
    Observed observed(tasks, executor.concurrency());
    executor.run(tasks, [&](Index task, Index worker) { observed.enter(task, worker); });
    CHECK(observed.each_task_once());
    CHECK(observed.worker_in_range);
    CHECK(observed.worker_alone);
  }
}

/// An executor of a user's own: last task first.
struct Backwards {
  int concurrency() const { return 1; }
  void run(Index tasks, TaskRef task) {
    while (tasks > 0) task(--tasks, 0);
  }
};

struct NotAnExecutor {
  void run(Index, TaskRef) {}
};

}  // namespace

TEST_CASE("the serial executor runs every task once, in order, on the calling thread",
          "[runtime]") {
  SerialExecutor serial;
  check_runs(serial);
  std::vector<Index> order;
  const auto caller = std::this_thread::get_id();
  bool here = true;
  serial.run(5, [&](Index task, Index) {
    order.push_back(task);
    here = here && std::this_thread::get_id() == caller;
  });
  CHECK(order == std::vector<Index>{0, 1, 2, 3, 4});
  CHECK(here);
}

TEST_CASE("a thread pool runs every task once, on as many workers as it was given", "[runtime]") {
  for (Index threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.concurrency() == threads);
    check_runs(pool);
  }
}

TEST_CASE("what tasks write is visible when run returns, a thousand runs long", "[runtime]") {
  ThreadPool pool(3);
  Index wrong = 0;
  for (Index round = 0; round < 1000; ++round) {
    std::vector<Index> written(17, -1);  // no atomics: run itself has to order the writes
    pool.run(17, [&](Index task, Index) {
      written[static_cast<std::size_t>(task)] = round * 17 + task;
    });
    for (Index task = 0; task < 17; ++task) {
      if (written[static_cast<std::size_t>(task)] != round * 17 + task) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a thread pool works on several threads at once", "[runtime]") {
  ThreadPool pool(2);
  std::atomic<int> arrived = 0;
  // Each of two tasks waits for the other: one thread alone would never end.
  pool.run(2, [&](Index, Index) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
  });
  CHECK(arrived == 2);
}

TEST_CASE("many threads may run work on one pool at once", "[runtime]") {
  ThreadPool pool(3);
  constexpr int callers = 6, rounds = 50, tasks = 11;
  std::vector<std::unique_ptr<Observed>> observed;
  for (int n = 0; n < callers * rounds; ++n) {
    observed.push_back(std::make_unique<Observed>(tasks, pool.concurrency()));
  }
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&, caller] {
      for (int round = 0; round < rounds; ++round) {
        Observed& here = *observed[static_cast<std::size_t>(caller * rounds + round)];
        pool.run(tasks, [&](Index task, Index worker) { here.enter(task, worker); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::all_of(observed.begin(), observed.end(), [](const auto& run) {
    return run->each_task_once() && run->worker_in_range && run->worker_alone;
  }));
}

TEST_CASE("an ExecutorRef is serial by default and any executor otherwise", "[runtime]") {
  ExecutorRef serial;
  CHECK(serial.concurrency() == 1);
  check_runs(serial);

  ThreadPool pool(3);
  ExecutorRef pooled = pool;
  CHECK(pooled.concurrency() == 3);
  check_runs(pooled);
  ExecutorRef copy = pooled;
  check_runs(copy);

  Backwards backwards;
  ExecutorRef own = backwards;
  check_runs(own);
  std::vector<Index> order;
  own.run(3, [&](Index task, Index) { order.push_back(task); });
  CHECK(order == std::vector<Index>{2, 1, 0});

  STATIC_REQUIRE(Executor<ThreadPool>);
  STATIC_REQUIRE(Executor<Backwards>);
  STATIC_REQUIRE_FALSE(Executor<NotAnExecutor>);
}

TEST_CASE("a Context without members set is serial and counts nothing", "[runtime]") {
  const Context context;
  CHECK(context.executor.concurrency() == 1);
  CHECK(context.memory == std::pmr::get_default_resource());
  context.count_flops(1, 2);
  FlopTally flops;
  Context{.flops = &flops}.count_flops(3, 4);
  CHECK(flops.useful == 3);
  CHECK(flops.executed == 4);
}
