// What kernels are called with: plain data that looks the same from every instruction set.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "headwise/kernels/matrix.hpp"
#include "headwise/score/dropout_mask.hpp"
#include "headwise/score/head_score.hpp"
#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/transposed_keys.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// Of a product: rows of the result, columns of the result, inner length.
struct Extents {
  Index M, N, K;
};

/// What happens to a sum before it is stored: c = alpha sum + bias, or c = c + alpha sum.
template <class T>
struct Epilogue {
  T alpha = T(1);
  const T* bias = nullptr;  // [N], dense; only where c is overwritten
  bool accumulate = false;
};

/// Products of few rows, which read the right factor as it lies.
struct Thin {
  static constexpr Index rows = 4;
  static constexpr Index sums = 4096;             // elements, in the first cache
  static constexpr Index bytes = Index{1} << 20;  // of a right factor of T, at least
};

/// What one head of one batch element attends with, on either path.
template <class T>
struct AttentionHead {
  Matrix<const T> q;  // [L, d]
  Matrix<const T> k;  // [S, d]
  Matrix<const T> v;  // [S, dv]
  Index L, S, d, dv;
  T scale;
  HeadVisibility<T> visibility;
  DropoutMask dropout;
  Index b, h;  // where the head stands: what its dropout mask is drawn from
  HeadScore<T> score = {};
  StoredRows stored_q = {}, stored_k = {}, stored_v = {};  // of flash attention in float alone
  Index key_blocks = 0;  // from block to block of TransposedKeys; 0: k are rows. Forward alone

  /// Keys and values as they are stored; of TransposedKeys those of the first block.
  ///@{
  template <class U>
  Matrix<const U> keys() const {
    return rows_as<U>(k, stored_k.rows);
  }
  template <class U>
  Matrix<const U> values() const {
    return rows_as<U>(v, stored_v.rows);
  }
  ///@}

  /// The keys from j on: of transposed ones j begins a block, and they end with it.
  template <class U = T>
  Matrix<const U> keys_from(Index j) const {
    const Matrix<const U> first = keys<U>();
    if (key_blocks == 0) return first.from(j, 0);
    return {first.data + j / TransposedKeys<U>::block * key_blocks, first.row, first.column};
  }

  /// Whether scores are scale q k^T and nothing else stands beside them.
  HEADWISE_INLINE bool plain_scores() const {
    return visibility.bias_count() == 0 && !score.changes() && !score.has_sink;
  }
};

/// Where what flows into the scores of a head is added; null for what nobody asks.
template <class T>
struct ScoreFlows {
  T* scale = nullptr;    // one number: what flows into the scale
  T* slope = nullptr;    // one number: into the slope of ALiBi
  Row<T> table = {};     // [2 reach + 1]: into the biases by distance
  Row<T> sink = {};      // one number: into the sink's logit
  Row<T> function = {};  // [P]: into the parameters of the user's function
  // [L, S] each, steps 0 where shared:
  Matrix<T> biases[std::size_t{AttentionMask<T>::max_terms}] = {};

  bool by_distance() const { return slope != nullptr || table.data != nullptr; }
  /// Whether what flows into a score is added to something, pair by pair.
  bool of_pairs() const {
    bool asked = by_distance();
    for (const Matrix<T>& bias : biases) asked = asked || bias.data != nullptr;
    return asked;
  }
  /// Whether anybody asks.
  bool any() const {
    return of_pairs() || scale != nullptr || sink.data != nullptr || function.data != nullptr;
  }
};

/// Operations that a pair costs forward on top of its softmax: one a bias, one for dropout, and
/// what changes its score.
template <class T>
constexpr std::int64_t forward_extras(const AttentionHead<T>& head) {
  return head.visibility.bias_count() + head.score.operations() + (head.dropout.active() ? 1 : 0);
}

/// Where the gradients of a head go: dq [L, d] is overwritten; dk [S, d] and dv [S, dv] too, or
/// added to where another head of the same group was there before.
template <class T>
struct HeadGradients {
  Matrix<T> dq, dk, dv;
  bool accumulate;
  ScoreFlows<T> flows = {};  // added to
};

/// Keys first ... first + count - 1 and their values, which are read before long.
template <class T>
struct KeysAhead {
  Matrix<const T> k = {}, v = {};           // [S, d], [S, dv]
  StoredRows stored_k = {}, stored_v = {};  // in their place
  Index first = 0, count = 0;
};

/// A head, what its forward pass left, and where the gradient of its queries is summed up.
template <class T>
struct FlashHead {
  AttentionHead<T> forward;
  Matrix<const T> o;                          // [L, dv]
  Matrix<const T> d_o;                        // [L, dv]
  Matrix<const T> lse;                        // [L, 2]
  const T* delta;                             // [L], rowsum(d_o * o)
  Matrix<T> dq;                               // [L, d], added to: each block of keys adds its part
  ScoreFlows<T> flows = {};                   // added to, but for the sink
  StoredRows stored_o = {}, stored_d_o = {};  // in place of o and d_o
  KeysAhead<T> next = {};                     // that come behind its last tile
};

/// The same of flash attention backward, which forms scores again: two for dropout, and the way
/// back through what changed the scores.
template <class T>
constexpr std::int64_t backward_extras(const AttentionHead<T>& head) {
  return forward_extras(head) + (head.dropout.active() ? 1 : 0) +
         (head.score.has_softcap() ? 4 : 0);
}

/// And of the readable backward: where scores are needed again they are formed without their scale,
/// capped with it, and the cap's slope taken.
template <class T>
constexpr std::int64_t readable_backward_extras(const AttentionHead<T>& head) {
  return (head.dropout.active() ? 2 : 0) + (head.score.has_slope() ? 2 * head.d : 0) +
         (head.score.has_softcap() ? 8 : 0);
}

/// What a task of attention has done: the pairs that causality, window and lengths leave to its
/// queries, and the multiply-adds and score operations that ran, padding and masked pairs too: less
/// than the pairs' where keep and drop masks hide whole tiles, which are skipped.
struct TileWork {
  std::int64_t pairs = 0;
  std::int64_t executed_flops = 0;

  TileWork& operator+=(const TileWork& more) {
    pairs += more.pairs;
    executed_flops += more.executed_flops;
    return *this;
  }
};

/// Layer normalisation of rows; gamma, beta, mean and rstd may be null. Of rms norm, beta and mean
/// are.
template <class T>
struct LayerNormRows {
  Matrix<const T> x;  // [N, D]
  Index D;
  Row<const T> gamma, beta;  // [D]
  T epsilon;
  Matrix<T> y;        // [N, D]
  Row<T> mean, rstd;  // [N]
};

/// The gradients of a norm of rows. gamma, dgamma and dbeta may be null; of rms norm, mean and
/// dbeta are.
template <class T>
struct LayerNormBackwardRows {
  Matrix<const T> dy, x;  // [N, D]
  Index N, D;
  Row<const T> gamma;       // [D]
  Row<const T> mean, rstd;  // [N]
  Matrix<T> dx;             // [N, D], overwritten
  Row<T> dgamma, dbeta;     // [D], added to
};

/// How rows of d elements are rotated, each by a row of the tables.
template <class T>
struct RotaryRows {
  Matrix<const T> cosines, sines;  // [rows, width / 2]
  Index d, width;                  // elements of a row, and the first of them, which rotate
  bool interleaved;                // pairs are neighbours; else one half of the width and the other
  bool transposed;                 // the other way round
};

/// Whether scores may be multiplied by a scale behind their differences: by a power of 2, which
/// changes no digit, from 2^-64 to 2^64, so that a difference that overflows before is one that
/// weighs nothing. From its bits, as a call of frexp costs a kernel what one of HeadScore's
/// predicates would.
template <class T>
HEADWISE_INLINE bool may_scale_differences(const T& x) {
  if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
    using Limits = std::numeric_limits<T>;
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    constexpr Bits fractions = Bits{1} << (Limits::digits - 1);
    const Bits bits = std::bit_cast<Bits>(x), exponent = bits / fractions;  // behind its sign
    constexpr Bits one = Limits::max_exponent - 1, most = 64;
    return bits % fractions == 0 && exponent >= one - most && exponent <= one + most;
  }
  return false;
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
