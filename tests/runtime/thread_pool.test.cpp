#include "headwise/runtime/thread_pool.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>
#include <memory>
#include <numeric>

#include "support/module_bits.hpp"
#include "support/observed_run.hpp"

namespace runtime_thread_pool {

using namespace headwise_tests;

namespace {

/// Runs in which every worker has a task, and none ends before all have begun.
void meet(ThreadPool& pool) {
  Rendezvous everybody(static_cast<int>(pool.concurrency()));
  pool.run(pool.concurrency(), [&](Index, Index) { everybody.arrive(); });
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

TEST_CASE("a thread pool runs every task once, on as many workers as it was given", "[runtime]") {
  for (Index threads : {1, 2, 3, 8, 16}) {
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

TEST_CASE("all workers of a pool come to a run, whether they spin or sleep", "[runtime]") {
  for (Index threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 30; ++round) {
      meet(pool);  // would not end with a worker less
      if (round % 3 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    CHECK(pool.concurrency() == threads);
  }
}

TEST_CASE("a pool whose workers have missed many runs still has them all", "[runtime]") {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    for (int n = 0; n < 500; ++n) pool.run(2, [](Index, Index) {});
    meet(pool);
  }
  CHECK(pool.concurrency() == 4);
}

TEST_CASE("many threads may run work on one pool at once", "[runtime]") {
  for (Index threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    check_concurrent_runs(pool);
  }
}

TEST_CASE("a run inside a task of the same pool ends, three deep", "[runtime]") {
  for (Index threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    check_nested_runs(pool);
  }
}

TEST_CASE("a run inside a task stays on the thread of the task", "[runtime]") {
  ThreadPool pool(3);
  std::atomic<int> elsewhere = 0;
  pool.run(8, [&](Index, Index) {
    const auto here = std::this_thread::get_id();
    pool.run(50, [&](Index, Index) {
      if (std::this_thread::get_id() != here) ++elsewhere;
    });
  });
  CHECK(elsewhere == 0);
}

TEST_CASE("a run that finds the workers taken begins alone and gets them when they are free",
          "[runtime]") {
  ThreadPool pool(2);
  std::atomic<bool> first_begun = false, first_may_end = false, first_is_over = false;
  std::thread other([&] {
    pool.run(2, [&](Index, Index) {
      first_begun = true;
      while (!first_may_end) std::this_thread::yield();
    });
    first_is_over = true;
  });
  while (!first_begun) std::this_thread::yield();

  const auto here = std::this_thread::get_id();
  std::atomic<bool> first_task_here = false;
  Rendezvous everybody(2);
  Observed observed(3, 2);
  pool.run(3, [&](Index task, Index worker) {
    observed.visit(task, worker, [&] {
      if (task > 0) return everybody.arrive();  // these two need a worker each
      first_task_here = std::this_thread::get_id() == here;
      first_may_end = true;
      while (!first_is_over) std::this_thread::yield();
    });
  });
  other.join();
  CHECK(first_task_here);
  CHECK(observed.well());
}

TEST_CASE("a pool without work uses no processor time", "[runtime]") {
  ThreadPool pool(8);
  meet(pool);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  CHECK(processor_seconds() - before < 0.1);  // one thread that spins takes 0.4
}

TEST_CASE("a pool may end at any moment after a run", "[runtime]") {
  std::atomic<int> tasks = 0;
  for (int round = 0; round < 100; ++round) {
    ThreadPool pool(1 + round % 9);
    for (int n = 0; n < round % 4; ++n) pool.run(5, [&](Index, Index) { ++tasks; });
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(tasks == 5 * (0 + 1 + 2 + 3) * 25);
}

TEST_CASE("a forked process goes on without workers", "[runtime]") {
  auto pool = std::make_unique<ThreadPool>(4);
  meet(*pool);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    std::vector<int> done(100, 0);
    pool->run(100, [&](Index task, Index) { done[static_cast<std::size_t>(task)] = 1; });
    pool.reset();
    const char sum = static_cast<char>(std::accumulate(done.begin(), done.end(), 0));
    while (::write(ends[1], &sum, 1) == 0) continue;
    ::kill(::getpid(), SIGKILL);  // without a word of whoever watches for leaks
  }
  ::close(ends[1]);
  char sum = 0;
  CHECK(::read(ends[0], &sum, 1) == 1);
  CHECK(sum == 100);
  ::close(ends[0]);
  CHECK(::waitpid(child, nullptr, 0) == child);
  meet(*pool);
}

TEST_CASE("a module gives the same bits on pools of 1, 2, 3, 4, 8 and 16 threads", "[runtime]") {
  for (Index threads : {1, 2, 3, 4, 8, 16}) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    check_same_bits({.executor = pool});
  }
}

}  // namespace runtime_thread_pool
