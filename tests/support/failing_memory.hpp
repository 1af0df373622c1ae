// Memory that runs out: a call is repeated with room for one more allocation each time.
#pragma once

#include <memory_resource>
#include <new>

namespace headwise_tests {

/// Serves `left` allocations, then throws.
class FailingMemory : public std::pmr::memory_resource {
 public:
  explicit FailingMemory(int left) : left_(left) {}
  /// From now on it serves so many.
  void serve(int allocations) { left_ = allocations; }
  /// Allocations that were not given back.
  int live() const { return live_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (left_-- <= 0) throw std::bad_alloc();
    ++live_;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    --live_;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
  int left_;
  int live_ = 0;
};

/// call(memory) until it gets all that it asks for; how often it did not, or -1 where one of these
/// kept memory or unchanged() was false after it, and where it fails for ever.
template <class Call, class Unchanged>
int fail_in_turn(Call&& call, Unchanged&& unchanged) {
  for (int served = 0; served < 1000; ++served) {
    FailingMemory memory(served);
    try {
      call(&memory);
      return served;
    } catch (const std::bad_alloc&) {
      if (memory.live() != 0 || !unchanged()) return -1;
    }
  }
  return -1;
}

}  // namespace headwise_tests
