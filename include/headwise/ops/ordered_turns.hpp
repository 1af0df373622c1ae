// Turns: tasks that add to the same memory do so in one order, whichever threads run them.
#pragma once

#include <atomic>
#include <thread>

#include "headwise/runtime/processor.hpp"
#include "headwise/runtime/workspace.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// For each of `places` the number of turns that are done. A task that has turn n waits until n
/// are; so that it waits for nobody who waits for it, tasks are taken in the order of their turns,
/// by take() instead of by the number that the executor gives.
class OrderedTurns {
 public:
  /// Throws std::bad_alloc.
  OrderedTurns(Index places, std::pmr::memory_resource* memory)
      : counts_(1, places, memory), done_(counts_.of(0).take(places)) {
    for (Index place = 0; place < places; ++place) done_[place] = 0;
  }

  /// The next task.
  Index take() { return next_.fetch_add(1, std::memory_order_relaxed); }
  /// How many turns are done at a place.
  Index done(Index place) {
    return std::atomic_ref<Index>(done_[place]).load(std::memory_order_acquire);
  }
  /// Returns when `turn` turns are done at a place.
  void wait(Index place, Index turn) {
    constexpr int spins = 512;  // some microseconds: who is before is a tile ahead
    for (int spin = 0; done(place) != turn; ++spin) {
      if (spin < spins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }
  /// One more is done.
  void finish(Index place) {
    std::atomic_ref<Index>(done_[place]).fetch_add(1, std::memory_order_release);
  }

 private:
  Workspace<Index> counts_;
  Index* done_;
  std::atomic<Index> next_ = 0;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
