#include "headwise/runtime/num_threads.hpp"

#include <cstdlib>

#include "headwise/runtime/context.hpp"
#include "support/module_bits.hpp"
#include "support/observed_run.hpp"

namespace runtime_num_threads {

using namespace headwise_tests;

namespace {

/// As a program begins with HEADWISE_NUM_THREADS of this value, or without it; as it was, later.
struct Beginning {
  explicit Beginning(const char* value) {
    set_num_threads(1);  // no default pool is left
    if (value == nullptr) {
      ::unsetenv("HEADWISE_NUM_THREADS");
    } else {
      ::setenv("HEADWISE_NUM_THREADS", value, 1);
    }
    detail::default_threads = 0;
  }
  ~Beginning() {
    ::unsetenv("HEADWISE_NUM_THREADS");
    set_num_threads(1);
  }
};

void meet(const Context& context) {
  Rendezvous everybody(static_cast<int>(context.executor.concurrency()));
  context.executor.run(context.executor.concurrency(), [&](Index, Index) { everybody.arrive(); });
}

}  // namespace

TEST_CASE("a call without an executor stays on the calling thread", "[runtime]") {
  const Beginning program(nullptr);
  CHECK(num_threads() == 1);
  const Context context;
  CHECK(context.executor.concurrency() == 1);
  const auto here = std::this_thread::get_id();
  int elsewhere = 0;
  context.executor.run(9, [&](Index, Index) { elsewhere += std::this_thread::get_id() != here; });
  CHECK(elsewhere == 0);
}

TEST_CASE("a call without an executor works on as many threads as set_num_threads said",
          "[runtime]") {
  const Beginning program(nullptr);
  for (Index threads : {2, 4, 3, 16, 1, 2}) {
    set_num_threads(threads);
    CHECK(num_threads() == threads);
    const Context context;
    CHECK(context.executor.concurrency() == threads);
    check_runs(context.executor);
    meet(context);  // would not end with a thread less
  }
}

TEST_CASE("HEADWISE_NUM_THREADS is what a program begins with, and read once", "[runtime]") {
  const Beginning program("3");
  CHECK(Context().executor.concurrency() == 3);
  CHECK(num_threads() == 3);
  meet({});
  ::setenv("HEADWISE_NUM_THREADS", "5", 1);
  CHECK(num_threads() == 3);
  CHECK(Context().executor.concurrency() == 3);
  set_num_threads(2);
  CHECK(Context().executor.concurrency() == 2);
}

TEST_CASE("set_num_threads goes before HEADWISE_NUM_THREADS, whatever that says", "[runtime]") {
  const Beginning program("many");
  set_num_threads(2);
  CHECK(num_threads() == 2);
  CHECK(Context().executor.concurrency() == 2);
}

TEST_CASE("a Context keeps the threads that it was made with", "[runtime]") {
  const Beginning program("4");
  const Context before;
  set_num_threads(2);
  const Context after, copy = before;
  set_num_threads(1);
  CHECK(before.executor.concurrency() == 4);
  CHECK(copy.executor.concurrency() == 4);
  CHECK(after.executor.concurrency() == 2);
  CHECK(Context().executor.concurrency() == 1);
  meet(before);
  meet(copy);
  meet(after);
}

TEST_CASE("a module gives the same bits for set_num_threads 1, 2, 3, 4, 8 and 16", "[runtime]") {
  const Beginning program(nullptr);
  for (Index threads : {1, 2, 3, 4, 8, 16}) {
    CAPTURE(threads);
    set_num_threads(threads);
    check_same_bits({});
  }
}

TEST_CASE("the number of threads may change while calls are under way, and in their tasks",
          "[runtime]") {
  const Beginning program(nullptr);
  const ModuleRun<float> module;
  const std::string expected = module.bits(Path::flash);
  std::atomic<bool> over = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      while (!over) {
        if (module.bits(Path::flash) != expected) ++wrong;
      }
    });
  }
  for (Index round = 0; round < 40; ++round) {
    set_num_threads(1 + round * 5 % 7);
    const Context context;
    context.executor.run(4, [&](Index task, Index) { set_num_threads(1 + (task + round) % 5); });
  }
  over = true;
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

}  // namespace runtime_num_threads
