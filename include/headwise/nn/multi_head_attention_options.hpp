// What a MultiHeadAttention is, and what one call of it is asked for.
#pragma once

#include <optional>

#include "headwise/nn/epsilon.hpp"
#include "headwise/nn/init.hpp"
#include "headwise/ops/attention_options.hpp"
#include "headwise/ops/rotary_table.hpp"
#include "headwise/runtime/path.hpp"

namespace headwise::inline v0_1 {

/// The shape of a module. A width of 0 stands for the default, in brackets beside it.
struct MultiHeadAttentionOptions {
  Index d_model = 0;        // D, width of queries and output
  Index num_heads = 1;      // H
  Index num_kv_heads = 0;   // G, a divisor of H (H); 1 is multi-query, more is grouped-query
  Index d_head = 0;         // d (D / H, where H divides D)
  Index d_value = 0;        // dv (d)
  Index kdim = 0;           // width of the keys' input (D)
  Index vdim = 0;           // width of the values' input (D)
  bool q_bias = false;      // b_Q [H d]
  bool k_bias = false;      // b_K [G d]
  bool v_bias = false;      // b_V [G dv]
  bool o_bias = true;       // b_O [D]
  bool layer_norm = false;  // of the query input, and with self-attention of keys and values too
  bool layer_norm_affine = true;     // gamma and beta [D]
  double layer_norm_epsilon = 1e-5;  // > 0
  bool qk_norm = false;              // rms norm of each head's queries and keys, before rotary
  bool qk_norm_affine = true;        // gamma_Q and gamma_K [d], each for all heads
  double qk_norm_epsilon = 1e-6;     // > 0
  // What is done to scores and learned, for each head:
  bool sinks = false;        // a logit that takes weight and has no value
  bool alibi = false;        // a slope by distance, at the start that of ALiBi's paper
  Index relative_reach = 0;  // R, a bias for each distance from -R to R; 0: none
  /// How queries and keys are turned by their positions, from 0 and the offset on; {}: they are
  /// not.
  std::optional<RotaryOptions> rotary = {};
  Init init = Init::xavier_normal;  // the scale of the weights at the start
  std::uint64_t seed = 0;           // of the weights at the start: modules of one start alike

  /// All of them with every default filled in, rotary frequencies as numbers of their own. Throws
  /// ArgumentError, or ShapeError for rotary.frequencies, for what makes no module; std::bad_alloc.
  MultiHeadAttentionOptions resolved() const {
    MultiHeadAttentionOptions full = *this;
    const auto name = "MultiHeadAttention";
    const auto require_width = [&](const char* option, Index width, Index least) {
      constexpr Index widest = Index{1} << 30;  // products of two widths can still be counted
      require(width >= least && width <= widest, name, option, " is ", width, ", expected ", least,
              " to 2^30");
    };
    require_width("d_model", d_model, 1);
    require_width("num_heads", num_heads, 1);
    require_width("num_kv_heads", num_kv_heads, 0);
    require_width("d_head", d_head, 0);
    require_width("d_value", d_value, 0);
    require_width("kdim", kdim, 0);
    require_width("vdim", vdim, 0);
    require_width("relative_reach", relative_reach, 0);
    if (d_head == 0) {
      require(d_model % num_heads == 0, name, "num_heads is ", num_heads,
              ", expected a divisor of d_model ", d_model, " (or give d_head)");
      full.d_head = d_model / num_heads;
    }
    if (num_kv_heads == 0) full.num_kv_heads = num_heads;
    require(num_heads % full.num_kv_heads == 0, name, "num_kv_heads is ", num_kv_heads,
            ", expected a divisor of num_heads ", num_heads);
    if (d_value == 0) full.d_value = full.d_head;
    if (kdim == 0) full.kdim = d_model;
    if (vdim == 0) full.vdim = d_model;
    detail::require_epsilon<double>(name, "layer_norm_epsilon", layer_norm_epsilon);
    detail::require_epsilon<double>(name, "qk_norm_epsilon", qk_norm_epsilon);
    require_width("num_heads times d_head", num_heads * full.d_head, 1);
    require_width("num_heads times d_value", num_heads * full.d_value, 1);
    if (rotary) {
      detail::require_rotary("MultiHeadAttention: rotary", *rotary, full.d_head);
      full.rotary->frequencies = rotary->frequencies.owned();
    }
    return full;
  }

  // Of resolved options:
  Index q_width() const { return num_heads * d_head; }         // H d
  Index k_width() const { return num_kv_heads * d_head; }      // G d
  Index v_width() const { return num_kv_heads * d_value; }     // G dv
  Index context_width() const { return num_heads * d_value; }  // H dv
  /// Whether what one of them left in a cache fits the other, positions too. Of resolved options.
  bool same_shape(const MultiHeadAttentionOptions& other) const {
    return d_model == other.d_model && num_heads == other.num_heads &&
           num_kv_heads == other.num_kv_heads && d_head == other.d_head &&
           d_value == other.d_value && kdim == other.kdim && vdim == other.vdim &&
           layer_norm == other.layer_norm && qk_norm == other.qk_norm && sinks == other.sinks &&
           alibi == other.alibi && relative_reach == other.relative_reach &&
           rotary.has_value() == other.rotary.has_value() &&
           (!rotary || rotary->rotates_like(*other.rotary, d_head));
  }
  /// Whether queries, keys and values are projected by one matrix.
  bool fused() const { return kdim == d_model && vdim == d_model; }
};

/// One call. Masks, what changes scores and starts are viewed: they must outlive the call, and its
/// backward too.
///
/// Sequences of different lengths may lie one behind the other, without padding: queries [1, N, D]
/// with the cumulative lengths of the sequences, and keys and values of their own likewise. Each
/// attends within itself; positions, masks and dropout of the weights count as in a batch of them.
/// Path::flash alone does so.
template <Scalar T>
struct MultiHeadAttentionCall {
  AttentionMask<T> mask = {};            // none: every query sees every key
  Path path = Path::flash;               // both give the same function
  std::optional<T> scale = {};           // 1 / sqrt(d_head)
  Dropout weight_dropout = {};           // of the attention weights; none: inference
  Dropout output_dropout = {};           // of the output, after its bias
  ScoreOptions<T> score = {};            // softcap, biases by distance, sinks
  Position origin = {};                  // where rotary and functions count from; weight_dropout
                                         // from its batch and head alone
  LastingSpan<Index> query_starts = {};  // [B + 1]; of packed sequences; none: a batch
  LastingSpan<Index> key_starts = {};    // [B + 1]; of keys that are not the queries' input

  /// Whether the sequences lie one behind the other.
  bool packed() const { return !query_starts.empty(); }
  /// The part of it that concerns attention alone.
  AttentionOptions<T> attention() const { return {mask, scale, weight_dropout, score, origin}; }
};

}  // namespace headwise::inline v0_1
