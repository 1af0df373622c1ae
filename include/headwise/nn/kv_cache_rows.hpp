// What a cache holds, as it is computed with or in 16 bits: values row by row, and keys transposed,
// as the queries that come one by one read them.
#pragma once

#include <algorithm>
#include <memory_resource>
#include <string>
#include <type_traits>
#include <utility>

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"
#include "headwise/tensor/transposed_keys.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// A tensor [B, G, places, ...] of T, or of what its numbers are stored as: tokens are behind each
/// other in its places.
template <Scalar T, int R>
class CachedTensor {
 public:
  CachedTensor() = default;
  /// Throws ShapeError for more than memory holds, std::bad_alloc.
  CachedTensor(StoredAs as, const Shape<R>& shape, std::pmr::memory_resource* memory) : as_(as) {
    with_type([&]<class U>(std::type_identity<U>) {
      of<U>() = Tensor<U, R>::uninitialized(shape, memory);
    });
  }
  void swap(CachedTensor& other) noexcept {
    std::swap(as_, other.as_);
    same_.swap(other.same_);
    bf16_.swap(other.bf16_);
    fp16_.swap(other.fp16_);
  }

  /// f(std::type_identity of the type that is stored).
  template <class F>
  void with_type(const F& f) const {
    with_stored_type<T>(as_, f);
  }
  /// The elements, of that type alone.
  ///@{
  template <class U>
  Tensor<U, R>& of() {
    return tensor_of<U>(*this);
  }
  template <class U>
  const Tensor<U, R>& of() const {
    return tensor_of<U>(*this);
  }
  ///@}
  /// The first `places` of sequences b ... b + batch - 1. Of U alone.
  template <class U>
  In<U, R> first_places(Index b, Index batch, Index places) const {
    const Tensor<U, R>& all = of<U>();
    Shape<R> shape = all.shape();
    shape[0] = batch;
    shape[2] = places;
    return {all.size() == 0 ? all.data() : all.data() + b * all.stride(0), shape, all.strides()};
  }
  /// Places begin ... end - 1 of sequence b move to those from `to` on, which lies before them.
  void move_places(Index b, Index begin, Index end, Index to) {
    with_type([&]<class U>(std::type_identity<U>) {
      Tensor<U, R>& all = of<U>();
      const Index place = all.stride(2);
      for (Index g = 0; g < all.extent(1) && all.size() != 0; ++g) {
        U* const head = all.data() + b * all.stride(0) + g * all.stride(1);
        std::copy(head + begin * place, head + end * place, head + to * place);
      }
    });
  }
  /// Whether bytes of another tensor are among these.
  bool overlaps(const Footprint& other) const {
    bool shared = false;
    with_type([&]<class U>(std::type_identity<U>) {
      shared = detail::overlap({"", In<U, R>(of<U>())}, other);
    });
    return shared;
  }
  /// Throws ArgumentError unless it is U that is stored.
  template <class U>
  void require_stored(std::string_view function) const {
    require(as_ == stored_as<U>, function, [&] {
      constexpr const char* types[] = {"the cache's own type", "BFloat16", "Float16"};
      const auto name = [&](StoredAs as) {
        return std::string(types[static_cast<std::size_t>(as)]);
      };
      return "a view of " + name(stored_as<U>) + " is asked for, expected one of " + name(as_) +
             " (stored_as)";
    });
  }

 private:
  template <class U, class Self>
  static auto& tensor_of(Self& self) {
    if constexpr (std::same_as<U, T>) {
      return self.same_;
    } else if constexpr (std::same_as<U, BFloat16>) {
      return self.bf16_;
    } else {
      return self.fp16_;
    }
  }

  StoredAs as_ = StoredAs::same;
  Tensor<T, R> same_;  // one of the three has elements
  Tensor<BFloat16, R> bf16_;
  Tensor<Float16, R> fp16_;
};

/// The values of a cache: rows [B, G, capacity, dv].
template <Scalar T>
class CachedValues : public CachedTensor<T, 4> {
 public:
  CachedValues() = default;
  /// For as many slots as `shape` [B, G, capacity, dv] has. Throws ShapeError for more than memory
  /// holds, std::bad_alloc.
  CachedValues(StoredAs as, const Shape<4>& shape, std::pmr::memory_resource* memory)
      : CachedTensor<T, 4>(as, shape, memory) {}

  /// The first `held` of sequences b ... b + batch - 1, [batch, G, held, dv]. Of U alone.
  template <class U>
  In<U, 4> filled(Index b, Index batch, Index held) const {
    return this->template first_places<U>(b, batch, held);
  }
  /// The first n rows of sequence b of `from` [B, G, more, dv] to those from `slot` on.
  void write(const In<T, 4>& from, Index b, Index n, Index slot) {
    this->with_type([&]<class U>(std::type_identity<U>) {
      Tensor<U, 4>& to = this->template of<U>();
      const Index width = from.extent(3);
      if (width == 0) return;
      const auto copy = [&](const T* in, auto step, U* out) {
        for (Index t = 0; t < width; ++t) out[t] = number_as<U>(in[t * step]);
      };
      for (Index g = 0; g < from.extent(1); ++g) {
        for (Index i = 0; i < n; ++i) {
          const T* in = &from(b, g, i, Index{0});
          U* out = &to(b, g, slot + i, Index{0});
          if (from.stride(3) == 1) {
            copy(in, std::integral_constant<Index, 1>(), out);
          } else {
            copy(in, from.stride(3), out);
          }
        }
      }
    });
  }
  /// Rows begin ... end - 1 of sequence b move to those from `slot` on, which lies before them.
  void move_up(Index b, Index begin, Index end, Index slot) {
    this->move_places(b, begin, end, slot);
  }
};

/// The keys of a cache, transposed by blocks: [B, G, blocks, d, 128].
template <Scalar T>
class CachedKeys : public CachedTensor<T, 5> {
 public:
  CachedKeys() = default;
  /// For as many slots as `shape` [B, G, capacity, d] has, in whole blocks. Throws ShapeError for
  /// more than memory holds, std::bad_alloc.
  CachedKeys(StoredAs as, const Shape<4>& shape, std::pmr::memory_resource* memory)
      : CachedTensor<T, 5>(
            as, {shape[0], shape[1], TransposedKeys<T>::count(shape[2]), shape[3], block}, memory) {
  }

  /// The first `held` of sequences b ... b + batch - 1, [batch, G, held, d]. Of U alone.
  template <class U>
  TransposedKeys<U> filled(Index b, Index batch, Index held) const {
    return {this->template first_places<U>(b, batch, TransposedKeys<U>::count(held)), held};
  }
  /// The first n rows of sequence b of `from` [B, G, more, d] to the columns from `slot` on, down
  /// the lines of each block. (16 numbers of each row at a time, a line of memory: 1.6 times as
  /// long for 2,048 rows.)
  void write(const In<T, 4>& from, Index b, Index n, Index slot) {
    this->with_type([&]<class U>(std::type_identity<U>) {
      Tensor<U, 5>& to = this->template of<U>();
      const Index row = from.stride(2), step = from.stride(3);
      for (Index g = 0; g < from.extent(1) && from.extent(3) != 0; ++g) {
        for (Index i = 0, some = 0; i < n; i += some) {
          const Index column = (slot + i) % block;
          some = std::min<Index>(n - i, block - column);
          const T* in = &from(b, g, i, Index{0});
          U* out = &to(b, g, (slot + i) / block, Index{0}, column);
          for (Index c = 0; c < from.extent(3); ++c, in += step, out += block) {
            for (Index j = 0; j < some; ++j) out[j] = number_as<U>(in[j * row]);
          }
        }
      }
    });
  }
  /// Columns begin ... end - 1 of sequence b move to those from `slot` on, which lies before them;
  /// begin and slot are the first of blocks.
  void move_up(Index b, Index begin, Index end, Index slot) {
    this->move_places(b, begin / block, TransposedKeys<T>::count(end), slot / block);
  }

 private:
  static constexpr Index block = TransposedKeys<T>::block;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
