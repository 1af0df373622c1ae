// What the decoder computes without its tape: the values of some tokens, and the logits of what
// comes next, from a cache of the keys and values of the tokens before. No gradients.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "decoder.hpp"
#include "headwise/nn/kv_cache.hpp"

namespace char_gpt {

using headwise::TensorView;

/// The values of a decoder for tokens of one sequence: the operations that its tape records, in
/// memory that is taken once. The caller says what attention is.
template <class T>
class DecoderPass {
 public:
  /// The decoder has to outlive this.
  explicit DecoderPass(const Decoder<T>& decoder, const Context& context = {})
      : decoder_(decoder),
        context_(context),
        h_(rows_of(1)),
        normed_(rows_of(1)),
        projected_(rows_of(3)),
        attended_(rows_of(1)),
        branch_(rows_of(1)),
        hidden_(rows_of(4)),
        logits_(Shape{Index{1}, decoder.options().vocabulary}, context.memory) {}

  /// [V], right until the next call: the logits of what follows the last of n tokens.
  ///
  /// tokens   [n]   at least one, at the positions begin, begin + 1, ... below the context
  /// attend         attend(layer, q, k, v, o) writes o [1, H, n, d] for q, k and v, of the same
  ///                shape
  template <class Attend>
  In<T, 1> logits(std::span<const TokenId> tokens, Index begin, const Attend& attend) {
    const Index n = std::ssize(tokens);
    const auto h = first(h_, n);
    embedding_forward(In<TokenId, 1>(tokens.data(), Shape{n}), In<T, 2>(decoder_.token()), h,
                      context_);
    add_forward(h, slice(decoder_.position(), 0, begin, n), h, context_);
    for (std::size_t layer = 0; layer < decoder_.blocks().size(); ++layer) {
      const auto attend_here = [&](const auto&... heads) {
        attend(static_cast<Index>(layer), heads...);
      };
      block_forward(decoder_.blocks()[layer], h, attend_here);
    }
    const auto normed = first(normed_, 1);  // only the last token asks what comes next
    norm_forward(slice(h, 0, n - 1, 1), decoder_.norm(), normed);
    tied_head_forward(normed, decoder_.token(), logits_, context_);
    return select(logits_, 0);
  }

 private:
  Tensor<T, 2> rows_of(Index widths) const {
    const ModelOptions& o = decoder_.options();
    return Tensor<T, 2>::uninitialized({o.context, widths * o.width}, context_.memory);
  }
  static TensorView<T, 2> first(Tensor<T, 2>& rows, Index n) { return slice(rows, 0, 0, n); }

  void norm_forward(In<T, 2> x, const Tensor<T, 1>& gamma, Out<T, 2> y) const {
    layer_norm_forward(x, {gamma, {}}, T(1e-5), y, {}, context_);
  }

  /// Columns [n, D] as heads [1, H, n, d].
  TensorView<T, 4> heads(const TensorView<T, 2>& columns) const {
    const TensorView<T, 3> sequence(columns.data(),
                                    Shape{Index{1}, columns.extent(0), columns.extent(1)},
                                    Shape{Index{0}, columns.stride(0), columns.stride(1)});
    return split_heads(sequence, decoder_.options().heads);
  }

  /// h [n, D] = what Block::forward makes of it.
  template <class Attend>
  void block_forward(const Block<T>& block, const TensorView<T, 2>& h, const Attend& attend) {
    const Index n = h.extent(0), D = h.extent(1);
    const auto normed = first(normed_, n), projected = first(projected_, n);
    const auto attended = first(attended_, n), branch = first(branch_, n);
    const auto hidden = first(hidden_, n);
    norm_forward(h, block.norm1.value, normed);
    linear_forward(normed, block.qkv.value, {}, projected, context_);
    attend(heads(slice(projected, 1, 0, D)), heads(slice(projected, 1, D, D)),
           heads(slice(projected, 1, 2 * D, D)), heads(attended));
    linear_forward(attended, block.proj.value, {}, branch, context_);
    add_forward(h, branch, h, context_);
    norm_forward(h, block.norm2.value, normed);
    linear_forward(normed, block.up.value, {}, hidden, context_);
    activation_forward(headwise::Activation::gelu, hidden, hidden, context_);
    linear_forward(hidden, block.down.value, {}, branch, context_);
    add_forward(h, branch, h, context_);
  }

  const Decoder<T>& decoder_;
  const Context context_;
  Tensor<T, 2> h_, normed_;         // [context, D]
  Tensor<T, 2> projected_;          // [context, 3 D]; columns Q | K | V
  Tensor<T, 2> attended_, branch_;  // [context, D]
  Tensor<T, 2> hidden_;             // [context, 4 D]
  Tensor<T, 2> logits_;             // [1, V]
};

/// Generates with a decoder: a step computes the new tokens alone, and reads the keys and values of
/// those before from a cache a layer.
///
/// The logits have the bits of Decoder::logits, for any cut of the tokens into steps and any number
/// of threads. Positions are learned and end at the context C: a token for which there is none
/// begins a new window, of the C / 2 tokens before it and itself, which are computed again from
/// position 0. What is in the window depends on the number of tokens alone.
///
/// Work   2 FLOPs a token for each weight of the blocks and the head, and attention to the window.
///        After the first windows a step takes no fresh memory.
template <class T>
class DecoderGenerator final : public Generator<T> {
 public:
  /// The decoder has to outlive this. Throws std::bad_alloc.
  explicit DecoderGenerator(const Decoder<T>& decoder, const Context& context = {})
      : context_(context), most_(decoder.options().context), pass_(decoder, context) {
    const ModelOptions& o = decoder.options();
    window_.reserve(static_cast<std::size_t>(2 * most_));
    for (Index layer = 0; layer < o.layers; ++layer) {
      const headwise::KeyValueCacheOptions heads{
          .num_kv_heads = o.heads, .capacity = o.context, .d_head = o.width / o.heads};
      caches_.emplace_back(heads, context.memory);
    }
  }

  /// Of how many tokens the last logits know.
  Index window() const { return std::ssize(window_); }

  /// Throws headwise::ArgumentError for no token and for one that the decoder does not have,
  /// std::bad_alloc; this is good for nothing then.
  In<T, 1> append(std::span<const TokenId> tokens) override {
    headwise::require(!tokens.empty(), "DecoderGenerator::append",
                      "tokens are none, expected one at least");
    Index known = window();
    window_.insert(window_.end(), tokens.begin(), tokens.end());
    if (window() > most_) {
      const Index stride = most_ - most_ / 2, past = window() - most_;
      const Index dropped = (past + stride - 1) / stride * stride;
      window_.erase(window_.begin(), window_.begin() + dropped);
      for (auto& cache : caches_) cache.clear();
      known = 0;
    }
    const auto attend = [&](Index layer, In<T, 4> q, In<T, 4> k, In<T, 4> v, Out<T, 4> o) {
      headwise::KeyValueCache<T>& cache = caches_[static_cast<std::size_t>(layer)];
      cache.append(k, v);
      flash_attention_forward(q, cache.k(), cache.v(), {.mask = headwise::causal}, o, {}, context_);
    };
    return pass_.logits(std::span(window_).subspan(static_cast<std::size_t>(known)), known, attend);
  }

 private:
  const Context context_;
  const Index most_;
  DecoderPass<T> pass_;
  std::vector<TokenId> window_;
  std::vector<headwise::KeyValueCache<T>> caches_;  // one a layer
};

}  // namespace char_gpt
