// Keys and values of the tokens so far, for decoding one token, or a few, at a time: attention of
// new queries over the views of what is filled gives the bits that the whole sequence gives.
#pragma once

#include <algorithm>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>

#include "headwise/kernels/kernels.hpp"
#include "headwise/nn/kv_cache_slots.hpp"
#include "headwise/nn/token_counts.hpp"
#include "headwise/runtime/recycled_memory.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"
#include "headwise/tensor/scalar.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

/// How much a KeyValueCache holds.
struct KeyValueCacheOptions {
  Index batch_size = 1;    // B
  Index num_kv_heads = 1;  // G
  Index capacity = 0;      // most tokens of a sequence; with a window, that are held at least
  Index d_head = 0;        // d
  Index d_value = 0;       // dv; 0: d
  Index window = 0;        // keys that a query sees, its own among them; 0: all before it
  Index first_keys = 0;    // keys that it sees beside the window, from the first on
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

template <class T>
class NewTokens;

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Keys [B, G, held, d] and values [B, G, held, dv], appended in the order of their positions. Each
/// sequence has a length of its own. What is behind it is never read.
///
/// With a window a cache holds the first keys and the last ones of a sequence of any length: what
/// no query will see again makes room, block by block of the kernels (kv_cache_slots.hpp).
/// Memory: B G capacity (d + dv) elements, taken at once, in huge pages from 4 MiB on.
/// Source: Xiao et al., 2023, arXiv 2309.17453 (which turns keys by their place in the cache).
template <Scalar T>
class KeyValueCache {
 public:
  /// Empty. Throws ArgumentError for a negative extent, ShapeError for more than memory holds,
  /// std::bad_alloc.
  explicit KeyValueCache(const KeyValueCacheOptions& options,
                         std::pmr::memory_resource* memory = default_memory())
      : options_(options) {
    const auto require_extent = [](const char* name, Index extent) {
      require(extent >= 0, "KeyValueCache", [&] {
        return std::string(name) + " is " + std::to_string(extent) + ", expected >= 0";
      });
    };
    require_extent("batch_size", options.batch_size);
    require_extent("num_kv_heads", options.num_kv_heads);
    require_extent("capacity", options.capacity);
    require_extent("d_head", options.d_head);
    require_extent("d_value", options.d_value);
    require_extent("window", options.window);
    require_extent("first_keys", options.first_keys);
    const auto require_countable_slots = [&](const char* name, Index slots) {
      constexpr Index most = Index{1} << 48;
      require(options.window == 0 || slots <= most, "KeyValueCache", [&] {
        return std::string(name) + " is " + std::to_string(slots) +
               ", expected at most 2^48 beside a window";
      });
    };
    require_countable_slots("capacity", options.capacity);
    require_countable_slots("window", options.window);
    require_countable_slots("first_keys", options.first_keys);
    require(options.window != 0 || options.first_keys == 0, "KeyValueCache", [&] {
      return "first_keys is " + std::to_string(options.first_keys) +
             " and window 0, expected a window beside which they are kept";
    });
    slots_.capacity = options.capacity;
    if (options.window != 0) {
      slots_ =
          detail::KeyValueSlots::of_window(options.capacity, options.window, options.first_keys,
                                           kernels::kernels_here<T>().forward_keys);
    }
    options_.capacity = slots_.capacity;
    if (options_.d_value == 0) options_.d_value = options_.d_head;
    const Index B = options_.batch_size, G = options_.num_kv_heads, most = slots_.capacity;
    k_ = Tensor<T, 4>::uninitialized({B, G, most, options_.d_head}, memory);
    v_ = Tensor<T, 4>::uninitialized({B, G, most, options_.d_value}, memory);
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
    const detail::Footprint mine[] = {{"", k_}, {"", v_}}, theirs[] = {{"k", k}, {"v", v}};
    for (const auto& from : theirs) {
      const bool apart = !detail::overlap(mine[0], from) && !detail::overlap(mine[1], from);
      require(apart, function, "k or v lie in the cache, expected memory of their own");
    }
    write(k, v, counts);
    keep(n, counts);
  }

  /// Throws ArgumentError unless n more tokens of each sequence fit, or counts[b] of sequence b.
  void require_room(std::string_view function, Index n, std::span<const Index> counts = {}) const {
    const bool taken = lengths_.size() != options_.batch_size;  // by a move
    for (Index b = 0; b < options_.batch_size; ++b) {
      const Index more = detail::count_of(counts, b, n), there = taken ? 0 : lengths_(b);
      const Index fit = taken ? 0 : room(b);
      require(more <= fit || slots_.window != 0, function, [&] {
        return std::to_string(more) + " tokens behind " + std::to_string(there) +
               " are more than the capacity " + std::to_string(options_.capacity) +
               " of the cache: roll it back, clear it or make a larger one";
      });
      require(more <= fit, function, [&] {
        return std::to_string(more) + " tokens behind " + std::to_string(there) +
               " are more than the " + std::to_string(fit) +
               " that fit beside the window: take fewer at a time";
      });
    }
  }

  /// Forgets the last n tokens of each sequence. Throws ArgumentError unless there are so many, and
  /// all that the tokens before them see is still held; nothing is changed then.
  void rollback(Index n) {
    for (Index b = 0; b < lengths_.size(); ++b) require_way_back(b, n);
    for (Index b = 0; b < lengths_.size(); ++b) go_back(b, n);
  }
  /// Forgets the last n tokens of sequence b. Throws as the one above.
  void rollback(Index b, Index n) {
    require_sequence("KeyValueCache::rollback", b);
    require_way_back(b, n);
    go_back(b, n);
  }
  /// Forgets all.
  void clear() {
    for (Index b = 0; b < lengths_.size(); ++b) set(b, {});
  }
  /// Forgets all of sequence b: another may begin there. Throws ArgumentError unless there is one.
  void clear(Index b) {
    require_sequence("KeyValueCache::clear", b);
    set(b, {});
  }

  /// Tokens that were appended, of the longest sequence.
  Index length() const {
    return lengths_.size() == 0 ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
  }
  /// The same of sequence b.
  Index length(Index b) const { return lengths_(b); }
  /// Tokens of each sequence that still fit.
  Index room() const {
    Index least = slots_.capacity;
    for (Index b = 0; b < lengths_.size(); ++b) least = std::min<Index>(least, room(b));
    return least;
  }
  /// The same of sequence b.
  Index room(Index b) const { return at(b).room(slots_); }
  /// The position in its sequence of key `slot` of k(b): without a window, the slot.
  Index position(Index b, Index slot) const { return at(b).position(slots_, slot); }
  /// The options, d_value filled in, and the capacity that there is.
  const KeyValueCacheOptions& options() const { return options_; }

  /// Keys so far [B, G, held, d], as many as the longest holds; of the others, what is behind their
  /// length may be anything. A view, right until the cache goes or what it sees is rolled back or
  /// dropped.
  In<T, 4> k() const { return filled(k_, 0, options_.batch_size, longest_held()); }
  /// Values so far [B, G, held, dv].
  In<T, 4> v() const { return filled(v_, 0, options_.batch_size, longest_held()); }
  /// Keys of sequence b [1, G, held, d].
  In<T, 4> k(Index b) const { return filled(k_, b, 1, at(b).held()); }
  /// Values of sequence b [1, G, held, dv].
  In<T, 4> v(Index b) const { return filled(v_, b, 1, at(b).held()); }

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
    for (Index b = 0; b < lengths_.size(); ++b) most = std::max<Index>(most, at(b).held());
    return most;
  }
  static In<T, 4> filled(const Tensor<T, 4>& all, Index b, Index batch, Index held) {
    Shape<4> shape = all.shape();
    shape[0] = batch;
    shape[2] = held;
    return {all.size() == 0 ? all.data() : all.data() + b * all.stride(0), shape, all.strides()};
  }

  void require_sequence(std::string_view function, Index b) const {
    require(b >= 0 && b < lengths_.size(), function, [&] {
      return "b is " + std::to_string(b) + ", expected 0 to " +
             std::to_string(lengths_.size() - 1) + ", a sequence of the batch";
    });
  }
  void require_way_back(Index b, Index n) const {
    constexpr std::string_view function = "KeyValueCache::rollback";
    require(n >= 0 && n <= lengths_(b), function, [&] {
      return "n is " + std::to_string(n) + ", expected 0 to " + std::to_string(lengths_(b)) +
             ", the length";
    });
    require(at(b).reaches_back_to(slots_, lengths_(b) - n), function, [&] {
      return "n is " + std::to_string(n) + ", expected fewer: keys that token " +
             std::to_string(lengths_(b) - n) + " sees are no longer held";
    });
  }
  void go_back(Index b, Index n) { set(b, at(b).back_to(slots_, lengths_(b) - n)); }

  /// Behind what is there, which drops what has to make room, and stays as long as it is.
  void write(const In<T, 4>& k, const In<T, 4>& v, std::span<const Index> counts) {
    for (Index b = 0; b < lengths_.size(); ++b) {
      const Index n = detail::count_of(counts, b, k.extent(2));
      if (at(b).held() + n > slots_.capacity) drop(b);
      copy_behind(k, b, n, k_);
      copy_behind(v, b, n, v_);
    }
  }
  void keep(Index n, std::span<const Index> counts) noexcept {
    Index* const lengths = lengths_.data();
    for (Index b = 0; b < options_.batch_size; ++b) lengths[b] += detail::count_of(counts, b, n);
  }
  void drop(Index b) {
    const Index gone = at(b).droppable(slots_), end = at(b).held();
    for (Tensor<T, 4>* all : {&k_, &v_}) {
      const Index width = all->extent(3);
      for (Index g = 0; g < all->extent(1) && width != 0; ++g) {
        T* const rows = &(*all)(b, g, Index{0}, Index{0});
        std::copy(rows + (slots_.first + gone) * width, rows + end * width,
                  rows + slots_.first * width);
      }
    }
    dropped_(b) += gone;
  }
  void copy_behind(const In<T, 4>& from, Index b, Index n, Tensor<T, 4>& to) const {
    const Index width = from.extent(3), slot = at(b).held();
    if (width == 0) return;
    for (Index g = 0; g < from.extent(1); ++g) {
      for (Index i = 0; i < n; ++i) {
        const T* in = &from(b, g, i, Index{0});
        T* out = &to(b, g, slot + i, Index{0});
        if (from.stride(3) == 1) {
          std::copy_n(in, width, out);
        } else {
          for (Index t = 0; t < width; ++t) out[t] = in[t * from.stride(3)];
        }
      }
    }
  }

  KeyValueCacheOptions options_;
  detail::KeyValueSlots slots_;
  Tensor<T, 4> k_;            // [B, G, capacity, d]
  Tensor<T, 4> v_;            // [B, G, capacity, dv]
  Tensor<Index, 1> lengths_;  // [B]
  Tensor<Index, 1> dropped_;  // [B]
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
