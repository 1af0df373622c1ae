// What both attentions take, and the rules that their arguments keep.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "headwise/kernels/kernels.hpp"
#include "headwise/runtime/context.hpp"
#include "headwise/tensor/overlap.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1 {

/// How attention is computed. What it views (masks) must outlive the call.
template <Scalar T>
struct AttentionOptions {
  AttentionMask<T> mask = {};   // none: every query sees every key
  std::optional<T> scale = {};  // what q k^T is multiplied by; 1 / sqrt(d) if not given
  Dropout dropout = {};         // of the weights

  /// Throws ArgumentError unless scale and dropout are in range.
  void require_in_range(std::string_view function) const {
    require(!scale || is_finite_option(*scale), function,
            "scale is not finite, expected a number, or none for 1 / sqrt(d)");
    dropout.require_valid(function);
  }
};

/// Queries [B, H, L, d], keys [B, G, S, d] and values [B, G, S, dv], as a backward call reads them.
template <Scalar T>
struct AttentionInputs {
  In<T, 4> q, k, v;  // [B, H, L, d], [B, G, S, d], [B, G, S, dv]
};

/// Their gradients, of the same shapes; overwritten.
template <Scalar T>
struct AttentionGradients {
  Out<T, 4> dq, dk, dv;  // [B, H, L, d], [B, G, S, d], [B, G, S, dv]
};

/// The letters of an attention: queries [B, H, L, d], keys [B, G, S, d], values [B, G, S, dv].
struct AttentionSizes {
  Index B, H, G, L, S, d, dv;  // batch, heads, key/value heads, queries, keys, widths

  /// Query heads that share a key/value head.
  Index group() const { return G == 0 ? 0 : H / G; }
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Checks queries, keys, values and options, and names their sizes.
template <class T>
AttentionSizes require_attention(std::string_view function, const In<T, 4>& q, const In<T, 4>& k,
                                 const In<T, 4>& v, const AttentionOptions<T>& options) {
  const AttentionSizes sizes{q.extent(0), q.extent(1), k.extent(1), q.extent(2),
                             k.extent(2), q.extent(3), v.extent(3)};
  const auto [B, H, G, L, S, d, dv] = sizes;
  require_countable(function, "q", q);
  require_countable(function, "k", k);
  require_countable(function, "v", v);
  require_shape(function, "k", k, Shape{B, G, S, d},
                [&] { return "batch and head width of q " + q.shape().format(); });
  require_shape(function, "v", v, Shape{B, G, S, dv},
                [&] { return "batch, heads and length of k " + k.shape().format(); });
  if (G == 0 ? H != 0 : H % G != 0) {
    raise<ShapeError>(std::string(function) + ": q has " + std::to_string(H) + " heads, k has " +
                      std::to_string(G) + ", expected a divisor of the former");
  }
  options.mask.require_fits(function, B, H, L, S);
  options.require_in_range(function);
  return sizes;
}

/// Throws ShapeError where an output shares memory with a mask.
template <class T>
void require_apart_from_masks(std::string_view function, const Footprint& out,
                              const AttentionMask<T>& mask) {
  for (const BiasMask<T>& bias : mask.biases()) {
    require_apart(function, out, {{"Mask::bias", bias.values}});
  }
  for (const PairMask& pairs : mask.pair_masks()) {
    require_apart(function, out, {{pairs.keep ? "Mask::keep" : "Mask::drop", pairs.pairs}});
  }
  const auto& [ids, narrow_ids] = mask.documents();
  if (!ids.absent()) require_apart(function, out, {{"Mask::documents", ids}});
  if (!narrow_ids.absent()) require_apart(function, out, {{"Mask::documents", narrow_ids}});
  if (!mask.has_key_lengths()) return;
  const std::span<const Index> lengths = mask.key_lengths();
  require_apart(function, out,
                {{"Mask::key_lengths",
                  In<Index, 1>(lengths.data(), Shape{static_cast<Index>(lengths.size())})}});
}

HEADWISE_STRICT_MATH_BEGIN

template <class T>
kernels::AttentionHead<T> attention_head(const AttentionSizes& sizes, const In<T, 4>& q,
                                         const In<T, 4>& k, const In<T, 4>& v,
                                         const AttentionOptions<T>& options, Index b, Index h) {
  using std::sqrt;
  const auto [B, H, G, L, S, d, dv] = sizes;
  const Index g = h / sizes.group();
  const T scale = options.scale ? *options.scale
                                : T(1) / T(sqrt(T(static_cast<double>(std::max<Index>(d, 1)))));
  return {kernels::matrix(q, b, h),
          kernels::matrix(k, b, g),
          kernels::matrix(v, b, g),
          L,
          S,
          d,
          dv,
          scale,
          HeadVisibility<T>(options.mask, b, h, L, S),
          DropoutMask(options.dropout, DropoutStream::weights),
          b,
          h};
}

HEADWISE_STRICT_MATH_END

/// The pairs that causality, window, key lengths and documents leave to a head.
template <class T>
std::int64_t pairs_of(const HeadVisibility<T>& visible, Index L) {
  std::int64_t pairs = 0;
  for (Index i = 0; i < L; ++i) pairs += visible.count(i);
  return pairs;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
