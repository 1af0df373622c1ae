// What variables and nodes share: a value's elements, counted by who holds them, and a stack of
// memory for what is recorded. Both belong to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Elements of the tape's, which stand behind this head in one block of memory, or of the caller's.
template <class T>
struct Storage {
  Index holders = 0;
  Index version = 0;         // how often it has been written to since forward made it
  const T* begin = nullptr;  // element 0
  T* own = nullptr;          // the same; null where the elements are the caller's
  Index count = 0;           // of own elements
  std::pmr::memory_resource* memory = nullptr;
};

/// One of those who hold a storage: the last one gives the memory back.
template <class T>
class StorageRef {
 public:
  StorageRef() = default;
  StorageRef(const StorageRef& other) : storage_(other.storage_) {
    if (storage_ != nullptr) ++storage_->holders;
  }
  StorageRef(StorageRef&& other) noexcept : storage_(std::exchange(other.storage_, nullptr)) {}
  StorageRef& operator=(StorageRef other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~StorageRef() {
    if (storage_ == nullptr || --storage_->holders != 0) return;
    std::pmr::memory_resource* const memory = storage_->memory;
    const Index count = storage_->count;
    if (storage_->own != nullptr) std::destroy_n(storage_->own, count);
    std::destroy_at(storage_);
    memory->deallocate(storage_, bytes_for(count), storage_alignment);
  }

  /// `count` elements without values. Throws std::bad_alloc.
  static StorageRef make(Index count, std::pmr::memory_resource* memory) {
    require(count <= (Index{1} << 48), "Tape", "elements of a value are ", count,
            ", expected at most 2^48");
    StorageRef ref = block(count, memory);
    T* const own = reinterpret_cast<T*>(reinterpret_cast<std::byte*>(ref.storage_) + head);
    std::uninitialized_default_construct_n(own, count);
    ref.storage_->begin = ref.storage_->own = own;  // from here on they are destroyed with it
    return ref;
  }
  /// The elements of a view of the caller's. Throws std::bad_alloc.
  static StorageRef refer_to(const T* begin, std::pmr::memory_resource* memory) {
    StorageRef ref = block(0, memory);
    ref.storage_->begin = begin;
    return ref;
  }

  Storage<T>* operator->() const { return storage_; }
  explicit operator bool() const { return storage_ != nullptr; }

 private:
  static constexpr std::size_t head = storage_alignment;
  static_assert(sizeof(Storage<T>) <= head);

  static std::size_t bytes_for(Index count) { return head + storage_bytes<T>(count); }
  static StorageRef block(Index count, std::pmr::memory_resource* memory) {
    StorageRef ref;
    ref.storage_ = ::new (memory->allocate(bytes_for(count), storage_alignment)) Storage<T>;
    ref.storage_->holders = 1;
    ref.storage_->memory = memory;
    ref.storage_->count = count;
    return ref;
  }

  Storage<T>* storage_ = nullptr;
};

/// Memory that is handed out piece behind piece and taken back from the end, or all at once. Its
/// blocks are kept until it is destroyed.
class Stack {
 public:
  /// How much has been handed out.
  struct Mark {
    std::size_t block = 0, used = 0;
  };

  explicit Stack(std::pmr::memory_resource* memory) : memory_(memory), blocks_(memory) {}
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() {
    for (const Block& block : blocks_) {
      memory_->deallocate(block.begin, block.bytes, storage_alignment);
    }
  }

  /// Room for an object. Throws std::bad_alloc.
  template <class X>
  void* room_for() {
    static_assert(alignof(X) <= storage_alignment);
    return take(sizeof(X));
  }
  Mark mark() const { return at_; }
  /// Takes back what was handed out since.
  void rewind(Mark mark) { at_ = mark; }

 private:
  struct Block {
    std::byte* begin;
    std::size_t bytes;
  };
  static constexpr std::size_t block_bytes = std::size_t{1} << 16;

  void* take(std::size_t bytes) {
    bytes = (bytes + storage_alignment - 1) / storage_alignment * storage_alignment;
    while (at_.block < blocks_.size() && blocks_[at_.block].bytes - at_.used < bytes) {
      at_ = {at_.block + 1, 0};
    }
    if (at_.block == blocks_.size()) {
      if (blocks_.size() == blocks_.capacity()) blocks_.reserve(2 * blocks_.size() + 1);
      const std::size_t size = bytes < block_bytes ? block_bytes : bytes;
      void* const memory = memory_->allocate(size, storage_alignment);
      blocks_.push_back({static_cast<std::byte*>(memory), size});
    }
    void* const room = blocks_[at_.block].begin + at_.used;
    at_.used += bytes;
    return room;
  }

  std::pmr::memory_resource* memory_;
  std::pmr::vector<Block> blocks_;
  Mark at_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
