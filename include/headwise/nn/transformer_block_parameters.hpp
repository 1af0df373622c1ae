// What a TransformerBlock is, what one call of it is asked for, what it learns and what forward
// leaves.
#pragma once

#include "headwise/nn/epsilon.hpp"
#include "headwise/nn/feed_forward_parameters.hpp"
#include "headwise/nn/layer_norm.hpp"
#include "headwise/nn/multi_head_attention_cache.hpp"

namespace headwise::inline v0_1 {

/// How rows are normalised.
enum class NormKind {
  layer_norm,  ///< (x - mean) / sqrt(variance + epsilon) gamma + beta
  rms_norm,    ///< x / sqrt(mean(x^2) + epsilon) gamma
};

/// The shape of a block.
struct TransformerBlockOptions {
  Index d_model = 0;                         // D
  Index num_heads = 1;                       // H
  Index num_kv_heads = 0;                    // G, divides H; H
  Index d_hidden = 0;                        // F; 4 D
  Activation activation = Activation::gelu;  // of the feed-forward
  bool gated = false;                        // its gate; with silu: SwiGLU
  bool norm_first = true;                    // pre-LN; else post-LN
  NormKind norm = NormKind::layer_norm;      // of both norms
  bool attention_bias = true;                // b_Q, b_K, b_V and b_O
  bool feed_forward_bias = true;             // of both its products
  bool norm_bias = true;                     // beta; rms_norm has none
  double norm_epsilon = 1e-5;                // > 0; of qk_norm too
  bool qk_norm = false;                      // rms norm of each head's queries and keys
  bool sinks = false;                        // a learned logit a head, without a key
  bool alibi = false;                        // a learned slope a head, by distance
  Index relative_reach = 0;                  // R, learned biases of distances; 0: none
  std::optional<RotaryOptions> rotary = {};  // positions of queries and keys; {}: none
  Init init = Init::xavier_normal;           // the scale of the weights at the start
  std::uint64_t seed = 0;  // of the weights at the start: modules of one start alike

  /// All of them with every default filled in. Throws ArgumentError, in the words of the module
  /// within, for what makes no block.
  TransformerBlockOptions resolved() const {
    TransformerBlockOptions full = *this;
    detail::require_epsilon<double>("TransformerBlock", "norm_epsilon", norm_epsilon);
    const MultiHeadAttentionOptions within = of_attention().resolved();
    full.num_kv_heads = within.num_kv_heads;
    full.rotary = within.rotary;
    full.d_hidden = feed_forward().resolved().d_hidden;
    return full;
  }
  /// Of the module within. Of resolved options.
  MultiHeadAttentionOptions attention() const {
    MultiHeadAttentionOptions o = of_attention();
    o.d_head = o.d_value = d_model / num_heads;
    o.kdim = o.vdim = d_model;
    return o;
  }
  /// Of the module within. Of resolved options.
  FeedForwardOptions feed_forward() const {
    FeedForwardOptions o;
    o.d_model = d_model;
    o.d_hidden = d_hidden;
    o.activation = activation;
    o.gated = gated;
    o.bias = feed_forward_bias;
    o.init = init;
    o.seed = seed;
    return o;
  }
  /// Whether what one of them left in a cache fits the other. Of resolved options.
  bool same_shape(const TransformerBlockOptions& other) const {
    return attention().same_shape(other.attention()) &&
           feed_forward().same_shape(other.feed_forward()) && norm_first == other.norm_first &&
           norm == other.norm;
  }

 private:
  MultiHeadAttentionOptions of_attention() const {
    MultiHeadAttentionOptions o;
    o.d_model = d_model;
    o.num_heads = num_heads;
    o.num_kv_heads = num_kv_heads;
    o.q_bias = o.k_bias = o.v_bias = o.o_bias = attention_bias;
    o.qk_norm = qk_norm;
    o.qk_norm_epsilon = norm_epsilon;
    o.sinks = sinks;
    o.alibi = alibi;
    o.relative_reach = relative_reach;
    o.rotary = rotary;
    o.init = init;
    o.seed = seed;
    return o;
  }
};

/// One call. Mask, score and starts are viewed: they must outlive the call, and its backward too.
template <Scalar T>
struct TransformerBlockCall {
  AttentionMask<T> mask = {};      // none: every query sees every key
  Path path = Path::flash;         // both give the same function
  std::optional<T> scale = {};     // 1 / sqrt(d_head)
  ScoreOptions<T> score = {};      // softcap, biases by distance, sinks, a function of one's own
  Dropout weight_dropout = {};     // of the attention weights; none: inference
  Dropout attention_dropout = {};  // of what attention adds
  Dropout hidden_dropout = {};     // between the products of the feed-forward
  Dropout output_dropout = {};     // of what the feed-forward adds
  LastingSpan<Index> starts = {};  // [B + 1]; of sequences packed in x [1, N, D]; none: a batch

  /// Of the module within.
  MultiHeadAttentionCall<T> attention() const {
    MultiHeadAttentionCall<T> call{mask, path, scale, weight_dropout, attention_dropout, score};
    call.query_starts = starts;
    return call;
  }
  /// Of the module within.
  FeedForwardCall feed_forward() const { return {hidden_dropout, output_dropout}; }
};

/// What a block learns. The matrices are kept as numbers of type W; `Attention` differs between
/// weights and gradients.
template <Scalar T, KeptAs<T> W = T, class Attention = MultiHeadAttentionParameters<T, W>>
struct TransformerBlockParameters {
  LayerNormParameters<T> norm1;              // beta is absent with rms_norm
  Attention attention;                       // without a norm of its own
  LayerNormParameters<T> norm2;              // as norm1
  FeedForwardParameters<T, W> feed_forward;  // what follows it

  TransformerBlockParameters() = default;
  /// All 0. The options are resolved ones.
  explicit TransformerBlockParameters(
      const TransformerBlockOptions& o,
      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : attention(o.attention(), memory), feed_forward(o.feed_forward(), memory) {
    for (LayerNormParameters<T>* norm : {&norm1, &norm2}) {
      norm->gamma = Tensor<T, 1>({o.d_model}, memory);
      if (o.norm == NormKind::layer_norm && o.norm_bias) {
        norm->beta = Tensor<T, 1>({o.d_model}, memory);
      }
    }
  }

  /// f(name, view) for each that is there: norm1.gamma, norm1.beta, attention.W_Q ..., norm2.gamma,
  /// norm2.beta, feed_forward.W_up ... behind `prefix`; those of gradients are called alike. Views
  /// are writable where this is not const.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") {
    walk(*this, f, prefix);
  }
  /// The same of what is not written to.
  template <class F>
  void for_each(F&& f, const std::string& prefix = "") const {
    walk(*this, f, prefix);
  }

  /// Everything to 0, as of gradients between two steps, what `attention.score` of such views too.
  void zero() {
    for_each([](const std::string&, auto view) { fill(view, T(0)); });
    zero_scores();
  }

  /// Of gradients, what `attention.score` views to 0; else nothing.
  void zero_scores() {
    if constexpr (requires { attention.score; }) attention.score.zero();
  }

 private:
  template <class Self, class F>
  static void walk(Self& self, F& f, const std::string& prefix) {
    self.norm1.for_each(f, prefix + "norm1.");
    self.attention.for_each(f, prefix + "attention.");
    self.norm2.for_each(f, prefix + "norm2.");
    self.feed_forward.for_each(f, prefix + "feed_forward.");
  }
};

/// Gradients in tensors of the parameters' shapes. A backward call adds to them.
template <Scalar T>
using TransformerBlockGradients = TransformerBlockParameters<T, T, MultiHeadAttentionGradients<T>>;

/// What one half of a block keeps: x + branch(norm(x)), or norm(x + branch(x)).
template <Scalar T>
struct TransformerHalfCache {
  ViewedInput<T, 3> norm_input;  // [B, L, D]
  SavedTensor<T, 3> normed;      // [B, L, D]; what the branch reads       pre-LN
  Tensor<T, 3> sum;              // [B, L, D]; what is normalised          post-LN
  Tensor<T, 1> mean;             // [B L]                                  layer_norm
  Tensor<T, 1> rstd;             // [B L]
};

/// What a forward call leaves for its backward, owned by the caller. The input and the mask are
/// viewed, not copied: they must outlive the backward call.
template <Scalar T>
struct TransformerBlockCache {
  /// Not filled.
  TransformerBlockCache() = default;
  /// Moved, not copied: parts of it view others.
  ///@{
  TransformerBlockCache(TransformerBlockCache&&) noexcept = default;
  TransformerBlockCache& operator=(TransformerBlockCache&&) noexcept = default;
  ///@}

  bool filled = false;                   // whether forward has been called with it
  TransformerBlockOptions module;        // of the block that filled it
  Saved saved;                           // what the tensors of SavedTensor are kept as
  ViewedInput<T, 3> x;                   // [B, L, D]
  Tensor<T, 3> x_copy;                   // where its rows lie at no common distance
  TransformerHalfCache<T> first;         // about attention
  MultiHeadAttentionCache<T> attention;  // what attention left
  Tensor<T, 3> h;                        // [B, L, D]; between the halves
  TransformerHalfCache<T> second;        // about the feed-forward
  FeedForwardCache<T> feed_forward;      // what it left
};

}  // namespace headwise::inline v0_1
