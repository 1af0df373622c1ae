#include "headwise/runtime/tbb_executor.hpp"

#include <tbb/global_control.h>

#include "support/module_bits.hpp"
#include "support/observed_run.hpp"

namespace runtime_tbb_executor {

using namespace headwise_tests;

namespace {

/// TBB has as many threads as the machine unless it is told so.
const tbb::global_control sixteen(tbb::global_control::max_allowed_parallelism, 16);

}  // namespace

TEST_CASE("TBB runs every task once, on the threads of the arena", "[runtime]") {
  for (const int threads : {1, 2, 3, 8}) {
    tbb::task_arena arena(threads);
    TbbExecutor executor(arena);
    CHECK(executor.concurrency() == threads);
    check_runs(executor);
    Rendezvous everybody(threads);  // would not end with a thread less
    executor.run(threads, [&](Index, Index) { everybody.arrive(); });
  }
}

TEST_CASE("TBB takes runs inside tasks and from many threads, also of a small arena", "[runtime]") {
  for (const int threads : {1, 2, 5}) {
    tbb::task_arena arena(threads);
    TbbExecutor executor(arena);
    check_nested_runs(executor);
    check_concurrent_runs(executor);
  }
}

TEST_CASE("a run may begin inside the arena, among its other work", "[runtime]") {
  tbb::task_arena arena(4);
  TbbExecutor executor(arena);
  std::atomic<int> faults = 0;
  arena.execute([&] {
    tbb::parallel_for(0, 50, [&](int) {
      Observed here(20, executor.concurrency());
      executor.run(20, [&](Index task, Index worker) { here.visit(task, worker); });
      if (!here.well()) ++faults;
    });
  });
  CHECK(faults == 0);
}

TEST_CASE("a module gives the same bits on arenas of 1, 2, 3, 4, 8 and 16 threads", "[runtime]") {
  for (const int threads : {1, 2, 3, 4, 8, 16}) {
    CAPTURE(threads);
    tbb::task_arena arena(threads);
    TbbExecutor executor(arena);
    check_same_bits({.executor = executor});
  }
}

}  // namespace runtime_tbb_executor
