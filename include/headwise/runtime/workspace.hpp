// Scratch memory of a call: one block, an equal part for each worker, given back at the end.
#pragma once

#include <memory>
#include <memory_resource>

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

/// Hands out parts of a block of scratch, one behind the other.
template <class T>
class Scratch {
 public:
  explicit Scratch(T* begin) : next_(begin) {}
  T* take(Index elements) {
    T* part = next_;
    next_ += padded<T>(elements);
    return part;
  }

 private:
  T* next_;
};

/// `elements` of T for each of `workers`. Throws std::bad_alloc.
template <class T>
class Workspace {
 public:
  Workspace(Index workers, Index elements, std::pmr::memory_resource* memory)
      : elements_(padded<T>(elements)), block_(Shape{workers, elements_}, memory) {}

  Scratch<T> of(Index worker) { return Scratch<T>(block_.data() + worker * elements_); }

 private:
  Index elements_;
  Tensor<T, 2> block_;
};

}  // namespace headwise::inline v0_1
