// Memory that shows what is read before it is written, and that runs out.
#pragma once

#include <cstring>
#include <memory_resource>
#include <new>

namespace headwise_tests {

/// Memory whose every bit is set: NaN in all types. It runs out after some allocations.
class PoisonedMemory : public std::pmr::memory_resource {
 public:
  int left = 1 << 30;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (left-- <= 0) throw std::bad_alloc();
    void* block = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    return std::memset(block, 0xFF, bytes);
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(block, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace headwise_tests
