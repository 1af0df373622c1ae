// What a call runs with: threads, memory, tallies, a trace. Passed last and by default empty:
// num_threads() threads, which is the calling one unless somebody asked for more, recycled memory,
// nothing counted, nothing recorded.
#pragma once

#include <memory_resource>

#include "headwise/runtime/executor_ref.hpp"
#include "headwise/runtime/products.hpp"
#include "headwise/runtime/recycled_memory.hpp"
#include "headwise/runtime/saved.hpp"
#include "headwise/runtime/tally.hpp"
#include "headwise/runtime/trace.hpp"

namespace headwise::inline v0_1 {

/// References to what a call uses; it owns none of it (but keeps the default pool that it was made
/// with). Cheap to copy.
struct Context {
  ExecutorRef executor = {};  // runs the tasks; num_threads() by default
  /// Of results, caches and scratch.
  std::pmr::memory_resource* memory = default_memory();
  FlopTally* flops = nullptr;  // counts, where it is given
  Trace* trace = nullptr;      // records, where it is given
  Products products = {};      // what those of float round their factors to; nothing by default
  Saved saved = {};            // what caches keep for backward is rounded to; nothing by default

  /// Adds to the tally, if there is one.
  void count_flops(std::int64_t useful, std::int64_t executed) const {
    if (flops != nullptr) flops->add(useful, executed);
  }
};

}  // namespace headwise::inline v0_1
