// The rows of a call's sequences, queries or keys, and how they are cut into blocks: of one length
// in each element of a batch, or of any, one sequence behind the other.
#pragma once

#include <span>

#include "headwise/ops/forward_inputs.hpp"
#include "headwise/ops/rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Nothing is stored but what the call gave: packed sequences are found by bisection.
class SequenceRows {
 public:
  /// Every element of the batch has as many.
  SequenceRows(Index sequences, Index length) : sequences_(sequences), length_(length) {}
  /// Sequence b has rows starts[b] ... starts[b + 1] - 1 of every tensor. starts [B + 1], viewed.
  explicit SequenceRows(std::span<const Index> starts)
      : sequences_(static_cast<Index>(starts.size()) - 1), starts_(starts.data()) {}

  bool packed() const { return starts_ != nullptr; }
  /// The rows of sequence b.
  Index length(Index b) const { return packed() ? starts_[b + 1] - starts_[b] : length_; }
  /// The rows of all sequences before b.
  Index before(Index b) const { return packed() ? starts_[b] : b * length_; }
  Index total() const { return before(sequences_); }

  /// Blocks of `size` rows are numbered, those of a sequence one behind the other. A packed
  /// sequence may own one number more than it has blocks.
  Index first_block(Index b, Index size) const {
    return packed() ? starts_[b] / size + b : b * count_parts(length_, size);
  }
  Index block_numbers(Index size) const { return first_block(sequences_, size); }
  /// How many numbers sequence b has.
  Index block_numbers(Index size, Index b) const {
    return first_block(b + 1, size) - first_block(b, size);
  }
  /// How many blocks there are.
  Index count_blocks(Index size) const {
    if (!packed()) return block_numbers(size);
    Index count = 0;
    for (Index b = 0; b < sequences_; ++b) count += count_parts(length(b), size);
    return count;
  }

  /// How many of them sequence b has.
  Index count_blocks(Index size, Index b) const { return count_parts(length(b), size); }

  /// One of `heads` tasks for each number of a block: the sequence, and which task of it.
  struct Task {
    Index b, number;
  };
  Task task(Index t, Index heads, Index size) const {
    if (!packed()) {
      const Index each = heads * count_parts(length_, size);
      return {t / each, t % each};
    }
    Index b = 0, end = sequences_;  // the last sequence whose first task is not behind t
    while (end - b > 1) {
      const Index middle = b + (end - b) / 2;
      (heads * first_block(middle, size) <= t ? b : end) = middle;
    }
    return {b, t - heads * first_block(b, size)};
  }

  /// The rows of sequence b in a tensor [B, H, rows, N], in which it stands at index b as well.
  template <class View>
  View of(const View& x, Index b) const {
    if (!packed() || x.absent()) return x;
    Shape<4> shape = x.shape();
    shape[2] = length(b);
    if (x.extent(1) == 0 || x.extent(2) == 0 || x.extent(3) == 0) return {x.data(), shape};
    return {x.data() + starts_[b] * x.stride(2), shape, x.strides()};
  }

 private:
  Index sequences_;
  Index length_ = 0;
  const Index* starts_ = nullptr;
};

/// What a call of flash attention goes over.
struct FlashSequences {
  AttentionSizes sizes;  // L and S of a batch; of packed sequences the rows of all
  SequenceRows queries, keys;

  /// The sizes of sequence b.
  AttentionSizes of(Index b) const {
    AttentionSizes own = sizes;
    own.L = queries.length(b);
    own.S = keys.length(b);
    return own;
  }
  /// Multiply-adds of forward, were all pairs of a sequence visible.
  double multiply_adds() const {
    if (!queries.packed()) return detail::multiply_adds(sizes);
    double sum = 0;
    for (Index b = 0; b < sizes.B; ++b) {
      AttentionSizes one = of(b);
      one.B = 1;
      sum += detail::multiply_adds(one);
    }
    return sum;
  }
};

/// Those of a batch.
inline FlashSequences sequences_of(const AttentionSizes& sizes) {
  return {sizes, SequenceRows(sizes.B, sizes.L), SequenceRows(sizes.B, sizes.S)};
}

/// Head h of sequence b.
template <class T, class Inputs>
kernels::AttentionHead<T> head_of_sequence(const FlashSequences& sequences, const Inputs& inputs,
                                           const AttentionOptions<T>& options, Index b, Index h) {
  return attention_head(sequences.of(b), sequences.queries.of(inputs.q, b),
                        sequences.keys.of(inputs.k, b), sequences.keys.of(inputs.v, b), options, b,
                        h);
}
/// The same of a forward call.
template <class T, class Q, class U>
kernels::AttentionHead<T> head_of_sequence(const FlashSequences& sequences,
                                           const ForwardInputs<Q, U>& in,
                                           const AttentionOptions<T>& options, Index b, Index h) {
  const ForwardInputs<Q, U> own{sequences.queries.of(in.q, b), sequences.keys.of(in.k, b),
                                sequences.keys.of(in.v, b), in.blocks};
  return forward_head(sequences.of(b), own, options, b, h);
}

/// Cumulative lengths, as what others must not share memory with.
inline In<Index, 1> starts_view(std::span<const Index> x) {
  return {x.data(), Shape{static_cast<Index>(x.size())}};
}

/// The same elements as [B, heads, rows, width], every sequence over all rows: SequenceRows cuts
/// them.
template <class T>
In<T, 4> by_sequence(const In<T, 3>& x, Index B) {
  return {x.data(), Shape{B, x.extent(1), x.extent(0), x.extent(2)},
          Shape{Index{0}, x.stride(1), x.stride(0), x.stride(2)}};
}
template <class T>
Out<T, 4> by_sequence(const Out<T, 3>& x, Index B) {
  if (x.absent()) return {};
  return {x.data(), Shape{B, x.extent(1), x.extent(0), x.extent(2)},
          Shape{Index{0}, x.stride(1), x.stride(0), x.stride(2)}};
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
