#include "headwise/ops/ordered_turns.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory_resource>
#include <numeric>
#include <thread>
#include <vector>

#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

namespace ops_ordered_turns {

using namespace headwise;
using detail::OrderedTurns;

namespace {

/// Runs f(thread) in `count` threads of the test's own, whatever the pool would do.
template <class F>
void in_threads(int count, F&& f) {
  std::vector<std::thread> threads;
  for (int n = 0; n < count; ++n) threads.emplace_back([&f, n] { f(n); });
  for (auto& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("every task is taken once, and a thread takes them in order", "[ops]") {
  constexpr int threads = 4, tasks = 4000;
  OrderedTurns turns(1, std::pmr::get_default_resource());
  std::vector<Index> taken[threads];
  in_threads(threads, [&](int thread) {
    for (int n = 0; n < tasks / threads; ++n) taken[thread].push_back(turns.take());
  });
  std::vector<Index> all;
  for (const auto& own : taken) {
    CHECK(std::is_sorted(own.begin(), own.end()));
    all.insert(all.end(), own.begin(), own.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<Index> wanted(tasks);
  std::iota(wanted.begin(), wanted.end(), Index{0});
  CHECK(all == wanted);
}

// What a turn writes is plain memory: a race would be seen by ThreadSanitizer, too.
TEST_CASE("turns at each place are kept in order, whichever threads have them", "[ops]") {
  constexpr Index places = 7, turns_a_place = 200;
  for (const int threads : {1, 2, 3, 8}) {
    OrderedTurns turns(places, std::pmr::get_default_resource());
    std::vector<Index> order[places];
    in_threads(threads, [&](int) {
      for (Index turn = turns.take(); turn < turns_a_place; turn = turns.take()) {
        for (Index place = 0; place < places; ++place) {
          // Late now and then, so that the turns behind would overtake it if they could.
          if (place == turn % places) std::this_thread::sleep_for(std::chrono::microseconds(20));
          turns.wait(place, turn);
          order[place].push_back(turn);
          turns.finish(place);
        }
      }
    });
    std::vector<Index> wanted(turns_a_place);
    std::iota(wanted.begin(), wanted.end(), Index{0});
    CAPTURE(threads);
    for (const auto& turns_here : order) {
      CHECK(turns_here == wanted);
    }
  }
}

TEST_CASE("a turn does not begin before the one before it is finished, however long that takes",
          "[ops]") {
  OrderedTurns turns(2, std::pmr::get_default_resource());
  bool first_is_done = false, second_saw_it = false;
  in_threads(2, [&](int thread) {
    turns.wait(1, thread);
    if (thread == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      first_is_done = true;
    } else {
      second_saw_it = first_is_done;
    }
    turns.finish(1);
  });
  CHECK(second_saw_it);
}

TEST_CASE("a turn that is held at one place holds up no other place", "[ops]") {
  constexpr int turns_elsewhere = 5;
  OrderedTurns turns(3, std::pmr::get_default_resource());
  std::atomic<bool> others_are_done = false;
  bool seen_in_time = false;
  in_threads(2, [&](int thread) {
    if (thread == 0) {
      turns.wait(0, 0);
      for (int tries = 0; tries < 2000 && !others_are_done; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      seen_in_time = others_are_done;
      turns.finish(0);
    } else {
      for (Index turn = 0; turn < turns_elsewhere; ++turn) {
        turns.wait(2, turn);
        turns.finish(2);
      }
      others_are_done = true;
    }
  });
  CHECK(seen_in_time);
}

TEST_CASE("tasks of a pool that has more of them than threads all get their turns", "[ops]") {
  constexpr Index tasks = 300;
  ThreadPool pool(3);
  OrderedTurns turns(1, std::pmr::get_default_resource());
  std::vector<Index> order;
  const auto task = [&](Index, Index) {
    const Index turn = turns.take();
    turns.wait(0, turn);
    order.push_back(turn);
    turns.finish(0);
  };
  pool.run(tasks, task);
  std::vector<Index> wanted(tasks);
  std::iota(wanted.begin(), wanted.end(), Index{0});
  CHECK(order == wanted);
}

}  // namespace ops_ordered_turns
