// Which query may see which key, and what is added to their score: masks by name, any number of
// them together. A raw array of bool does not compile.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "headwise/score/mask_terms.hpp"

namespace headwise::inline v0_1 {

template <Scalar T>
class AttentionMask;

/// What an AttentionMask<T> is put together from.
template <class Term, class T>
concept MaskTerm = std::same_as<Term, Causal> || std::same_as<Term, Window> ||
    std::same_as<Term, KeyLengths> || std::same_as<Term, Documents> ||
    std::same_as<Term, MaskFunctionRef> || std::same_as<Term, PairMask> ||
    std::same_as<Term, BiasMask<T>> || std::same_as<Term, AttentionMask<T>>;

/// All masks of a call together: a pair is visible where every one of them lets it be.
///   AttentionMask<float> mask = {causal, Mask::key_lengths(lengths), Mask::bias(alibi)};
template <Scalar T>
class AttentionMask {
 public:
  static constexpr int max_terms = 4;  // pair masks and, apart from them, biases

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
    require(window.size >= 1, "Mask::window", "size is ", window.size, ", expected >= 1");
    require(window.first_keys >= 0, "Mask::window", "first_keys is ", window.first_keys,
            ", expected >= 0");
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
    require(pair_count_ < max_terms, "AttentionMask", "keep and drop masks are ", max_terms + 1,
            ", expected at most ", max_terms, " (combine some into one tensor)");
    pairs_[static_cast<std::size_t>(pair_count_++)] = mask;
  }
  /// Throws ArgumentError for more than 4 biases.
  void add(const BiasMask<T>& mask) {
    require(bias_count_ < max_terms, "AttentionMask", "biases are ", max_terms + 1,
            ", expected at most ", max_terms, " (add some up into one tensor)");
    biases_[static_cast<std::size_t>(bias_count_++)] = mask;
  }
  /// Nothing where it views no function. Throws ArgumentError for more than 4.
  void add(const MaskFunctionRef& function) {
    if (function.absent()) return;
    require(function_count_ < MaskFunctionRef::max_terms, "AttentionMask", "mask functions are ",
            MaskFunctionRef::max_terms + 1, ", expected at most ", MaskFunctionRef::max_terms,
            " (combine some into one callable)");
    functions_[static_cast<std::size_t>(function_count_++)] = function;
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
    for (const MaskFunctionRef& function : other.functions()) sum.add(function);
    *this = sum;
  }

  /// Whether a term is told of pairs: a keep or drop mask, a bias or a function.
  bool hides_pairs() const { return pair_count_ + bias_count_ + function_count_ != 0; }
  /// Whether causality is among the terms.
  bool is_causal() const { return causal_; }
  /// The smallest window, or 0 for none.
  Index window() const { return window_; }
  /// How many first keys the window keeps.
  Index first_keys() const { return first_keys_; }
  /// Whether key lengths are among the terms.
  bool has_key_lengths() const { return has_key_lengths_; }
  /// The key lengths [B], or none.
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
  /// The mask functions among the terms.
  std::span<const MaskFunctionRef> functions() const {
    return {functions_.data(), static_cast<std::size_t>(function_count_)};
  }

  /// Throws ShapeError or ArgumentError unless every term fits scores [B, H, L, S].
  void require_fits(std::string_view function, Index B, Index H, Index L, Index S) const {
    for (const PairMask& mask : pair_masks()) {
      require_broadcast(function, mask.name, mask.pairs, Shape{B, H, L, S});
    }
    for (const BiasMask<T>& mask : biases()) {
      require_broadcast(function, "Mask::bias", mask.values, Shape{B, H, L, S});
    }
    documents_.require_fits(function, B, S);
    if (!has_key_lengths_) return;
    require(static_cast<Index>(key_lengths_.size()) == B, function, "Mask::key_lengths has ",
            key_lengths_.size(), " lengths, expected ", B, " (the batch size)");
    for (Index length : key_lengths_) {
      require(length >= 0 && length <= S, function, "Mask::key_lengths holds ", length,
              ", expected 0 to ", S, " (the number of keys)");
    }
  }

 private:
  /// What two windows leave together.
  static Window both(Window narrow, Window wide) {
    if (wide.size < narrow.size) std::swap(narrow, wide);
    if (wide.size == narrow.size) {
      return {narrow.size, std::min<Index>(narrow.first_keys, wide.first_keys)};
    }
    require(narrow.first_keys <= wide.first_keys, "AttentionMask", "a window of ", narrow.size,
            " keeps the first ", narrow.first_keys, " keys, one of ", wide.size, " the first ",
            wide.first_keys, ", expected no fewer (or one window)");
    return narrow;
  }

  template <class V>
  static void require_broadcast(std::string_view function, std::string_view argument,
                                const In<V, 4>& mask, const Shape<4>& wanted) {
    const Shape<4>& got = mask.shape();
    require_countable(function, argument, mask);
    for (int r = 0; r < 4; ++r) {
      if (got[r] == wanted[r] || got[r] == 1) continue;
      raise<ShapeError>(function, ": ", argument, " is ", got, ", expected ", wanted,
                        " or 1 on an axis (scores are [B, H, L, S])");
    }
  }

  bool causal_ = false;
  bool has_key_lengths_ = false;
  int pair_count_ = 0;
  int bias_count_ = 0;
  int function_count_ = 0;
  Index window_ = 0;
  Index first_keys_ = 0;
  std::span<const Index> key_lengths_;
  Documents documents_ = {};
  std::array<PairMask, max_terms> pairs_{};
  std::array<BiasMask<T>, max_terms> biases_{};
  std::array<MaskFunctionRef, MaskFunctionRef::max_terms> functions_{};
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
