// What both attentions take, and the rules that their arguments keep.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "headwise/kernels/kernels.hpp"
#include "headwise/ops/score_options.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1 {

/// Throws ArgumentError unless a scale is finite, or there is none.
template <Scalar T>
void require_finite_scale(std::string_view caller, const std::optional<T>& scale) {
  require(!scale || is_finite_option(*scale), caller, "scale is ",
          shown_option(scale.value_or(T(0))),
          ", expected a finite number, or none for 1 / sqrt(d)");
}

/// How attention is computed. What it views must outlive the call.
template <Scalar T>
struct AttentionOptions {
  AttentionMask<T> mask = {};   // none: every query sees every key
  std::optional<T> scale = {};  // what q k^T is multiplied by; 1 / sqrt(d) if not given
  Dropout dropout = {};         // of the weights
  ScoreOptions<T> score = {};   // softcap, biases by distance, sinks
  /// From where functions of pairs and dropout count: the place that the call's first batch
  /// element, head, query and key have in a whole of which the call is a part.
  Position origin = {};
  /// Keys that the whole has and the call lacks in its midst, as a cache with a window does. Biases
  /// by distance and functions of pairs count them; other masks go by the keys that are there. For
  /// forward calls without dropout.
  KeyGap gap = {};

  static constexpr Index farthest = Index{1} << 62;  // that a part may be from the whole's first

  /// Throws ArgumentError unless scale, softcap, dropout and origin are in range.
  void require_in_range(std::string_view function) const {
    require_finite_scale(function, scale);
    score.require_softcap(function);
    dropout.require_valid(function);
    for (const Index first : {origin.batch, origin.head, origin.query, origin.key}) {
      require(first >= 0 && first <= farthest, function, "origin holds ", first,
              ", expected 0 to 2^62");
    }
    require(!dropout.active() || (origin.query == 0 && origin.key == 0), function,
            "origin moves queries or keys, expected 0 with dropout of the weights: its masks count "
            "those of the call");
  }
  /// Throws ArgumentError unless the gap is in range and all that is asked for goes with one.
  void require_gap(std::string_view function) const {
    require(gap.at >= 0 && gap.at <= farthest && gap.at % KeyGap::block == 0, function,
            "gap.at is ", gap.at, ", expected a multiple of ", KeyGap::block, " from 0 to 2^62");
    require(gap.size >= 0 && gap.size <= farthest - origin.key, function, "gap.size is ", gap.size,
            ", expected 0 to ", farthest - origin.key, " (2^62 - origin.key)");
    require(gap.size == 0 || !dropout.active(), function,
            "gap lacks keys, expected none with dropout of the weights: its masks count those of "
            "the call");
  }
  /// Throws ArgumentError where keys are lacking: backward and packed sequences know no gap.
  void require_no_gap(std::string_view function) const {
    require(gap.size == 0, function, "gap lacks ", gap.size,
            " keys, expected none: it is for forward calls of batches");
  }
};

/// Queries [B, H, L, d], keys [B, G, S, d] and values [B, G, S, dv], as a backward call reads them.
template <class T>
struct AttentionInputs {
  In<T, 4> q, k, v;  // [B, H, L, d], [B, G, S, d], [B, G, S, dv]
};

/// The gradients of queries, keys and values, of the same shapes, stored as U; overwritten. Beside
/// them those of what changes scores.
template <Scalar T, class U = T>
struct AttentionGradients {
  Out<U, 4> dq, dk, dv;          // [B, H, L, d], [B, G, S, d], [B, G, S, dv]
  ScoreGradients<T> score = {};  // of what changes scores
};

/// The letters of an attention: queries [B, H, L, d], keys [B, G, S, d], values [B, G, S, dv].
struct AttentionSizes {
  Index B, H, G, L, S, d, dv;  // batch, heads, key/value heads, queries, keys, widths

  /// Query heads that share a key/value head.
  Index group() const { return G == 0 ? 0 : H / G; }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Multiply-adds of forward, were all pairs visible.
inline double multiply_adds(const AttentionSizes& sizes) {
  const auto& [B, H, G, L, S, d, dv] = sizes;
  return static_cast<double>(B) * static_cast<double>(H) * static_cast<double>(L) *
         static_cast<double>(S) * static_cast<double>(d + dv);
}

/// Throws ShapeError unless H query heads share G of keys evenly.
inline void require_groups(std::string_view function, Index H, Index G) {
  if (G == 0 ? H == 0 : H % G == 0) return;
  raise<ShapeError>(function, ": q has ", H, " heads, k has ", G,
                    ", expected a divisor of the former");
}

/// Checks queries, keys, values and options, and names their sizes.
template <class T, class Q, class U>
AttentionSizes require_attention(std::string_view function, const In<Q, 4>& q, const In<U, 4>& k,
                                 const In<U, 4>& v, const AttentionOptions<T>& options) {
  const AttentionSizes sizes{q.extent(0), q.extent(1), k.extent(1), q.extent(2),
                             k.extent(2), q.extent(3), v.extent(3)};
  const auto& [B, H, G, L, S, d, dv] = sizes;
  require_countable(function, "q", q);
  require_countable(function, "k", k);
  require_countable(function, "v", v);
  require_shape(function, "k", k, Shape{B, G, S, d}, "batch and head width of q ", q.shape());
  require_shape(function, "v", v, Shape{B, G, S, dv}, "batch, heads and length of k ", k.shape());
  require_groups(function, H, G);
  options.mask.require_fits(function, B, H, L, S);
  options.require_in_range(function);
  options.require_gap(function);
  options.score.require_heads(function, H);
  return sizes;
}

/// Throws ShapeError where an output shares memory with what the options view.
template <class T>
void require_apart_from_options(std::string_view function, const Footprint& out,
                                const AttentionOptions<T>& options) {
  require_apart(function, out,
                {{"alibi_slopes", options.score.alibi_slopes},
                 {"relative_bias", options.score.relative_bias},
                 {"sinks", options.score.sinks},
                 {"the score function's parameters", options.score.function.numbers()}});
  const AttentionMask<T>& mask = options.mask;
  for (const BiasMask<T>& bias : mask.biases()) {
    require_apart(function, out, {{"Mask::bias", bias.values}});
  }
  for (const PairMask& pairs : mask.pair_masks()) {
    require_apart(function, out, {{pairs.name, pairs.pairs}});
  }
  const Documents& of = mask.documents();
  if (!of.ids.absent()) require_apart(function, out, {{"Mask::documents", of.ids}});
  if (!of.narrow_ids.absent()) require_apart(function, out, {{"Mask::documents", of.narrow_ids}});
  if (!mask.has_key_lengths()) return;
  const std::span<const Index> lengths = mask.key_lengths();
  require_apart(function, out,
                {{"Mask::key_lengths",
                  In<Index, 1>(lengths.data(), Shape{static_cast<Index>(lengths.size())})}});
}

HEADWISE_STRICT_MATH_BEGIN

/// Head h of batch element b.
template <class T>
kernels::AttentionHead<T> attention_head(const AttentionSizes& sizes, const In<T, 4>& q,
                                         const In<T, 4>& k, const In<T, 4>& v,
                                         const AttentionOptions<T>& options, Index b, Index h) {
  using std::sqrt;
  const auto& [B, H, G, L, S, d, dv] = sizes;
  const Index g = h / sizes.group();
  const Position first = options.origin.of_head(b, h);
  const T scale = options.scale ? *options.scale
                                : T(1) / T(sqrt(T(static_cast<double>(std::max<Index>(d, 1)))));
  return {
      .q = kernels::matrix(q, b, h),
      .k = kernels::matrix(k, b, g),
      .v = kernels::matrix(v, b, g),
      .L = L,
      .S = S,
      .d = d,
      .dv = dv,
      .scale = scale,
      .visibility = HeadVisibility<T>(options.mask, b, h, L, S, options.origin, options.gap),
      .dropout = DropoutMask(options.dropout, DropoutStream::weights),
      .b = first.batch,
      .h = first.head,
      .score = head_score(options.score, first, options.gap, h, L, S),
  };
}

/// Head h's rows of batch element b, as they are stored.
template <NarrowFloat U>
kernels::StoredRows stored_head(const In<U, 4>& x, Index b, Index h) {
  return {stored_as<U>, kernels::StoredMatrix::of(kernels::matrix(x, b, h))};
}

/// The same of keys and values of 16 bits.
template <class T, NarrowFloat U>
kernels::AttentionHead<T> attention_head(const AttentionSizes& sizes, const In<T, 4>& q,
                                         const In<U, 4>& k, const In<U, 4>& v,
                                         const AttentionOptions<T>& options, Index b, Index h) {
  auto head = attention_head<T>(sizes, q, In<T, 4>{}, In<T, 4>{}, options, b, h);
  const Index kv_head = h / sizes.group();
  head.stored_k = stored_head(k, b, kv_head);
  head.stored_v = stored_head(v, b, kv_head);
  return head;
}
/// And of queries of 16 bits.
template <class T, NarrowFloat U>
kernels::AttentionHead<T> attention_head(const AttentionSizes& sizes, const In<U, 4>& q,
                                         const In<U, 4>& k, const In<U, 4>& v,
                                         const AttentionOptions<T>& options, Index b, Index h) {
  auto head = attention_head<T>(sizes, In<T, 4>{}, k, v, options, b, h);
  head.stored_q = stored_head(q, b, h);
  return head;
}

HEADWISE_STRICT_MATH_END

/// The pairs that are within the bounds of a head's masks: what HeadVisibility::count counts.
template <class T>
std::int64_t pairs_of(const HeadVisibility<T>& visible, Index L) {
  std::int64_t pairs = 0;
  for (Index i = 0; i < L; ++i) pairs += visible.count(i);
  return pairs;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
