// What a TransformerDecoder has seen of the sequences that it writes.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/nn/transformer_decoder_parameters.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

template <Scalar T, KeptAs<T> W = T>
class TransformerDecoder;

/// What a decoder has seen: keys and values of each block. A copy goes a way of its own.
template <Scalar T>
class TransformerDecoderState {
 public:
  /// A deep copy.
  TransformerDecoderState(const TransformerDecoderState&) = default;
  /// Takes what is there; no step goes on from `other` then.
  TransformerDecoderState(TransformerDecoderState&&) noexcept = default;
  /// A copy or what was taken; where a copy throws, this is as it was.
  TransformerDecoderState& operator=(TransformerDecoderState other) noexcept {
    std::swap(module_, other.module_);
    caches_.swap(other.caches_);
    return *this;
  }

  /// Tokens that were taken, of the longest sequence.
  Index length() const { return caches_.empty() ? 0 : caches_[0].length(); }
  /// The same of sequence b. Throws ArgumentError unless there is one.
  Index length(Index b) const {
    require_caches("TransformerDecoderState::length");
    return caches_[0].length(b);
  }
  /// Tokens of each sequence that still fit.
  Index room() const { return caches_.empty() ? 0 : caches_[0].room(); }
  /// Forgets the last n tokens of each sequence. Throws ArgumentError unless there are so many, and
  /// the caches still hold what comes before them: a window drops keys.
  void rollback(Index n) {
    require_caches("TransformerDecoderState::rollback");
    for (KeyValueCache<T>& cache : caches_) cache.rollback(n);
  }
  /// Forgets the last n tokens of sequence b. Throws as that of all does.
  void rollback(Index b, Index n) {
    require_caches("TransformerDecoderState::rollback");
    for (KeyValueCache<T>& cache : caches_) cache.rollback(b, n);
  }
  /// Forgets all.
  void clear() {
    for (KeyValueCache<T>& cache : caches_) cache.clear();
  }
  /// Forgets all of sequence b: another may begin there. Throws ArgumentError unless there is one.
  void clear(Index b) {
    require_caches("TransformerDecoderState::clear");
    for (KeyValueCache<T>& cache : caches_) cache.clear(b);
  }

 private:
  template <Scalar U, KeptAs<U> W>
  friend class TransformerDecoder;
  TransformerDecoderState(const TransformerDecoderOptions& o, const KeyValueCacheOptions& cache,
                          std::pmr::memory_resource* memory)
      : module_(o) {
    for (Index n = 0; n < o.num_blocks; ++n) {
      caches_.push_back(key_value_cache<T>(o.block.attention(), cache, memory));
    }
  }
  void require_caches(std::string_view function) const {
    require(!caches_.empty(), function,
            "the state was moved from, expected one that a decoder made");
  }

  TransformerDecoderOptions module_;
  std::vector<KeyValueCache<T>> caches_;
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
