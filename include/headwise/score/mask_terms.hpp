// What a mask is put together from. Each kind of mask is a type of its own, so that "true" can't be
// taken for its opposite.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "headwise/score/documents.hpp"
#include "headwise/score/mask_function.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/view_ops.hpp"

namespace headwise::inline v0_1 {

/// Query i sees key j only where j <= i + (S - L): the last query sees the last key.
struct Causal {};
/// The causal mask, as calls name it: `{.mask = causal}`.
inline constexpr Causal causal{};

/// Query i sees key j only where |i + (S - L) - j| < size, or where j < first_keys.
struct Window {
  Index size;            // 1: itself alone
  Index first_keys = 0;  // attention sinks: keys that no window leaves behind

  /// The same window, and keys 0 ... n - 1 besides; n >= 0.
  Window keeping_first(Index n) const { return {size, n}; }
};

/// Element b of the batch has keys 0 ... lengths[b] - 1.
struct KeyLengths {
  std::span<const Index> lengths;  // [B]
};

/// A pair is visible where keep(b, h, i, j) == keep. Axes of extent 1 stand for all.
struct PairMask {
  In<bool, 4> pairs;                   // [B or 1, H or 1, L or 1, S or 1]
  bool keep;                           // what `pairs` holds where a pair is visible
  std::string_view name = "PairMask";  // of the function that made it, for errors
};

/// Added to the scaled score. A value below -max/4, -infinity among them, hides the pair.
template <Scalar T>
struct BiasMask {
  In<T, 4> values;  // [B or 1, H or 1, L or 1, S or 1]
};

/// The masks by name. Views are kept, not copied: they must outlive the call, and for training the
/// backward call too.
struct Mask {
  /// True where the query may see the key: [B, H, L, S], or 1 on an axis for all of it.
  static PairMask keep(In<bool, 4> pairs) { return {pairs, true, "Mask::keep"}; }
  /// The same [L, S] for all batches and heads.
  static PairMask keep(In<bool, 2> pairs) { return keep(all(pairs)); }
  /// True where the query may not see the key: [B, H, L, S], or 1 on an axis for all of it.
  static PairMask drop(In<bool, 4> pairs) { return {pairs, false, "Mask::drop"}; }
  /// The same [L, S] for all batches and heads.
  static PairMask drop(In<bool, 2> pairs) { return drop(all(pairs)); }
  /// True where a key counts: [B, S], for all heads and queries.
  static PairMask keep_keys(In<bool, 2> keys) { return {of_keys(keys), true, "Mask::keep_keys"}; }
  /// True where a key is padding: [B, S], for all heads and queries.
  static PairMask drop_keys(In<bool, 2> keys) { return {of_keys(keys), false, "Mask::drop_keys"}; }
  /// Added to the scores: ALiBi, relative positions, or a mask of -infinity.
  template <class V>
  requires(view_of<V&>::rank == 4 || view_of<V&>::rank == 2) static auto bias(const V& values) {
    using T = std::remove_const_t<typename V::value_type>;
    if constexpr (view_of<V&>::rank == 4) {
      return BiasMask<T>{In<T, 4>(values)};
    } else {
      return BiasMask<T>{all(In<T, 2>(values))};
    }
  }
  /// The masks view their tensors: one without a name would be gone before the call.
  template <class T, int R>
  static void keep(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void drop(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void keep_keys(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void drop_keys(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void bias(const Tensor<T, R>&& temporary) = delete;
  template <class T, int R>
  static void documents(const Tensor<T, R>&& temporary) = delete;

  /// A query sees the keys of its own document alone: ids [B or 1, S] name the document of each
  /// key, query i is where key i + (S - L) is. The keys of a document stand side by side, under any
  /// id. Tiles without a pair of one document are skipped.
  static Documents documents(In<Index, 2> ids) { return {ids, {}, true}; }
  /// The same, ids of 32 bits.
  static Documents documents(In<std::int32_t, 2> ids) { return {{}, ids, true}; }

  /// Element b of the batch has keys 0 ... lengths[b] - 1: [B], viewed. Numbers without a name do
  /// not compile.
  static KeyLengths key_lengths(LastingSpan<Index> lengths) { return {lengths}; }
  /// Query i sees key j only where |i + (S - L) - j| < size; size >= 1. With .keeping_first(n) it
  /// sees keys 0 ... n - 1 besides, as attention sinks.
  /// Source  Beltagy et al., 2020, arXiv 2004.05150; the sinks: Xiao et al., "Efficient Streaming
  ///         Language Models with Attention Sinks", 2023, arXiv 2309.17453.
  static Window window(Index size) { return {size, 0}; }
  /// A query sees a key only where a callable of one's own returns true: a view of what
  /// mask_function made of it (kernels/mask_function.hpp).
  static MaskFunctionRef function(const MaskFunctionRef& function) { return function; }
  /// Anything else is refused, by a sentence that says what is taken.
  template <class F>
  requires(!std::convertible_to<const F&, MaskFunctionRef>) static void function(const F&) {
    static_assert(sizeof(F) == 0,
                  "Mask::function takes what mask_function makes of a callable, under a name: "
                  "const auto f = mask_function(callable), then Mask::function(f)");
  }

 private:
  template <class T>
  static In<T, 4> all(In<T, 2> pairs) {
    return {pairs.data(), Shape{1, 1, pairs.extent(0), pairs.extent(1)},
            Shape{0, 0, pairs.stride(0), pairs.stride(1)}};
  }
  static In<bool, 4> of_keys(In<bool, 2> keys) {
    return {keys.data(), Shape{keys.extent(0), 1, 1, keys.extent(1)},
            Shape{keys.stride(0), 0, 0, keys.stride(1)}};
  }
};

}  // namespace headwise::inline v0_1
