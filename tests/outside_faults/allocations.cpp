// The operators and functions that stand in for the library's. This program is linked with
// -Wl,--wrap, which gives the C library's own the prefix __real_.
#include "outside_faults/allocations.hpp"

#include <malloc.h>

#include <atomic>
#include <cerrno>

extern "C" {
void* __real_malloc(std::size_t size);
void* __real_calloc(std::size_t count, std::size_t size);
void* __real_realloc(void* block, std::size_t size);
int __real_posix_memalign(void** block, std::size_t alignment, std::size_t size);
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
void __real_free(void* block);
}

namespace {

std::atomic<long> count{0}, live_blocks{0}, failing{-1};
std::atomic<std::size_t> live{0}, peak{0};

bool fails() { return count.fetch_add(1) == failing.load(); }

void* taken(void* block) {
  if (block == nullptr) return nullptr;
  ++live_blocks;
  const std::size_t now = live += ::malloc_usable_size(block);
  std::size_t before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
  return block;
}

void given_back(void* block) {
  if (block == nullptr) return;
  --live_blocks;
  live -= ::malloc_usable_size(block);
}

void* take(std::size_t size) { return fails() ? nullptr : taken(__real_malloc(size)); }

void* take(std::size_t size, std::align_val_t alignment) {
  if (fails()) return nullptr;
  void* block = nullptr;
  if (__real_posix_memalign(&block, static_cast<std::size_t>(alignment), size) != 0) return nullptr;
  return taken(block);
}

void give_back(void* block) {
  given_back(block);
  __real_free(block);
}

void* or_throw(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

namespace headwise_tests {

Allocations allocations() { return {count, live_blocks, live, peak}; }

void reset_allocations() {
  count = 0;
  peak = live.load();
}

void fail_allocation(long number) { failing = number; }

}  // namespace headwise_tests

extern "C" {

void* __wrap_malloc(std::size_t size) { return take(size); }
void* __wrap_calloc(std::size_t number, std::size_t size) {
  return fails() ? nullptr : taken(__real_calloc(number, size));
}
void* __wrap_realloc(void* block, std::size_t size) {
  if (fails()) return nullptr;
  given_back(block);
  return taken(__real_realloc(block, size));
}
int __wrap_posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  if (fails()) return ENOMEM;
  const int error = __real_posix_memalign(block, alignment, size);
  if (error == 0) taken(*block);
  return error;
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : taken(__real_aligned_alloc(alignment, size));
}
void __wrap_free(void* block) { give_back(block); }
}

void* operator new(std::size_t size) { return or_throw(take(size)); }
void* operator new[](std::size_t size) { return or_throw(take(size)); }
void* operator new(std::size_t size, std::align_val_t to) { return or_throw(take(size, to)); }
void* operator new[](std::size_t size, std::align_val_t to) { return or_throw(take(size, to)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return take(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return take(size); }
void* operator new(std::size_t size, std::align_val_t to, const std::nothrow_t&) noexcept {
  return take(size, to);
}
void* operator new[](std::size_t size, std::align_val_t to, const std::nothrow_t&) noexcept {
  return take(size, to);
}
void operator delete(void* block) noexcept { give_back(block); }
void operator delete[](void* block) noexcept { give_back(block); }
void operator delete(void* block, std::size_t) noexcept { give_back(block); }
void operator delete[](void* block, std::size_t) noexcept { give_back(block); }
void operator delete(void* block, std::align_val_t) noexcept { give_back(block); }
void operator delete[](void* block, std::align_val_t) noexcept { give_back(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { give_back(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { give_back(block); }
