#include "headwise/runtime/eigen_executor.hpp"

#include "support/module_bits.hpp"
#include "support/observed_run.hpp"

namespace runtime_eigen_executor {

using namespace headwise_tests;

TEST_CASE("a pool of Eigen's runs every task once, the calling thread among its own", "[runtime]") {
  for (const int threads : {1, 2, 7}) {
    Eigen::ThreadPool pool(threads);
    EigenExecutor executor(pool);
    CHECK(executor.concurrency() == threads + 1);
    check_runs(executor);
    Rendezvous everybody(threads + 1);  // would not end with a thread less
    executor.run(threads + 1, [&](Index, Index) { everybody.arrive(); });
  }
}

TEST_CASE("a pool of Eigen's takes runs inside tasks and from many threads", "[runtime]") {
  for (const int threads : {1, 2, 5}) {
    Eigen::ThreadPool pool(threads);
    EigenExecutor executor(pool);
    check_nested_runs(executor);
    check_concurrent_runs(executor);
  }
}

TEST_CASE("a run on a pool of Eigen's that is busy does not wait for it", "[runtime]") {
  std::atomic<bool> may_end = false;  // both outlive the pool, whose threads read them
  std::atomic<int> busy = 0;
  Eigen::ThreadPool pool(2);
  EigenExecutor executor(pool);
  for (int n = 0; n < 2; ++n) {
    pool.Schedule([&] {
      ++busy;
      while (!may_end) std::this_thread::yield();
    });
  }
  while (busy < 2) std::this_thread::yield();
  {
    Observed observed(50, executor.concurrency());
    executor.run(50, [&](Index task, Index worker) { observed.visit(task, worker); });
    CHECK(observed.well());
  }
  may_end = true;  // now the pool comes to what the run has left in its queue
}

TEST_CASE("a module gives the same bits on pools of Eigen's of 1 to 15 threads", "[runtime]") {
  for (const int threads : {1, 2, 3, 7, 15}) {
    CAPTURE(threads);
    Eigen::ThreadPool pool(threads);
    EigenExecutor executor(pool);
    check_same_bits({.executor = executor});
  }
}

}  // namespace runtime_eigen_executor
