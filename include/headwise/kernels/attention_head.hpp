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
  HeadVisibility<T> visible;
  DropoutMask dropout;
  Index b, h;  // where the head stands: what its dropout mask is drawn from
};

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
  gemm<T, Isa>(head.q, head.k.transposed(), scores, head.L, head.S, head.d, {.alpha = head.scale},
               scratch);
  if (!head.visible.has_bias()) return;
  for (Index i = 0; i < head.L; ++i) {
    for (Index j = 0; j < head.S; ++j) {
      if (head.visible.visible(i, j)) scores(i, j) = scores(i, j) + head.visible.bias(i, j);
    }
  }
}

/// weights [L, S] and o [L, dv] are overwritten.
template <class T, class Isa>
void attention_head_forward(const AttentionHead<T>& head, Matrix<T> weights, Matrix<T> o,
                            Scratch<T> memory) {
  T* packed = memory.take(GemmTile<T, Isa>::scratch);
  // 4a s = scale q k^T    4b bias
  score_head<T, Isa>(head, weights, packed);
  // 4c p = softmax of the visible s
  for (Index i = 0; i < head.L; ++i) {
    softmax_row(&weights.data[i * weights.row], weights.column, head.S,
                [&](Index j) { return head.visible.visible(i, j); });
  }
  // 4d dropout
  Matrix<const T> p = weights;
  if (head.dropout.active()) {
    T* dropped = memory.take(head.L * head.S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, head.S, 1};
  }
  // 4e o = p v
  gemm_visible<T, Isa>(p, head.v, o, head.L, head.dv, head.S, {}, packed, head.visible.sees_all(),
                       [&](Index i, Index j) { return head.visible.visible(i, j); });
}

/// dq [L, d] is overwritten; dk [S, d] and dv [S, dv] too, or added to where `accumulate` says that
/// another head of the same group was there before.
template <class T, class Isa>
void attention_head_backward(const AttentionHead<T>& head, Matrix<const T> d_o,
                             Matrix<const T> weights, Matrix<T> dq, Matrix<T> dk, Matrix<T> dv,
                             bool accumulate, Scratch<T> memory) {
  const auto [q, k, v, L, S, d, dv_width, scale, rules, dropout, b, h] = head;
  const bool all = rules.sees_all();
  const auto row_sees = [&rules = rules](Index i, Index j) { return rules.visible(i, j); };
  const auto key_seen_by = [&rules = rules](Index j, Index i) { return rules.visible(i, j); };
  T* packed = memory.take(GemmTile<T, Isa>::scratch);
  const Matrix<T> ds{memory.take(L * S), S, 1};

  // 4e dp = d_o v^T,  dv = p^T d_o
  gemm<T, Isa>(d_o, v.transposed(), ds, L, S, dv_width, {}, packed);
  Matrix<const T> p = weights;
  if (dropout.active()) {
    T* dropped = memory.take(L * S);
    drop_weights<T>(head, weights, dropped);
    p = {dropped, S, 1};
  }
  gemm_visible<T, Isa>(p.transposed(), d_o, dv, S, dv_width, L, {.accumulate = accumulate}, packed,
                       all, key_seen_by);
  for (Index i = 0; i < L; ++i) {
    // 4d dp where dropout kept the weight, 0 elsewhere
    if (dropout.active()) {
      const T factor = T(dropout.keep_factor());
      for (Index j = 0; j < S; ++j) {
        ds(i, j) = dropout.kept(b, h, i, j) ? ds(i, j) * factor : T(0);
      }
    }
    // 4c ds = p (dp - rowsum(dp p)),  4a times scale
    softmax_backward_row(&ds.data[i * ds.row], 1, &weights.data[i * weights.row], weights.column,
                         &ds.data[i * ds.row], 1, S, [&](Index j) { return row_sees(i, j); });
    for (Index j = 0; j < S; ++j) ds(i, j) = scale * ds(i, j);
  }
  // 4a dq = ds k,  dk = ds^T q
  gemm_visible<T, Isa>(ds, k, dq, L, d, S, {}, packed, all, row_sees);
  gemm_visible<T, Isa>(Matrix<const T>(ds).transposed(), q, dk, S, d, L, {.accumulate = accumulate},
                       packed, all, key_seen_by);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
