// Memory that is given back is kept for the next call of the same sizes: a training step that has
// run once asks the system for no more, and touches no page for the first time. (Fresh pages took 5
// % of forward and backward at [8, 1024, 768] and 16 % at [1, 128, 256]; huge ones saved 2 to 5 %
// more.)
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <memory_resource>
#include <new>

#include "headwise/runtime/processor.hpp"
#include "headwise/tensor/huge_pages.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

class RecycledMemory;
inline RecycledMemory& recycled_memory();

/// A memory resource that keeps what it is given back. Of use to any number of threads.
///
/// Blocks are of fixed sizes, eight to each power of 2, and start on 64 bytes; from 4 MiB on they
/// ask for huge pages. Where 16 MiB and twice as many bytes wait as were ever in use at once, all
/// of them are let go: sizes that change from call to call do not pile up.
class RecycledMemory final : public std::pmr::memory_resource {
 public:
  RecycledMemory() = default;
  RecycledMemory(const RecycledMemory&) = delete;
  RecycledMemory& operator=(const RecycledMemory&) = delete;
  ~RecycledMemory() override { release(); }

  /// Lets go of what is kept.
  void release() {
    lock();
    auto kept = kept_;
    kept_.fill(nullptr);
    set_kept_bytes(0);
    unlock();
    for (int size = 0; size < sizes; ++size) {
      while (kept[index(size)] != nullptr) {
        Block* block = kept[index(size)];
        kept[index(size)] = block->next;
        let_go(block, size);
      }
    }
  }

  /// Bytes that wait for their next use.
  std::size_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }

 private:
  /// What a block holds while it is kept.
  struct Block {
    Block* next;
  };

  static constexpr int smallest_exponent = 6;  // 64 bytes
  static constexpr int step_bits = 3, steps = 1 << step_bits;
  static constexpr int sizes = (48 - smallest_exponent) * steps;
  static constexpr std::size_t few_bytes = std::size_t{1} << 24;

  static std::size_t index(int size) { return static_cast<std::size_t>(size); }
  static std::size_t bytes_of(int size) {
    const std::size_t power = std::size_t{1} << (smallest_exponent + size / steps);
    const std::size_t bytes = power + power / steps * index(size % steps);
    return (bytes + storage_alignment - 1) / storage_alignment * storage_alignment;
  }
  /// The smallest that has room for so many bytes.
  static int size_for(std::size_t bytes) {
    if (bytes <= storage_alignment) return 0;
    const auto exponent = static_cast<int>(std::bit_width(bytes - 1)) - 1;
    const std::size_t behind = bytes - 1 - (std::size_t{1} << exponent);
    const auto step = static_cast<int>(behind >> (exponent - step_bits)) + 1;
    return (exponent - smallest_exponent) * steps + step;
  }
  static std::align_val_t alignment_of(int size) {
    using detail::huge_page;
    return std::align_val_t{bytes_of(size) >= 2 * huge_page ? huge_page : storage_alignment};
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    const int size = size_for(bytes);
    if (size >= sizes || alignment > storage_alignment) {
      return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    const std::size_t room = bytes_of(size);
    lock();
    Block*& first = kept_[index(size)];
    void* memory = first;
    if (memory != nullptr) {
      first = first->next;
      set_kept_bytes(kept_bytes() - room);
      count_used(room);
    }
    unlock();
    if (memory != nullptr) return memory;
    memory = fresh(size);
    lock();
    count_used(room);
    unlock();
    return memory;
  }

  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    const int size = size_for(bytes);
    if (size >= sizes || alignment > storage_alignment) {
      return std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
    }
    lock();
    Block*& first = kept_[index(size)];
    first = ::new (memory) Block{first};
    set_kept_bytes(kept_bytes() + bytes_of(size));
    used_bytes_ -= bytes_of(size);
    const bool too_many = kept_bytes() > few_bytes + 2 * most_used_bytes_;
    unlock();
    if (too_many) release();
  }

  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  /// From the system; what is kept in other sizes is given up before memory has run out.
  void* fresh(int size) {
    void* memory = ::operator new(bytes_of(size), alignment_of(size), std::nothrow);
    if (memory == nullptr) {
      release();
      memory = ::operator new(bytes_of(size), alignment_of(size));
    }
    detail::ask_for_huge_pages(memory, bytes_of(size));
    return memory;
  }
  static void let_go(void* memory, int size) { ::operator delete(memory, alignment_of(size)); }

  friend RecycledMemory& recycled_memory();

  // For who holds the lock.
  void set_kept_bytes(std::size_t bytes) { kept_bytes_.store(bytes, std::memory_order_relaxed); }
  void count_used(std::size_t bytes) {
    used_bytes_ += bytes;
    most_used_bytes_ = std::max<std::size_t>(most_used_bytes_, used_bytes_);
  }

  void lock() {
    constexpr int spins = 64;  // it is held for some nanoseconds, unless its thread has to wait
    for (int spin = 0; locked_.test_and_set(std::memory_order_acquire); ++spin) {
      if (spin < spins) {
        detail::relax();
      } else {
        sched_yield();
      }
    }
  }
  void unlock() { locked_.clear(std::memory_order_release); }

  std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
  std::array<Block*, std::size_t{sizes}> kept_{};
  std::atomic<std::size_t> kept_bytes_ = 0;
  std::size_t used_bytes_ = 0, most_used_bytes_ = 0;
};

namespace detail {

/// Whether each block is to come from the system and go back there: sanitizers see what happens to
/// memory in between, and HEADWISE_RECYCLE=0 (environment, read once) says so.
inline bool recycles() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) || \
    __has_feature(thread_sanitizer)
  return false;
#endif
#endif
  static const char* const wish = std::getenv("HEADWISE_RECYCLE");
  static const bool refused = wish != nullptr && wish[0] == '0' && wish[1] == '\0';
  return !refused;
#endif
}

}  // namespace detail

/// The one that a Context names unless it is told otherwise. It lives until the program ends.
inline RecycledMemory& recycled_memory() {
  static RecycledMemory* const memory = [] {
    auto* const made = new RecycledMemory;  // outlives every static tensor
    // A child process has no thread that would unlock what another held when it was made.
    pthread_atfork([] { recycled_memory().lock(); }, [] { recycled_memory().unlock(); },
                   [] { recycled_memory().unlock(); });
    return made;
  }();
  return *memory;
}

/// Where a call takes its memory from by default: recycled_memory(), or what the program has set by
/// std::pmr::set_default_resource.
inline std::pmr::memory_resource* default_memory() {
  std::pmr::memory_resource* const standard = std::pmr::get_default_resource();
  if (standard != std::pmr::new_delete_resource() || !detail::recycles()) return standard;
  return &recycled_memory();
}

}  // namespace headwise::inline v0_1
