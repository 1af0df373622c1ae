// Attention of one head with its weights kept: the readable specification, matrix by matrix. The
// step numbers are those of docs/derivations/attention_backward.md.
#pragma once

#include "headwise/kernels/gemm.hpp"
#include "headwise/kernels/softmax.hpp"
#include "headwise/runtime/workspace.hpp"
#include "headwise/score/dropout_mask.hpp"
#include "headwise/score/visibility.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

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
};

/// Operations that a pair costs on top of its softmax: one a bias, and `a_dropout` with dropout.
template <class T>
constexpr std::int64_t score_extras(const AttentionHead<T>& head, std::int64_t a_dropout) {
  return head.visibility.bias_count() + (head.dropout.active() ? a_dropout : 0);
}

/// Scratch, in elements, of one head: a packed block, and [L, S] for dropped weights.
template <class T, class Isa>
constexpr Index attention_forward_scratch(Index L, Index S, bool dropout) {
  return padded<T>(GemmTile<T, Isa>::scratch) + (dropout ? padded<T>(L * S) : 0);
}
/// The same for backward, with [L, S] for the gradient of the scores besides.
template <class T, class Isa>
constexpr Index attention_backward_scratch(Index L, Index S, bool dropout) {
  return padded<T>(GemmTile<T, Isa>::scratch) + padded<T>(L * S) * (dropout ? 2 : 1);
}

/// Step 4d: dropped [L, S], dense, = weights where dropout keeps them, times 1 / (1 - rate).
template <class T>
void drop_weights(const AttentionHead<T>& head, Matrix<const T> weights, T* dropped) {
  for (Index i = 0; i < head.L; ++i, dropped += head.S) {
    head.dropout.row(head.b, head.h, i, 0, head.S, T(head.dropout.keep_factor()), dropped);
    for (Index j = 0; j < head.S; ++j) dropped[j] = dropped[j] * weights(i, j);
  }
}

/// Steps 4a and 4b: scores [L, S] = scale q k^T + bias. Masked pairs are computed and not read.
template <class T, class Isa>
void score_head(const AttentionHead<T>& head, Matrix<T> scores, T* scratch) {
  gemm<T, Isa>(head.q, head.k.transposed(), scores, {head.L, head.S, head.d}, {.alpha = head.scale},
               scratch);
  if (head.visibility.bias_count() == 0) return;
  for (Index i = 0; i < head.L; ++i) {
    for (Index j = 0; j < head.S; ++j) {
      if (head.visibility.visible(i, j)) scores(i, j) = scores(i, j) + head.visibility.bias(i, j);
    }
  }
}

/// weights [L, S] and o [L, dv] are overwritten.
template <class T, class Isa>
void attention_head_forward(const AttentionHead<T>& head, Matrix<T> weights, Matrix<T> o,
                            Scratch<T> memory) {
  T* packed = memory.take(GemmTile<T, Isa>::scratch);
  const auto sees = [&](Index i, Index j) { return head.visibility.visible(i, j); };
  // 4a s = scale q k^T,  4b bias
  score_head<T, Isa>(head, weights, packed);
  // 4c p = softmax of the visible s
  for (Index i = 0; i < head.L; ++i) {
    softmax_row(row(weights, i), head.S, [&](Index j) { return sees(i, j); });
  }
  // 4d dropout
  Matrix<const T> p = weights;
  if (head.dropout.active()) {
    T* dropped = memory.take(head.L * head.S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, head.S, 1};
  }
  // 4e o = p v
  gemm_visible<T, Isa>(p, head.v, o, {head.L, head.dv, head.S}, {}, packed,
                       VisiblePairs{head.visibility.sees_all(), sees});
}

/// Where the gradients of a head go: dq [L, d] is overwritten; dk [S, d] and dv [S, dv] too, or
/// added to where another head of the same group was there before.
template <class T>
struct HeadGradients {
  Matrix<T> dq, dk, dv;
  bool accumulate;
};

template <class T, class Isa>
void attention_head_backward(const AttentionHead<T>& head, Matrix<const T> d_o,
                             Matrix<const T> weights, const HeadGradients<T>& to,
                             Scratch<T> memory) {
  const auto& [q, k, v, L, S, d, dv, scale, visibility, dropout, b, h] = head;
  T* packed = memory.take(GemmTile<T, Isa>::scratch);
  const Matrix<T> ds{memory.take(L * S), S, 1};
  const bool all = visibility.sees_all();
  const VisiblePairs row_sees{all, [&](Index i, Index j) { return head.visibility.visible(i, j); }};
  const VisiblePairs seen_by{all, [&](Index j, Index i) { return head.visibility.visible(i, j); }};

  // 4e dp = d_o v^T,  dv = p^T d_o
  gemm<T, Isa>(d_o, v.transposed(), ds, {L, S, dv}, {}, packed);
  Matrix<const T> p = weights;
  if (dropout.active()) {
    T* dropped = memory.take(L * S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, S, 1};
  }
  gemm_visible<T, Isa>(p.transposed(), d_o, to.dv, {S, dv, L}, {.accumulate = to.accumulate},
                       packed, seen_by);
  for (Index i = 0; i < L; ++i) {
    // 4d dp where dropout kept the weight, 0 elsewhere
    if (dropout.active()) {
      const T factor = T(dropout.keep_factor());
      for (Index j = 0; j < S; ++j) {
        ds(i, j) = dropout.kept(b, h, i, j) ? ds(i, j) * factor : T(0);
      }
    }
    // 4c ds = p (dp - rowsum(dp p)),  4b 0 where hidden,  4a times scale
    softmax_backward_row<T>(row(ds, i), row(weights, i), row(ds, i), S,
                            [&](Index j) { return row_sees.sees(i, j); });
    for (Index j = 0; j < S; ++j) ds(i, j) = scale * ds(i, j);
  }
  // 4a dq = ds k,  dk = ds^T q
  gemm_visible<T, Isa>(ds, k, to.dq, {L, d, S}, {}, packed, row_sees);
  gemm_visible<T, Isa>(Matrix<const T>(ds).transposed(), q, to.dk, {S, d, L},
                       {.accumulate = to.accumulate}, packed, seen_by);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
