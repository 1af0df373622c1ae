// Keys and values of the tokens so far, for decoding one token, or a few, at a time: attention of
// new queries over the views of what is filled gives the bits that the whole sequence gives.
#pragma once

#include <algorithm>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>

#include "headwise/kernels/kernels.hpp"
#include "headwise/nn/kv_cache_options.hpp"
#include "headwise/nn/kv_cache_rows.hpp"
#include "headwise/nn/kv_cache_slots.hpp"
#include "headwise/nn/token_counts.hpp"
#include "headwise/runtime/recycled_memory.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
class NewTokens;

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Keys [B, G, held, d] and values [B, G, held, dv], appended in the order of their positions. Each
/// sequence has a length of its own. What is behind it is never read. Keys are transposed when they
/// are appended (TransposedKeys), so that no query has to.
///
/// With a window a cache holds the first keys and the last ones of a sequence of any length: what
/// no query will see again makes room, block by block of the kernels (kv_cache_slots.hpp).
/// Memory: B G capacity (d + dv) elements of T or of 2 bytes, capacity rounded up to a multiple of
/// 128 for keys, taken at once, in huge pages from 4 MiB on.
/// Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, arXiv
/// 2309.17453 (which turns keys by their place in the cache; here by that in the sequence).
template <Scalar T>
class KeyValueCache {
 public:
  /// Empty. Throws ArgumentError for a negative extent, ShapeError for more than memory holds,
  /// std::bad_alloc.
  explicit KeyValueCache(const KeyValueCacheOptions& options,
                         std::pmr::memory_resource* memory = default_memory())
      : options_(options) {
    options.require_valid(std::same_as<T, float>);
    slots_.capacity = options.capacity;
    if (options.window != 0) {
      slots_ =
          detail::KeyValueSlots::of_window(options.capacity, options.window, options.first_keys,
                                           kernels::kernels_here<T>().forward_keys);
    }
    options_.capacity = slots_.capacity;
    if (options_.d_value == 0) options_.d_value = options_.d_head;
    const Index B = options_.batch_size, G = options_.num_kv_heads, most = slots_.capacity;
    k_ = {options_.stored_as, {B, G, most, options_.d_head}, memory};
    v_ = {options_.stored_as, {B, G, most, options_.d_value}, memory};
    lengths_ = Tensor<Index, 1>(Shape{B}, memory);
    dropped_ = Tensor<Index, 1>(Shape{B}, memory);
  }

  /// A deep copy.
  KeyValueCache(const KeyValueCache& other) = default;
  /// Takes what is there; `other` has no capacity then.
  KeyValueCache(KeyValueCache&& other) noexcept { swap(other); }
  /// A copy or what was taken; where a copy throws, this is as it was.
  KeyValueCache& operator=(KeyValueCache other) noexcept {
    swap(other);
    return *this;
  }
  /// Exchanges all.
  void swap(KeyValueCache& other) noexcept {
    std::swap(options_, other.options_);
    std::swap(slots_, other.slots_);
    k_.swap(other.k_);
    v_.swap(other.v_);
    lengths_.swap(other.lengths_);
    dropped_.swap(other.dropped_);
  }

  /// Copies the keys [B, G, n, d] and values [B, G, n, dv] of n tokens behind what is there; of
  /// sequence b the first counts[b] of them, or all where no counts are given. Throws ShapeError,
  /// or ArgumentError where they are more than room(); nothing is changed then.
  void append(In<T, 4> k, In<T, 4> v, std::span<const Index> counts = {}) {
    constexpr std::string_view function = "KeyValueCache::append";
    const Index B = options_.batch_size, G = options_.num_kv_heads, n = k.extent(2);
    require_shape(function, "k", k, Shape{B, G, n, options_.d_head},
                  "batch, heads and width of the cache");
    require_shape(function, "v", v, Shape{B, G, n, options_.d_value},
                  "batch, heads and width of the cache, length of k");
    detail::require_counts(function, counts, B, n);
    require_room(function, n, counts);
    for (const auto& from : {detail::Footprint("k", k), detail::Footprint("v", v)}) {
      require(!k_.overlaps(from) && !v_.overlaps(from), function,
              "k or v lie in the cache, expected memory of their own");
    }
    write(k, v, counts);
    keep(n, counts);
  }

  /// Throws ArgumentError unless n more tokens of each sequence fit, or counts[b] of sequence b.
  void require_room(std::string_view function, Index n, std::span<const Index> counts = {}) const {
    const bool taken = moved_from();
    for (Index b = 0; b < options_.batch_size; ++b) {
      const Index more = detail::count_of(counts, b, n), there = taken ? 0 : lengths_(b);
      const Index fit = taken ? 0 : room(b);
      require(more <= fit || slots_.window != 0, function, more, " tokens behind ", there,
              " of sequence ", b, " are more than the capacity ", options_.capacity,
              " of the cache: roll it back, clear it or make a larger one");
      require(more <= fit, function, more, " tokens behind ", there, " of sequence ", b,
              " are more than the ", fit, " that fit beside the window: take fewer at a time");
    }
  }

  /// Forgets the last n tokens of each sequence. Throws ArgumentError unless there are so many, and
  /// all that the tokens before them see is still held; nothing is changed then.
  void rollback(Index n) {
    require(n == 0 || !moved_from(), "KeyValueCache::rollback", "n is ", n,
            ", expected 0 of a cache that was moved from");
    for (Index b = 0; b < sequences(); ++b) require_way_back(b, n);
    for (Index b = 0; b < sequences(); ++b) go_back(b, n);
  }
  /// Forgets the last n tokens of sequence b. Throws as the one above.
  void rollback(Index b, Index n) {
    require_sequence("KeyValueCache::rollback", b);
    require_way_back(b, n);
    go_back(b, n);
  }
  /// Forgets all.
  void clear() {
    for (Index b = 0; b < sequences(); ++b) set(b, {});
  }
  /// Forgets all of sequence b: another may begin there. Throws ArgumentError unless there is one.
  void clear(Index b) {
    require_sequence("KeyValueCache::clear", b);
    set(b, {});
  }

  /// Tokens that were appended, of the longest sequence.
  Index length() const {
    return sequences() == 0 ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
  }
  /// The same of sequence b. Throws ArgumentError unless there is one, as do all that name one.
  Index length(Index b) const {
    require_sequence("KeyValueCache::length", b);
    return lengths_(b);
  }
  /// Whether it is that of every sequence.
  bool same_lengths() const {
    const auto differs = [&](Index length) { return length != lengths_(0); };
    return std::none_of(lengths_.begin(), lengths_.end(), differs);
  }
  /// Tokens of each sequence that still fit.
  Index room() const {
    Index least = slots_.capacity;
    for (Index b = 0; b < sequences(); ++b) least = std::min<Index>(least, at(b).room(slots_));
    return least;
  }
  /// The same of sequence b.
  Index room(Index b) const {
    require_sequence("KeyValueCache::room", b);
    return at(b).room(slots_);
  }
  /// The position in its sequence of key `slot` of k(b): without a window, the slot. Throws
  /// ArgumentError unless that key is held.
  Index position(Index b, Index slot) const {
    constexpr std::string_view function = "KeyValueCache::position";
    require_sequence(function, b);
    require(slot >= 0 && slot < at(b).held(), function, "slot is ", slot, ", expected one of the ",
            at(b).held(), " keys that are held");
    return at(b).position(slots_, slot);
  }
  /// The keys of sequence b that were dropped, for AttentionOptions::gap of a call over k(b), where
  /// biases by distance or a score function ask where keys stand.
  KeyGap gap(Index b) const {
    require_sequence("KeyValueCache::gap", b);
    return at(b).gap(slots_);
  }
  /// The options, d_value filled in, and the capacity that there is.
  const KeyValueCacheOptions& options() const { return options_; }

  /// Keys so far [B, G, held, d], as many as the longest holds; of the others, what is behind their
  /// length may be anything. A view, right until the cache goes or what it sees is rolled back or
  /// dropped; k().rows() copies. Of keys that are stored in 16 bits it is k<BFloat16>() or
  /// k<Float16>(). Throws ArgumentError for another type than they are stored as.
  template <class U = T>
  TransposedKeys<U> k() const {
    return view<U>("KeyValueCache::k", k_, 0, options_.batch_size, longest_held());
  }
  /// Values so far [B, G, held, dv].
  template <class U = T>
  In<U, 4> v() const {
    return view<U>("KeyValueCache::v", v_, 0, options_.batch_size, longest_held());
  }
  /// f(k(), v()), of the type that they are stored as.
  template <class F>
  void with_keys(const F& f) const {
    k_.with_type([&]<class U>(std::type_identity<U>) { f(k<U>(), v<U>()); });
  }
  /// Keys of sequence b [1, G, held, d].
  template <class U = T>
  TransposedKeys<U> k(Index b) const {
    require_sequence("KeyValueCache::k", b);
    return view<U>("KeyValueCache::k", k_, b, 1, at(b).held());
  }
  /// Values of sequence b [1, G, held, dv].
  template <class U = T>
  In<U, 4> v(Index b) const {
    require_sequence("KeyValueCache::v", b);
    return view<U>("KeyValueCache::v", v_, b, 1, at(b).held());
  }

 private:
  template <class>
  friend class detail::NewTokens;

  detail::KeyValueSequence at(Index b) const { return {lengths_(b), dropped_(b)}; }
  void set(Index b, const detail::KeyValueSequence& sequence) {
    lengths_(b) = sequence.length;
    dropped_(b) = sequence.dropped;
  }
  Index longest_held() const {
    Index most = 0;
    for (Index b = 0; b < sequences(); ++b) most = std::max<Index>(most, at(b).held());
    return most;
  }
  template <class U, class Stored>
  static auto view(std::string_view function, const Stored& all, Index b, Index batch, Index held) {
    all.template require_stored<U>(function);
    return all.template filled<U>(b, batch, held);
  }

  /// The sequences that are held: batch_size, or none once the cache was moved from.
  Index sequences() const { return lengths_.extent(0); }
  bool moved_from() const { return sequences() != options_.batch_size; }

  void require_sequence(std::string_view function, Index b) const {
    require(b >= 0 && b < sequences(), function, "b is ", b, ", expected 0 to ", sequences() - 1,
            ", a sequence of the batch");
  }
  void require_way_back(Index b, Index n) const {
    constexpr std::string_view function = "KeyValueCache::rollback";
    require(n >= 0 && n <= lengths_(b), function, "n is ", n, ", expected 0 to ", lengths_(b),
            ", the length of sequence ", b);
    require(at(b).reaches_back_to(slots_, lengths_(b) - n), function, "n is ", n,
            ", expected fewer: keys that token ", lengths_(b) - n, " sees are no longer held");
  }
  void go_back(Index b, Index n) { set(b, at(b).back_to(slots_, lengths_(b) - n)); }

  /// Writes rows into the slots behind those that are filled; where there is no room, keys that no
  /// query sees any more are dropped first. Lengths stay: keep() is what changes them.
  void write(const In<T, 4>& k, const In<T, 4>& v, std::span<const Index> counts) {
    for (Index b = 0; b < sequences(); ++b) {
      const Index n = detail::count_of(counts, b, k.extent(2));
      if (at(b).held() + n > slots_.capacity) drop(b);
      k_.write(k, b, n, at(b).held());
      v_.write(v, b, n, at(b).held());
    }
  }
  void keep(Index n, std::span<const Index> counts) noexcept {
    Index* const lengths = lengths_.data();
    for (Index b = 0; b < sequences(); ++b) lengths[b] += detail::count_of(counts, b, n);
  }
  void drop(Index b) {
    const Index gone = at(b).droppable(slots_), end = at(b).held();
    k_.move_up(b, slots_.first + gone, end, slots_.first);
    v_.move_up(b, slots_.first + gone, end, slots_.first);
    dropped_(b) += gone;
  }

  KeyValueCacheOptions options_;
  detail::KeyValueSlots slots_;
  detail::CachedKeys<T> k_;    // [B, G, capacity, d]
  detail::CachedValues<T> v_;  // [B, G, capacity, dv]
  Tensor<Index, 1> lengths_;   // [B]
  Tensor<Index, 1> dropped_;   // [B]
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
