// Tensors that forward leaves for backward, as they were computed or in 16 bits.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

/// What the tensors of a cache are kept as from forward to backward: as they were computed, by
/// default. Of another kind is what saved_in<BFloat16>() returns (ops/saved_in.hpp). Of other
/// types than float nothing is rounded.
class Saved {
 public:
  /// n floats become the nearest numbers of 16 bits, which are written to `to`, too.
  using Round = void (*)(StoredAs as, float* x, Index n, void* to);
  /// n numbers of 16 bits as floats.
  using Widen = void (*)(StoredAs as, const void* from, Index n, float* to);

  /// As they were computed.
  constexpr Saved() = default;
  /// In 16 bits, by functions that live as long as the process.
  constexpr Saved(StoredAs as, Round rounds, Widen widens)
      : as_(as), round_(rounds), widen_(widens) {}

  /// Whether nothing is rounded.
  constexpr bool exact() const { return as_ == StoredAs::same; }
  /// The type of the numbers.
  constexpr StoredAs as() const { return as_; }
  /// By the functions, which are there where something is rounded.
  ///@{
  void round(float* x, Index n, void* to) const { round_(as_, x, n, to); }
  void widen(const void* from, Index n, float* to) const { widen_(as_, from, n, to); }
  ///@}

 private:
  StoredAs as_ = StoredAs::same;
  Round round_ = nullptr;
  Widen widen_ = nullptr;
};

/// Floats of a cache. Where the cache is kept in 16 bits, this is absent between forward and
/// backward, and kept() is not.
template <int R>
class SavedFloats : public Tensor<float, R> {
 public:
  /// Absent.
  SavedFloats() noexcept = default;
  /// As they were computed.
  SavedFloats(Tensor<float, R>&& computed) noexcept : Tensor<float, R>(std::move(computed)) {}

  /// Exchanges all of it.
  void swap(SavedFloats& other) noexcept { std::swap(*this, other); }

  /// The numbers in 16 bits, of the type that the cache is kept in.
  ///@{
  template <NarrowFloat U>
  const Tensor<U, R>& kept() const {
    return kept_of<U>(*this);
  }
  template <NarrowFloat U>
  Tensor<U, R>& kept() {
    return kept_of<U>(*this);
  }
  ///@}

 private:
  template <class U, class Self>
  static auto& kept_of(Self& self) {
    if constexpr (std::same_as<U, BFloat16>) {
      return self.bf16_;
    } else {
      return self.fp16_;
    }
  }

  Tensor<BFloat16, R> bf16_;
  Tensor<Float16, R> fp16_;
};

/// A tensor that forward leaves for backward: of float, one that may be kept in 16 bits.
template <Scalar T, int R>
using SavedTensor = std::conditional_t<std::same_as<T, float>, SavedFloats<R>, Tensor<T, R>>;

}  // namespace headwise::inline v0_1
