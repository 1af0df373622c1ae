// Scratch memory of a call: one block, an equal part for each worker, given back at the end.
#pragma once

#include <memory>
#include <memory_resource>
#include <utility>

#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

/// Elements rounded up so that what follows starts on a 64-byte boundary.
template <class T>
constexpr Index padded(Index elements) {
  constexpr Index step =
      storage_alignment % sizeof(T) == 0 ? Index{storage_alignment / sizeof(T)} : Index{16};
  return (elements + step - 1) / step * step;
}

/// Hands out parts of a block of scratch, one behind the other. Over null it only counts: so the
/// buffers of a task are named once, and their size is what naming them takes.
template <class T>
class Scratch {
 public:
  /// Hands out from `begin` on; null to count only.
  explicit constexpr Scratch(T* begin = nullptr) : begin_(begin) {}
  /// The next part, on a 64-byte boundary.
  constexpr T* take(Index elements) {
    T* part = begin_ == nullptr ? nullptr : begin_ + taken_;
    taken_ += padded<T>(elements);
    return part;
  }
  /// Elements handed out so far, padding included.
  constexpr Index taken() const { return taken_; }

 private:
  T* begin_;
  Index taken_ = 0;
};

/// `elements` of T for each of `workers`, not initialised. Throws std::bad_alloc.
///
/// (Filling them with 0 took nine tenths of a call on few and short rows.)
template <class T>
class Workspace {
 public:
  /// Throws std::bad_alloc.
  Workspace(Index workers, Index elements, std::pmr::memory_resource* memory)
      : elements_(padded<T>(elements)), count_(workers * elements_), memory_(memory) {
    if (count_ == 0) return;
    require(memory_ != nullptr, "Workspace", "memory is null, expected a memory resource");
    const std::size_t bytes = storage_bytes<T>(count_);
    detail::UnmadeElements unmade(memory_->allocate(bytes, storage_alignment), bytes, memory_);
    std::uninitialized_default_construct_n(static_cast<T*>(unmade.data), count_);
    block_ = static_cast<T*>(std::exchange(unmade.data, nullptr));
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (count_ == 0) return;
    std::destroy_n(block_, count_);
    memory_->deallocate(block_, storage_bytes<T>(count_), storage_alignment);
  }

  /// The part of one worker, all of it to be handed out.
  Scratch<T> of(Index worker) { return Scratch<T>(block_ + worker * elements_); }

 private:
  Index elements_;
  Index count_;
  std::pmr::memory_resource* memory_;
  T* block_ = nullptr;
};

}  // namespace headwise::inline v0_1
