// What a TransformerDecoder is, what one call of it is asked for, what it learns and what forward
// leaves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headwise/nn/named.hpp"
#include "headwise/nn/transformer_block_parameters.hpp"
#include "headwise/tensor/philox.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What block n draws with, apart from the other blocks and from the decoder's own.
inline std::uint64_t seed_of_block(std::uint64_t seed, Index n) {
  constexpr std::uint32_t blocks = 0x626C6F63;  // "bloc": apart from what else this seed draws
  const auto words = philox<10>({static_cast<std::uint32_t>(n), 0, 0, blocks}, philox_key(seed));
  return std::uint64_t{words[1]} << 32 | words[0];
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1 {

/// The shape of a decoder.
struct TransformerDecoderOptions {
  Index vocabulary = 0;               // V, tokens that there are
  Index max_length = 0;               // most tokens of a sequence
  bool position_vectors = true;       // one for each position; false: the blocks tell them
  Index num_blocks = 1;               // one after the other
  TransformerBlockOptions block;      // each of them; its seed is the decoder's
  double embedding_deviation = 0.02;  // of the vectors of tokens and positions at the start
  Index window = 0;      // tokens that a token sees, itself among them; 0: all before it
  Index first_keys = 0;  // tokens that it sees beside the window, from the first on
  std::optional<double> scale = {};    // of the scores; 1 / sqrt(d_head)
  std::optional<double> softcap = {};  // c > 0: a score becomes c tanh(score / c)

  /// All of them with every default filled in, of a decoder in T. Throws ArgumentError for what
  /// makes none, in the words of the module within where it is that one's rule.
  template <Scalar T = double>
  TransformerDecoderOptions resolved() const {
    constexpr std::string_view function = "TransformerDecoder";
    constexpr Index most = Index{1} << 30, most_blocks = Index{1} << 16;
    require(vocabulary >= 1 && vocabulary <= most, function, "vocabulary is ", vocabulary,
            ", expected 1 to 2^30");
    require(max_length >= 1 && max_length <= most, function, "max_length is ", max_length,
            ", expected 1 to 2^30");
    require(num_blocks >= 1 && num_blocks <= most_blocks, function, "num_blocks is ", num_blocks,
            ", expected 1 to 2^16");
    require(is_finite_option(embedding_deviation) && embedding_deviation >= 0, function,
            "embedding_deviation is ", embedding_deviation,
            ", expected a finite number of 0 or more");
    require_attention<T>(function);
    TransformerDecoderOptions full = *this;
    full.block = block.resolved();
    return full;
  }
  /// Those of block n, whose seed is its own.
  TransformerBlockOptions block_options(Index n) const {
    TransformerBlockOptions o = block;
    o.seed = detail::seed_of_block(block.seed, n);
    return o;
  }
  /// Whether what one of them left in a cache or a state fits the other. Of resolved options.
  bool same_shape(const TransformerDecoderOptions& other) const {
    return vocabulary == other.vocabulary && max_length == other.max_length &&
           position_vectors == other.position_vectors && num_blocks == other.num_blocks &&
           window == other.window && first_keys == other.first_keys && scale == other.scale &&
           softcap == other.softcap && block.same_shape(other.block);
  }
  /// The mask of every block.
  template <Scalar T>
  AttentionMask<T> mask() const {
    AttentionMask<T> causal_and_window{causal};
    if (window != 0) causal_and_window.add(Mask::window(window).keeping_first(first_keys));
    return causal_and_window;
  }
  /// What is done to the scores of every block, for forward and for steps.
  template <Scalar T, class Call>
  void change_scores(Call& call) const {
    if (scale) call.scale = static_cast<T>(*scale);
    if (softcap) call.score.softcap = static_cast<T>(*softcap);
  }

 private:
  template <Scalar T>
  void require_attention(std::string_view function) const {
    require(window >= 0, function, "window is ", window, ", expected >= 0");
    require(window == 0 || !position_vectors, function, "window is ", window,
            " and each position has a vector, expected position_vectors = false: a sequence may "
            "outgrow max_length");
    require(first_keys >= 0, function, "first_keys is ", first_keys, ", expected >= 0");
    require(window != 0 || first_keys == 0, function, "first_keys is ", first_keys,
            " and window 0, expected a window beside which they are seen");
    AttentionOptions<T> scores;
    change_scores<T>(scores);
    require_finite_scale(function, scores.scale);
    scores.score.require_softcap(function);
  }
};

/// One call. Each block draws its dropouts by seeds that follow from these and the block's number.
struct TransformerDecoderCall {
  Path path = Path::flash;         // both give the same function
  Dropout weight_dropout = {};     // of the attention weights; none: inference
  Dropout attention_dropout = {};  // of what attention adds
  Dropout hidden_dropout = {};     // between the products of the feed-forward
  Dropout output_dropout = {};     // of what the feed-forward adds
  /// [B + 1], cumulative lengths of sequences that lie one behind the other in tokens [1, N], each
  /// of its own positions; none: a batch.
  LastingSpan<Index> starts = {};

  /// Of block n of such a decoder.
  template <Scalar T>
  TransformerBlockCall<T> block(const TransformerDecoderOptions& decoder, Index n) const {
    const auto of_block = [&](Dropout dropout) {
      dropout.seed = detail::seed_of_block(dropout.seed, n);
      return dropout;
    };
    TransformerBlockCall<T> call;
    call.mask = decoder.mask<T>();
    decoder.change_scores<T>(call);
    call.path = path;
    call.weight_dropout = of_block(weight_dropout);
    call.attention_dropout = of_block(attention_dropout);
    call.hidden_dropout = of_block(hidden_dropout);
    call.output_dropout = of_block(output_dropout);
    call.starts = starts;
    return call;
  }
};

/// What a decoder learns. The table of tokens and the matrices of its blocks are kept as numbers of
/// type W; `Block` differs between weights and gradients.
template <Scalar T, KeptAs<T> W = T, class Block = TransformerBlockParameters<T, W>>
struct TransformerDecoderParameters {
  Tensor<W, 2> token;           // [V, D]; its transpose is the head
  Tensor<T, 2> position;        // [max_length, D]; absent without position_vectors
  std::vector<Block> blocks;    // num_blocks of them
  LayerNormParameters<T> norm;  // of the kind of the blocks' norms; absent with post-LN

  TransformerDecoderParameters() = default;
  /// All 0. The options are resolved ones.
  explicit TransformerDecoderParameters(
      const TransformerDecoderOptions& o,
      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : token({o.vocabulary, o.block.d_model}, memory) {
    if (o.position_vectors) position = Tensor<T, 2>({o.max_length, o.block.d_model}, memory);
    blocks.reserve(static_cast<std::size_t>(o.num_blocks));
    for (Index n = 0; n < o.num_blocks; ++n) blocks.emplace_back(o.block, memory);
    if (!o.block.norm_first) return;
    norm.gamma = Tensor<T, 1>({o.block.d_model}, memory);
    if (o.block.norm == NormKind::layer_norm && o.block.norm_bias) {
      norm.beta = Tensor<T, 1>({o.block.d_model}, memory);
    }
  }

  /// f(name, view) for each that is there: token, position, blocks.0.norm1.gamma ..., norm.gamma,
  /// norm.beta behind `prefix`; those of gradients are called alike. Views are writable where this
  /// is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

  /// Everything to 0, as of gradients between two steps, what `attention.score` of their blocks
  /// views too.
  void zero() {
    for_each([](const std::string&, auto view) { fill(view, T(0)); });
    for (auto& block : blocks) block.zero_scores();
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    detail::call_named(f, prefix + "token", as_view(self.token));
    if (!self.position.absent()) detail::call_named(f, prefix + "position", as_view(self.position));
    for (std::size_t n = 0; n < self.blocks.size(); ++n) {
      self.blocks[n].for_each(f, prefix + "blocks." + std::to_string(n) + ".");
    }
    self.norm.for_each(f, prefix + "norm.");
  }
};

/// Gradients in tensors of the parameters' shapes. A backward call adds to them.
template <Scalar T>
using TransformerDecoderGradients =
    TransformerDecoderParameters<T, T, TransformerBlockGradients<T>>;

/// What a forward call leaves for its backward, owned by the caller; it views nothing else. It can
/// be moved, not copied.
template <Scalar T>
struct TransformerDecoderCache {
  bool filled = false;                           // whether forward has been called with it
  TransformerDecoderOptions module;              // of the decoder that filled it
  Tensor<std::int64_t, 2> tokens;                // [B, L]; a copy
  std::vector<Index> starts;                     // [B + 1]; a copy; none: a batch
  std::vector<Tensor<T, 3>> inputs;              // [B, L, D]; what each block was given
  std::vector<TransformerBlockCache<T>> blocks;  // what each left
  Tensor<T, 3> h;                                // [B, L, D]; what the last block gave
  TransformerHalfCache<T> norm;                  // of h                         pre-LN
  Tensor<T, 3> normed;                           // [B, L, D]                    pre-LN

  /// What the head read.
  const Tensor<T, 3>& head_input() const { return module.block.norm_first ? normed : h; }
};

}  // namespace headwise::inline v0_1
