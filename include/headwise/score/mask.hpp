// Which query may see which key, and what is added to their score. Each kind of mask is a type of
// its own, so that "true" can't be taken for its opposite; a raw array of bool does not compile.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "headwise/score/documents.hpp"
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
  In<bool, 4> pairs;  // [B or 1, H or 1, L or 1, S or 1]
  bool keep;          // what `pairs` holds where a pair is visible
};

/// Added to the scaled score. A value below -max/4, -infinity among them, hides the pair.
template <Scalar T>
struct BiasMask {
  In<T, 4> values;  // [B or 1, H or 1, L or 1, S or 1]
};

/// The masks by name. Views are kept, not copied: they must outlive the call, and for training the
/// backward call too.
struct Mask {
  /// True where the query may see the key.
  static PairMask keep(In<bool, 4> pairs) { return {pairs, true}; }  // [B, H, L, S] or 1
  /// The same [L, S] for all batches and heads.
  static PairMask keep(In<bool, 2> pairs) { return {all(pairs), true}; }  // [L, S]
  /// True where the query may not see the key.
  static PairMask drop(In<bool, 4> pairs) { return {pairs, false}; }  // [B, H, L, S] or 1
  /// The same [L, S] for all batches and heads.
  static PairMask drop(In<bool, 2> pairs) { return {all(pairs), false}; }
  /// True where a key counts: [B, S], for all heads and queries.
  static PairMask keep_keys(In<bool, 2> keys) { return {of_keys(keys), true}; }
  /// True where a key is padding: [B, S], for all heads and queries.
  static PairMask drop_keys(In<bool, 2> keys) { return {of_keys(keys), false}; }
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
  static Documents documents(In<Index, 2> ids) { return {ids, {}}; }
  static Documents documents(In<std::int32_t, 2> ids) { return {{}, ids}; }

  /// Element b of the batch has keys 0 ... lengths[b] - 1: [B], viewed.
  static KeyLengths key_lengths(std::span<const Index> lengths) { return {lengths}; }
  static void key_lengths(const std::vector<Index>&& temporary) = delete;
  /// Query i sees key j only where |i + (S - L) - j| < size; size >= 1. With .keeping_first(n) it
  /// sees keys 0 ... n - 1 besides, as attention sinks.
  /// Source  Beltagy et al., 2020, arXiv 2004.05150; the sinks: Xiao et al., "Efficient Streaming
  ///         Language Models with Attention Sinks", 2023, arXiv 2309.17453.
  static Window window(Index size) { return {size, 0}; }

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

template <Scalar T>
class AttentionMask;

/// What an AttentionMask<T> is put together from.
template <class Term, class T>
concept MaskTerm =
    std::same_as<Term, Causal> || std::same_as<Term, Window> || std::same_as<Term, KeyLengths> ||
    std::same_as<Term, Documents> || std::same_as<Term, PairMask> ||
    std::same_as<Term, BiasMask<T>> || std::same_as<Term, AttentionMask<T>>;

/// All masks of a call together: a pair is visible where every one of them lets it be.
///   AttentionMask<float> mask = {causal, Mask::key_lengths(lengths), Mask::bias(alibi)};
template <Scalar T>
class AttentionMask {
 public:
  static constexpr int most = 4;  // pair masks and, apart from them, biases

  /// No mask: every query sees every key.
  AttentionMask() noexcept {}  // not defaulted: g++ 12 fails to compute its exception specification
  /// All terms together. Throws ArgumentError for what does not go together.
  template <class... Terms>
  requires(sizeof...(Terms) >= 1 && (MaskTerm<Terms, T> && ...))
      AttentionMask(const Terms&... terms) {
    (add(terms), ...);
  }

  /// Adds a term; throws ArgumentError where it does not go together with those before it.
  void add(Causal) { causal_ = true; }
  /// Of several windows the smallest holds. Throws ArgumentError for a size below 1, and where a
  /// window keeps more first keys than a wider one: what both leave is no window then.
  void add(Window window) {
    require(window.size >= 1, "Mask::window",
            [&] { return "size is " + std::to_string(window.size) + ", expected >= 1"; });
    require(window.first_keys >= 0, "Mask::window", [&] {
      return "first_keys is " + std::to_string(window.first_keys) + ", expected >= 0";
    });
    constexpr Index widest = (std::numeric_limits<Index>::max)() / 4;  // wider than any sequence
    window.size = std::min<Index>(widest, window.size);
    if (window_ != 0) window = both({window_, first_keys_}, window);
    window_ = window.size;
    first_keys_ = window.first_keys;
  }
  /// Throws ArgumentError where there are key lengths already.
  void add(KeyLengths keys) {
    require(!has_key_lengths_, "AttentionMask", "key lengths are given twice, expected once");
    key_lengths_ = keys.lengths;
    has_key_lengths_ = true;
  }
  /// Throws ArgumentError where there are documents already.
  void add(const Documents& documents) {
    require(!documents_.present(), "AttentionMask", "documents are given twice, expected once");
    documents_ = documents;
  }
  /// Throws ArgumentError for more than 4 keep and drop masks.
  void add(const PairMask& mask) {
    require(pair_count_ < most, "AttentionMask",
            "keep and drop masks are 5, expected at most 4 (combine some into one tensor)");
    pairs_[static_cast<std::size_t>(pair_count_++)] = mask;
  }
  /// Throws ArgumentError for more than 4 biases.
  void add(const BiasMask<T>& mask) {
    require(bias_count_ < most, "AttentionMask",
            "biases are 5, expected at most 4 (add some up into one tensor)");
    biases_[static_cast<std::size_t>(bias_count_++)] = mask;
  }
  /// All terms of another mask, or, where they do not go together, an error and none.
  void add(const AttentionMask& other) {
    AttentionMask sum = *this;
    sum.causal_ = causal_ || other.causal_;
    if (other.window_ != 0) sum.add(Window{other.window_, other.first_keys_});
    if (other.has_key_lengths_) sum.add(KeyLengths{other.key_lengths_});
    if (other.documents_.present()) sum.add(other.documents_);
    for (const PairMask& mask : other.pair_masks()) sum.add(mask);
    for (const BiasMask<T>& mask : other.biases()) sum.add(mask);
    *this = sum;
  }

  /// Whether causality is among the terms.
  bool is_causal() const { return causal_; }
  /// The smallest window, or 0 for none.
  Index window() const { return window_; }  // 0: none
  /// How many first keys the window keeps.
  Index first_keys() const { return first_keys_; }
  /// Whether key lengths are among the terms.
  bool has_key_lengths() const { return has_key_lengths_; }
  /// They, [B], or empty.
  std::span<const Index> key_lengths() const { return key_lengths_; }
  /// The documents among the terms, or none given.
  const Documents& documents() const { return documents_; }
  /// The keep and drop masks among the terms.
  std::span<const PairMask> pair_masks() const {
    return {pairs_.data(), static_cast<std::size_t>(pair_count_)};
  }
  /// The biases among the terms.
  std::span<const BiasMask<T>> biases() const {
    return {biases_.data(), static_cast<std::size_t>(bias_count_)};
  }

  /// Throws ShapeError or ArgumentError unless every term fits scores [B, H, L, S].
  void require_fits(std::string_view function, Index B, Index H, Index L, Index S) const {
    for (const PairMask& mask : pair_masks()) {
      require_broadcast(function, mask.keep ? "Mask::keep" : "Mask::drop", mask.pairs,
                        Shape{B, H, L, S});
    }
    for (const BiasMask<T>& mask : biases()) {
      require_broadcast(function, "Mask::bias", mask.values, Shape{B, H, L, S});
    }
    documents_.require_fits(function, B, S);
    if (!has_key_lengths_) return;
    require(static_cast<Index>(key_lengths_.size()) == B, function, [&] {
      return "Mask::key_lengths has " + std::to_string(key_lengths_.size()) +
             " lengths, expected " + std::to_string(B) + " (the batch size)";
    });
    for (Index length : key_lengths_) {
      require(length >= 0 && length <= S, function, [&] {
        return "Mask::key_lengths holds " + std::to_string(length) + ", expected 0 to " +
               std::to_string(S) + " (the number of keys)";
      });
    }
  }

 private:
  /// What two windows leave together.
  static Window both(Window narrow, Window wide) {
    if (wide.size < narrow.size) std::swap(narrow, wide);
    if (wide.size == narrow.size) {
      return {narrow.size, std::min<Index>(narrow.first_keys, wide.first_keys)};
    }
    require(narrow.first_keys <= wide.first_keys, "AttentionMask", [&] {
      return "a window of " + std::to_string(narrow.size) + " keeps the first " +
             std::to_string(narrow.first_keys) + " keys, one of " + std::to_string(wide.size) +
             " the first " + std::to_string(wide.first_keys) +
             ", expected no fewer (or one window)";
    });
    return narrow;
  }

  template <class V>
  static void require_broadcast(std::string_view function, std::string_view argument,
                                const In<V, 4>& mask, const Shape<4>& wanted) {
    const Shape<4>& got = mask.shape();
    require_countable(function, argument, mask);
    for (int r = 0; r < 4; ++r) {
      if (got[r] == wanted[r] || got[r] == 1) continue;
      raise<ShapeError>(std::string(function) + ": " + std::string(argument) + " is " +
                        got.format() + ", expected " + wanted.format() +
                        " or 1 on an axis (scores are [B, H, L, S])");
    }
  }

  bool causal_ = false;
  bool has_key_lengths_ = false;
  int pair_count_ = 0;
  int bias_count_ = 0;
  Index window_ = 0;
  Index first_keys_ = 0;
  std::span<const Index> key_lengths_;
  Documents documents_ = {};
  std::array<PairMask, most> pairs_{};
  std::array<BiasMask<T>, most> biases_{};
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// A causal mask as values to add: 0 where j <= i, `fill` above the diagonal; for Mask::bias.
/// With the default fill it is a number like others: a row of nothing but fills is no masked row.
/// Throws ShapeError for n < 0, std::bad_alloc.
template <Scalar T>
Tensor<T, 2> causal_mask(Index n, T fill = T(-1e9)) {
  Tensor<T, 2> mask({n, n});
  for (Index i = 0; i < n; ++i) {
    for (Index j = i + 1; j < n; ++j) mask(i, j) = fill;
  }
  return mask;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
