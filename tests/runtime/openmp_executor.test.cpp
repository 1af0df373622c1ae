#include "headwise/runtime/openmp_executor.hpp"

#include "support/module_bits.hpp"
#include "support/observed_run.hpp"

namespace runtime_openmp_executor {

using namespace headwise_tests;

namespace {

OpenMpExecutor team_of(int threads) {
  omp_set_num_threads(threads);
  return {};
}

}  // namespace

TEST_CASE("OpenMP runs every task once, on as many threads as it was told", "[runtime]") {
  for (const int threads : {1, 2, 3, 8}) {
    auto executor = team_of(threads);
    CHECK(executor.concurrency() == threads);
    check_runs(executor);
    Rendezvous everybody(threads);  // would not end with a thread less
    executor.run(threads, [&](Index, Index) { everybody.arrive(); });
  }
}

TEST_CASE("OpenMP takes runs inside tasks and from many threads", "[runtime]") {
  auto executor = team_of(3);
  check_nested_runs(executor);
  check_concurrent_runs(executor);
}

TEST_CASE("inside a parallel region of the program a run stays on its own thread", "[runtime]") {
  auto executor = team_of(3);
  std::atomic<int> elsewhere = 0, tasks = 0;
#pragma omp parallel num_threads(2)
  {
    const auto here = std::this_thread::get_id();
    executor.run(20, [&](Index, Index) {
      ++tasks;
      if (std::this_thread::get_id() != here) ++elsewhere;
    });
  }
  CHECK(tasks == 40);
  CHECK(elsewhere == 0);
}

TEST_CASE("a module gives the same bits on 1, 2, 3, 4, 8 and 16 threads of OpenMP", "[runtime]") {
  for (const int threads : {1, 2, 3, 4, 8, 16}) {
    CAPTURE(threads);
    auto executor = team_of(threads);
    check_same_bits({.executor = executor});
  }
}

}  // namespace runtime_openmp_executor
