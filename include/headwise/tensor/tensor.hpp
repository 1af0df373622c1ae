// A tensor that owns its elements: dense, row-major, 64-byte aligned, from a memory resource.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>

#include "headwise/tensor/huge_pages.hpp"
#include "headwise/tensor/view.hpp"

namespace headwise::inline v0_1 {

/// Every block that the library asks a memory resource for starts on such a boundary.
inline constexpr std::size_t storage_alignment = 64;

/// The bytes that an owning tensor asks its memory resource for.
template <class T>
constexpr std::size_t storage_bytes(Index elements) {
  return static_cast<std::size_t>(elements) * sizeof(T);
}

namespace detail {

// Storage without types and ranks, so that a program holds what asks for it once.

[[gnu::noinline]] inline void* allocate_elements(std::span<const Index> extents,
                                                 std::size_t element_bytes,
                                                 std::pmr::memory_resource* memory) {
  const Index count = count_elements(extents);
  if (count == 0) return nullptr;
  if (count > (std::numeric_limits<Index>::max)() / static_cast<Index>(element_bytes)) {
    raise<ShapeError>("Tensor: shape is ", extents, ", expected below 2^63 bytes");
  }
  require(memory != nullptr, "Tensor", "memory is null, expected a memory resource");
  const std::size_t bytes = static_cast<std::size_t>(count) * element_bytes;
  void* const elements = memory->allocate(bytes, storage_alignment);
  // (Other resources see to that themselves.)
  if (memory == std::pmr::new_delete_resource()) ask_for_huge_pages(elements, bytes);
  return elements;
}

[[gnu::noinline]] inline void deallocate_elements(void* data, std::span<const Index> extents,
                                                  std::size_t element_bytes,
                                                  std::pmr::memory_resource* memory) {
  std::size_t bytes = element_bytes;  // counted when they were allocated: nothing throws here
  for (const Index extent : extents) bytes *= static_cast<std::size_t>(extent);
  memory->deallocate(data, bytes, storage_alignment);
}

/// Memory for elements, which goes back unless `data` is taken: a constructor of theirs may throw.
struct UnmadeElements {
  UnmadeElements(void* first, std::size_t size, std::pmr::memory_resource* from)
      : data(first), bytes(size), memory(from) {}
  UnmadeElements(const UnmadeElements&) = delete;
  UnmadeElements& operator=(const UnmadeElements&) = delete;
  ~UnmadeElements() {
    if (data != nullptr) memory->deallocate(data, bytes, storage_alignment);
  }

  void* data;
  std::size_t bytes;
  std::pmr::memory_resource* memory;
};

}  // namespace detail

/// Owns its elements. Zero-initialised, but by uninitialized(). Copies are deep; a const Tensor is
/// read-only. From 4 MiB on, where the resource is std::pmr::new_delete_resource(), as the default
/// one is, huge pages are asked for.
///
/// A failed allocation throws std::bad_alloc and leaves every object as it was, and so does what a
/// constructor of an element throws.
template <class T, int R>
class Tensor : public InOut<T, R>, public OwnsElements {
  // What makes, moves and frees elements is not inlined: caches and modules hold tens of tensors,
  // and each place that makes one frees all that stand before it where the next cannot be made.
 public:
  /// An absent tensor.
  Tensor() noexcept = default;

  /// Zeros. Throws ShapeError for a negative extent, std::bad_alloc.
  [[gnu::noinline]] explicit Tensor(
      const Shape<R>& shape, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : Tensor(shape, make(shape, memory, zeros), memory) {}

  /// Elements without values, for callers that write each before it is read. Throws as above.
  [[gnu::noinline]] static Tensor uninitialized(
      const Shape<R>& shape, std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    return Tensor(shape, make(shape, memory, no_values), memory);
  }

  /// A vector of `count` elements.
  explicit Tensor(Index count, std::pmr::memory_resource* memory =
                                   std::pmr::get_default_resource()) requires(R == 1)
      : Tensor(Shape<1>(count), memory) {}

  /// The values in row-major order. Throws ShapeError unless there are as many as the shape says.
  Tensor(const Shape<R>& shape, std::initializer_list<T> values,
         std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : Tensor(shape, memory) {
    if (static_cast<Index>(values.size()) != this->size()) {
      raise<ShapeError>("Tensor: values are ", values.size(), ", expected ", this->size(),
                        " (shape ", shape, ")");
    }
    std::copy(values.begin(), values.end(), data());
  }

  /// A deep copy from the same memory resource.
  Tensor(const Tensor& other)
      : Tensor(other.shape(),
               make(other.shape(), other.memory_,
                    [&](T* first, Index count) {
                      std::uninitialized_copy_n(other.data(), count, first);
                    }),
               other.memory_) {}
  /// Takes the elements; `other` is absent then.
  [[gnu::noinline]] Tensor(Tensor&& other) noexcept { take(other); }
  /// A deep copy; where it throws, this is as it was.
  Tensor& operator=(const Tensor& other) {
    if (this != &other) Tensor(other).swap(*this);
    return *this;
  }
  /// Takes the elements, likewise; from itself none.
  [[gnu::noinline]] Tensor& operator=(Tensor&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  [[gnu::noinline]] ~Tensor() { release(); }

  /// Exchanges elements and memory resources.
  void swap(Tensor& other) noexcept {
    std::swap(static_cast<InOut<T, R>&>(*this), static_cast<InOut<T, R>&>(other));
    std::swap(memory_, other.memory_);
  }

  /// The first element; null where there is none.
  T* data() { return InOut<T, R>::data(); }
  /// The same, to be read.
  const T* data() const { return In<T, R>::data(); }

  /// Element (i, j, ...).
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) T& operator()(Ints... index) {
    return InOut<T, R>::operator()(index...);
  }
  /// The same, to be read.
  template <std::convertible_to<Index>... Ints>
  requires(sizeof...(Ints) == R) const T& operator()(Ints... index) const {
    return In<T, R>::operator()(index...);
  }
  /// Element `index`.
  T& operator()(const Shape<R>& index) { return InOut<T, R>::operator()(index); }
  /// The same, to be read.
  const T& operator()(const Shape<R>& index) const { return In<T, R>::operator()(index); }

  /// All elements in row-major order, as a range.
  ///@{
  T* begin() { return data(); }
  T* end() { return data() + this->size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + this->size(); }
  ///@}

  /// Where the elements came from; null for an absent tensor.
  std::pmr::memory_resource* memory() const { return memory_; }

 private:
  Tensor(const Shape<R>& shape, T* storage, std::pmr::memory_resource* memory)
      : InOut<T, R>(storage, shape), memory_(memory) {}

  static constexpr auto zeros = [](T* first, Index count) {
    std::uninitialized_value_construct_n(first, count);
  };
  static constexpr auto no_values = [](T* first, Index count) {
    std::uninitialized_default_construct_n(first, count);
  };
  /// The elements that `construct(first, count)` makes.
  template <class Construct>
  static T* make(const Shape<R>& shape, std::pmr::memory_resource* memory,
                 const Construct& construct) {
    detail::UnmadeElements unmade(detail::allocate_elements(shape.extents, sizeof(T), memory),
                                  storage_bytes<T>(shape.size()), memory);
    construct(static_cast<T*>(unmade.data), shape.size());
    return static_cast<T*>(std::exchange(unmade.data, nullptr));
  }
  /// Frees the elements, and still names them.
  void release() noexcept {
    if (data() == nullptr) return;
    if constexpr (!std::is_trivially_destructible_v<T>) std::destroy_n(data(), this->size());
    detail::deallocate_elements(data(), this->shape().extents, sizeof(T), memory_);
  }
  /// Becomes what `other` is, which is absent then: made so in its place, for a copy of an absent
  /// one would be read two numbers at a time, right after they are stored one by one.
  void take(Tensor& other) noexcept {
    static_cast<InOut<T, R>&>(*this) = other;
    std::construct_at(static_cast<InOut<T, R>*>(&other));
    memory_ = std::exchange(other.memory_, nullptr);
  }

  std::pmr::memory_resource* memory_ = nullptr;
};

/// A vector that owns its elements.
template <class T>
using Tensor1 = Tensor<T, 1>;
/// A matrix that owns its elements.
template <class T>
using Tensor2 = Tensor<T, 2>;
/// Three axes, as [B, L, D].
template <class T>
using Tensor3 = Tensor<T, 3>;
/// Four axes, as [B, H, L, d].
template <class T>
using Tensor4 = Tensor<T, 4>;

}  // namespace headwise::inline v0_1
