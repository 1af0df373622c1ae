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

/// What of a head waits for its like in the head before, for they add to the same elements: tiles;
/// blocks of keys, of which queries share elements, too; or every block for the one before it.
enum class InOrder { nothing, tiles, blocks, everything };

/// The turns of heads at the tiles of blocks of keys, where they wait for each other there.
class HeadTurns {
 public:
  /// Throws std::bad_alloc.
  HeadTurns(InOrder order, Index tiles, Index blocks, std::pmr::memory_resource* memory)
      : order_(order), tiles_(tiles), turns_(wait_here() ? tiles * blocks : 0, memory) {}

  /// Returns when heads 0 ... head - 1 are done with a tile, or with all of its block.
  void wait(Index tile, Index block, Index head) {
    if (!wait_here()) return;
    turns_.wait(block * tiles_ + (order_ == InOrder::tiles ? tile : tiles_ - 1), head);
  }
  /// One more is done with a tile.
  void finish(Index tile, Index block) {
    if (wait_here()) turns_.finish(block * tiles_ + tile);
  }

 private:
  bool wait_here() const { return order_ == InOrder::tiles || order_ == InOrder::blocks; }

  const InOrder order_;
  const Index tiles_;
  OrderedTurns turns_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
