#include "headwise/runtime/executor.hpp"

#include <thread>
#include <vector>

#include "headwise/runtime/context.hpp"
#include "support/observed_run.hpp"

namespace runtime_executor {

using namespace headwise_tests;

namespace {

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

TEST_CASE("an ExecutorRef is serial by default and any executor otherwise", "[runtime]") {
  set_num_threads(1);
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

  const SerialExecutor unchanging;
  const ExecutorRef to_const = unchanging;
  check_runs(to_const);

  STATIC_REQUIRE(Executor<ThreadPool>);
  STATIC_REQUIRE(Executor<Backwards>);
  STATIC_REQUIRE_FALSE(Executor<NotAnExecutor>);
}

TEST_CASE("a Context without members set is serial and counts nothing", "[runtime]") {
  set_num_threads(1);
  const Context context;
  CHECK(context.executor.concurrency() == 1);
  CHECK(context.memory == default_memory());
  context.count_flops(1, 2);
  FlopTally flops;
  Context{.flops = &flops}.count_flops(3, 4);
  CHECK(flops.useful == 3);
  CHECK(flops.executed == 4);
}

}  // namespace runtime_executor
