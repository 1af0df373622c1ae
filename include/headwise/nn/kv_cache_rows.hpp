// The rows of a cache, of keys or of values: as they are computed with, or in 16 bits.
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

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// [B, G, capacity, width] of T, or of what numbers are stored as.
template <Scalar T>
class KeyValueRows {
 public:
  KeyValueRows() = default;
  /// Throws ShapeError for more than memory holds, std::bad_alloc.
  KeyValueRows(StoredAs as, const Shape<4>& shape, std::pmr::memory_resource* memory) : as_(as) {
    with_type([&]<class U>(std::type_identity<U>) {
      tensor_of<U>(*this) = Tensor<U, 4>::uninitialized(shape, memory);
    });
  }
  void swap(KeyValueRows& other) noexcept {
    std::swap(as_, other.as_);
    same_.swap(other.same_);
    bf16_.swap(other.bf16_);
    fp16_.swap(other.fp16_);
  }

  /// Whether bytes of another tensor are among these.
  bool overlaps(const Footprint& other) const {
    bool shared = false;
    with_type([&]<class U>(std::type_identity<U>) {
      shared = overlap({"", In<U, 4>(tensor_of<U>(*this))}, other);
    });
    return shared;
  }
  /// f(std::type_identity of the type that is stored).
  template <class F>
  void with_type(const F& f) const {
    with_stored_type<T>(as_, f);
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
  /// The first `held` rows of sequences b ... b + batch - 1, [batch, G, held, width]. Of U alone.
  template <class U>
  In<U, 4> filled(Index b, Index batch, Index held) const {
    const Tensor<U, 4>& all = tensor_of<U>(*this);
    Shape<4> shape = all.shape();
    shape[0] = batch;
    shape[2] = held;
    return {all.size() == 0 ? all.data() : all.data() + b * all.stride(0), shape, all.strides()};
  }

  /// The first n rows of sequence b of `from` [B, G, more, width] to those from `slot` on.
  void write(const In<T, 4>& from, Index b, Index n, Index slot) {
    with_type([&]<class U>(std::type_identity<U>) {
      Tensor<U, 4>& to = tensor_of<U>(*this);
      const Index width = from.extent(3);
      if (width == 0) return;
      const auto copy = [&](const T* in, auto step, U* out) {
        for (Index t = 0; t < width; ++t) out[t] = stored<U>(in[t * step]);
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
    with_type([&]<class U>(std::type_identity<U>) {
      Tensor<U, 4>& all = tensor_of<U>(*this);
      const Index width = all.extent(3);
      for (Index g = 0; g < all.extent(1) && width != 0; ++g) {
        U* const rows = &all(b, g, Index{0}, Index{0});
        std::copy(rows + begin * width, rows + end * width, rows + slot * width);
      }
    });
  }

 private:
  template <class U>
  static U stored(const T& x) {
    if constexpr (std::same_as<U, T>) {
      return x;
    } else {
      return convert_float<U>(x);
    }
  }
  template <class U, class Rows>
  static auto& tensor_of(Rows& rows) {
    if constexpr (std::same_as<U, T>) {
      return rows.same_;
    } else if constexpr (std::same_as<U, BFloat16>) {
      return rows.bf16_;
    } else {
      return rows.fp16_;
    }
  }

  StoredAs as_ = StoredAs::same;
  Tensor<T, 4> same_;  // one of the three has elements
  Tensor<BFloat16, 4> bf16_;
  Tensor<Float16, 4> fp16_;
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
