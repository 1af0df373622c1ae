// The steps of a TransformerDecoder, forward and backward.
//
//   1 embedding   h = token_t + position_l, for token t at position l    [B, L, D]
//                 (h = token_t without position_vectors)
//   2 blocks      h = block(h) for each, causal, within the window       [B, L, D]
//   3 norm        n = norm(h); n = h with post-LN, whose blocks end in one
//   4 tied head   logits = n token^T                                     [B L, V]
//
// Backward walks the same list up.
#pragma once

#include <algorithm>
#include <vector>

#include "headwise/nn/embedding.hpp"
#include "headwise/nn/token_counts.hpp"
#include "headwise/nn/transformer_block_steps.hpp"
#include "headwise/nn/transformer_decoder_parameters.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// A copy that is dense, in the wider type; 0 for what is behind its sequence's count.
template <class Id>
Tensor<std::int64_t, 2> kept_tokens(const In<Id, 2>& tokens, std::span<const Index> counts,
                                    std::pmr::memory_resource* memory) {
  auto kept = Tensor<std::int64_t, 2>::uninitialized(tokens.shape(), memory);
  for_each_index(tokens.shape(), [&](const Shape<2>& at) {
    kept(at) = at[1] < count_of(counts, at[0], tokens.extent(1)) ? std::int64_t{tokens(at)} : 0;
  });
  return kept;
}
/// Tokens [B, L] as [B L].
inline In<std::int64_t, 1> in_a_row(const Tensor<std::int64_t, 2>& tokens) {
  return {tokens.data(), Shape{tokens.size()}};
}

/// Throws ArgumentError unless tokens [B, L] are sequences as the decoder and the call take them.
inline void require_lengths(std::string_view function, const TransformerDecoderOptions& o,
                            const Shape<2>& tokens, const TransformerDecoderCall& call) {
  if (call.starts.empty()) {
    return require(tokens[1] <= o.max_length, function, "tokens are ", tokens,
                   ", expected sequences of at most ", o.max_length, " (max_length)");
  }
  require(tokens[0] == 1, function, "tokens are ", tokens, ", expected ",
          Shape{Index{1}, tokens[1]}, " (packed sequences)");
  require_packed_path(function, call.path);
  require_starts(function, "starts", call.starts, tokens[1], "the tokens");
  for (std::size_t b = 1; b < call.starts.size(); ++b) {
    const Index length = call.starts[b] - call.starts[b - 1];
    require(length <= o.max_length, function, "sequence ", b - 1, " has ", length,
            " tokens, expected sequences of at most ", o.max_length, " (max_length)");
  }
}

/// Rows that stand one behind the other: in [B L, D], and as positions.
struct PlacedRows {
  Index first, position, count;
};

/// Sequences that begin at position 0: a batch of tokens [B, L], or packed in tokens [1, N].
class WholeSequences {
 public:
  WholeSequences(const Tensor<std::int64_t, 2>& tokens, std::span<const Index> starts)
      : batch_(tokens.extent(0)), length_(tokens.extent(1)), starts_(starts) {}

  Index count() const { return starts_.empty() ? batch_ : static_cast<Index>(starts_.size()) - 1; }
  PlacedRows operator()(Index b) const {
    if (starts_.empty()) return {b * length_, 0, length_};
    const Index* start = starts_.data() + b;
    return {start[0], 0, start[1] - start[0]};
  }

 private:
  Index batch_, length_;
  std::span<const Index> starts_;
};

/// Step 1 of tokens [B, L], whose rows of sequence b have the positions rows_of(b); of rows that no
/// sequence has, the position is not looked at.
template <class T, class W, class RowsOf>
Tensor<T, 3> embed(const TransformerDecoderParameters<T, W>& p,
                   const Tensor<std::int64_t, 2>& tokens, Index sequences, const RowsOf& rows_of,
                   const Context& context) {
  const Index B = tokens.extent(0), L = tokens.extent(1), D = p.token.extent(1);
  auto h = Tensor<T, 3>::uninitialized({B, L, D}, context.memory);
  embedding_forward(in_a_row(tokens), In<W, 2>(p.token), merge_rows(h), context);
  if (p.position.absent()) return h;
  for (Index b = 0; b < sequences; ++b) {
    const auto [first, position, count] = rows_of(b);
    const auto rows = slice(merge_rows(h), 0, first, count);
    add_forward(In<T, 2>(rows), In<T, 2>(slice(p.position, 0, position, count)), rows, context);
  }
  return h;
}

/// Steps 3 and 4 of h [B, n, D].
template <class T, class W>
Tensor<T, 2> logits_of(const TransformerDecoderOptions& o,
                       const TransformerDecoderParameters<T, W>& p, In<T, 3> h,
                       TransformerDecoderCache<T>& cache, const Context& context) {
  // 3 norm
  if (o.block.norm_first) {
    cache.normed = BlockNorm<T>{o.block, p.norm}.forward(h, cache.norm, context);
    h = cache.normed;
  }
  // 4 tied head
  auto logits =
      Tensor<T, 2>::uninitialized({h.extent(0) * h.extent(1), o.vocabulary}, context.memory);
  tied_head_forward(In<T, 2>(merge_rows(h)), In<W, 2>(p.token), logits, context);
  return logits;
}

/// Fills the cache with all that backward needs; where `training` is false, with what costs nothing
/// alone.
template <class T, class W>
Tensor<T, 2> decoder_forward(const TransformerDecoderOptions& o,
                             const TransformerDecoderParameters<T, W>& p,
                             const TransformerDecoderCall& call, TransformerDecoderCache<T>& cache,
                             bool training, const Context& context) {
  cache.module = o;
  // 1 embedding
  const WholeSequences sequences(cache.tokens, cache.starts);
  Tensor<T, 3> h = embed(p, cache.tokens, sequences.count(), sequences, context);
  // 2 blocks
  for (Index n = 0; n < o.num_blocks; ++n) {
    TransformerBlockCache<T> kept;
    TransformerBlockCall<T> of_block = call.block<T>(o, n);
    of_block.starts = cache.starts;
    Tensor<T, 3> next = transformer_block_forward<T>(o.block, p.blocks[static_cast<std::size_t>(n)],
                                                     h, of_block, kept, training, context);
    if (training) {  // elements stay where they are: `kept` views h
      cache.inputs.push_back(std::move(h));
      cache.blocks.push_back(std::move(kept));
    }
    h = std::move(next);
  }
  // 3 norm, 4 tied head
  cache.h = std::move(h);
  Tensor<T, 2> logits = logits_of<T>(o, p, cache.h, cache, context);
  cache.filled = true;
  return logits;
}

/// Gradients of blocks that hold again what they held, unless the call that adds to them comes to
/// its end: those of a block are written before the block below, which can fail, is met. (To keep
/// what the weights' gradients of all blocks are made of would take more memory where there are
/// more tokens than a row is wide. The copy of 50 MB took 8 ms on one thread of a shared machine,
/// of 130 ms for 256 tokens and 800 ms for 1024.)
template <class T>
class RestoredGradients {
 public:
  explicit RestoredGradients(std::pmr::memory_resource* memory) : memory_(memory) {}
  RestoredGradients(const RestoredGradients&) = delete;
  RestoredGradients& operator=(const RestoredGradients&) = delete;
  ~RestoredGradients() {
    for (const Part& part : parts_) {
      for (Index i = 0; i < part.rows; ++i) {
        std::copy_n(part.saved + i * part.width, part.width, part.to + i * part.step);
      }
    }
    // Blocks may share these: the first that was saved is what they all held.
    for (; !scores_.empty(); scores_.pop_back()) *scores_.back().to = scores_.back().saved;
  }

  /// Throws std::bad_alloc.
  void save(TransformerBlockGradients<T>& gradients) {
    Index count = 0;
    gradients.for_each([&](const std::string&, auto view) { count += view.size(); });
    saved_.push_back(Tensor<T, 1>::uninitialized({count}, memory_));
    T* to = saved_.back().data();
    gradients.for_each([&](const std::string&, auto view) {  // rows are dense
      constexpr int last = decltype(view)::rank - 1;
      const Index rows = last == 0 ? 1 : view.extent(0), width = view.extent(last);
      const Part part{view.data(), to, rows, last == 0 ? 0 : view.stride(0), width};
      for (Index i = 0; i < rows; ++i) to = std::copy_n(part.to + i * part.step, width, to);
      parts_.push_back(part);
    });
    gradients.attention.score.for_each([&](const auto& view) {
      for_each_index(view.shape(), [&](const auto& at) {
        scores_.push_back({&view(at), view(at)});
      });
    });
  }
  void keep() {
    parts_.clear();
    scores_.clear();
  }

 private:
  struct Part {
    T* to;
    const T* saved;
    Index rows, step, width;
  };
  struct Element {
    T* to;
    T saved;
  };
  std::pmr::memory_resource* memory_;
  std::vector<Tensor<T, 1>> saved_;
  std::vector<Part> parts_;
  std::vector<Element> scores_;
};

/// Step 1, of the positions: dh [B L, D].
template <class T>
void add_position_gradients(In<T, 2> dh, const WholeSequences& sequences,
                            TransformerDecoderGradients<T>& gradients, const Context& context) {
  for (Index b = 0; b < sequences.count(); ++b) {
    const auto [first, position, count] = sequences(b);
    const auto d_position = slice(gradients.position, 0, position, count);
    add_forward(In<T, 2>(d_position), In<T, 2>(slice(dh, 0, first, count)), d_position, context);
  }
}

/// d_logits [B L, V]. The shapes are its caller's to check.
template <class T, class W>
void decoder_backward(const TransformerDecoderOptions& o,
                      const TransformerDecoderParameters<T, W>& p, In<T, 2> d_logits,
                      const TransformerDecoderCache<T>& cache,
                      TransformerDecoderGradients<T>& gradients, const Context& context) {
  const BlockNorm<T> norm{o.block, p.norm};
  const In<T, 2> head_input = merge_rows(cache.head_input());
  // 4 tied head
  Tensor<T, 3> d_normed = like<T>(cache.h, context), dh_storage;
  tied_head_backward(d_logits, head_input, In<W, 2>(p.token), merge_rows(d_normed), {}, context);
  In<T, 3> dh = d_normed;
  // 3 norm
  if (o.block.norm_first) {
    dh_storage = like<T>(cache.h, context);
    norm.backward(d_normed, cache.norm.norm_input, cache.norm, merge_rows(dh_storage), nullptr,
                  context);
    dh = dh_storage;
  }
  // 2 blocks
  RestoredGradients<T> of_blocks(context.memory);
  for (std::size_t n = p.blocks.size(); n-- > 0;) {
    of_blocks.save(gradients.blocks[n]);
    dh_storage = transformer_block_backward<T>(o.block, p.blocks[n], dh, cache.blocks[n],
                                               gradients.blocks[n], context);
    dh = dh_storage;
  }
  // The gradients of the parameters of 4 tied head, which is the last that can fail, of 3 norm and
  tied_head_backward(d_logits, head_input, In<W, 2>(p.token), {}, gradients.token, context);
  if (o.block.norm_first) {
    norm.backward(d_normed, cache.norm.norm_input, cache.norm, {}, &gradients.norm, context);
  }
  // 1 embedding
  embedding_backward(In<T, 2>(merge_rows(dh)), in_a_row(cache.tokens), gradients.token, context);
  if (!gradients.position.absent()) {
    add_position_gradients<T>(merge_rows(dh), {cache.tokens, cache.starts}, gradients, context);
  }
  of_blocks.keep();
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
