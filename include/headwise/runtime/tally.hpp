// What a computation cost, counted while it runs: floating-point operations and bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory_resource>

#include "headwise/tensor/shape.hpp"

namespace headwise::inline v0_1 {

/// Floating-point operations; a multiply-add is two.
///
/// `useful` counts what the mathematics asks for: the products of shapes and of the visible pairs
/// that a task's bounds name. `executed` counts what the tiles did, padding and masked pairs too.
struct FlopTally {
  std::atomic<std::int64_t> useful = 0;    // what the mathematics asks for
  std::atomic<std::int64_t> executed = 0;  // what the tiles did

  /// Adds to both; from any thread.
  void add(std::int64_t useful_flops, std::int64_t executed_flops) {
    useful.fetch_add(useful_flops, std::memory_order_relaxed);
    executed.fetch_add(executed_flops, std::memory_order_relaxed);
  }
  /// Both back to 0.
  void reset() {
    useful = 0;
    executed = 0;
  }
};

/// A memory resource that passes everything on and counts the bytes that it was asked for.
class MemoryTally : public std::pmr::memory_resource {
 public:
  /// Counts what it passes on to `upstream`, which must outlive it.
  explicit MemoryTally(std::pmr::memory_resource* upstream = std::pmr::get_default_resource())
      : upstream_(upstream) {
    require(upstream != nullptr, "MemoryTally", "upstream is null, expected a memory resource");
  }

  /// Bytes given out and not yet returned.
  std::int64_t live() const { return live_.load(); }
  /// The most that was ever live at once since the last reset_peak.
  std::int64_t peak() const { return peak_.load(); }
  /// How often memory was asked for.
  std::int64_t allocations() const { return allocations_.load(); }
  /// Starts a new peak from what is live.
  void reset_peak() { peak_.store(live_.load()); }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* memory = upstream_->allocate(bytes, alignment);
    allocations_.fetch_add(1);
    const std::int64_t now =
        live_.fetch_add(static_cast<std::int64_t>(bytes)) + static_cast<std::int64_t>(bytes);
    std::int64_t peak = peak_.load();
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    live_.fetch_sub(static_cast<std::int64_t>(bytes));
    upstream_->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* upstream_;
  std::atomic<std::int64_t> live_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
  std::atomic<std::int64_t> allocations_ = 0;
};

}  // namespace headwise::inline v0_1
