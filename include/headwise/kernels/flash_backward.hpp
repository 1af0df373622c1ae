// Flash attention backward: one block of keys against all the queries of its group of heads.
//
// Weights are computed again, p = e^(s - lse), instead of kept. Traffic of a block of keys: k and v
// read once, q, o, d_o and dq once for each block of keys; p and ds live in L1; dk and dv are
// summed in scratch and written once. Source: Dao, "FlashAttention-2", 2023, arXiv 2307.08691,
// algorithm 2. The steps are numbered in docs/derivations/flash_backward.md.
#pragma once

#include "headwise/kernels/flash_tile.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// A head, what its forward pass left, and where the gradient of its queries is summed up.
template <class T>
struct FlashHead {
  AttentionHead<T> forward;
  Matrix<const T> o;    // [L, dv]
  Matrix<const T> d_o;  // [L, dv]
  Matrix<const T> lse;  // [L, 2]
  Matrix<T> dq;         // [L, d], added to: each block of keys adds its part
};

/// The buffers of a task.
template <class T, class Isa>
struct FlashBackwardScratch {
  using Tile = FlashTile<T, Isa>;

  T* p;               // [queries, keys]
  T* ds;              // [queries, keys]
  T* factors;         // [keys]
  T* packed_k;        // [keys, d]
  T* packed_k_t;      // [d, keys]
  T* packed_v_t;      // [dv, keys]
  T* packed_queries;  // [queries, d] or [queries, dv]
  T* repacked;        // an operand without what one row may not see
  T* dk;              // [keys, d]
  T* dv;              // [keys, dv]

  constexpr FlashBackwardScratch(Scratch<T>& memory, Index d, Index dv_width)
      : p(memory.take(Tile::queries * Tile::keys)),
        ds(memory.take(Tile::queries * Tile::keys)),
        factors(memory.take(Tile::keys)),
        packed_k(memory.take(packed_size<T, Isa>(Tile::keys, d))),
        packed_k_t(memory.take(packed_size<T, Isa>(d, Tile::keys))),
        packed_v_t(memory.take(packed_size<T, Isa>(dv_width, Tile::keys))),
        packed_queries(memory.take(packed_operand<T, Isa>(Tile::queries, d, dv_width))),
        repacked(memory.take(
            packed_operand<T, Isa>(std::max<Index>(Tile::queries, Tile::keys), d, dv_width))),
        dk(memory.take(Tile::keys * d)),
        dv(memory.take(Tile::keys * dv_width)) {}
};

/// Scratch, in elements, of a task: constant for each thread whatever L and S are.
template <class T, class Isa>
constexpr Index flash_backward_scratch(Index d, Index dv) {
  Scratch<T> count;
  FlashBackwardScratch<T, Isa>(count, d, dv);
  return count.taken();
}

/// delta_r = rowsum(d_o * o) for `rows` queries from i0 on, by the chains that gemm forms d_o v^T
/// by, so that dp - delta is exactly 0 where o is one of the values. (Summed in another order the
/// difference is rounding noise, which large keys blow up: 3,000 times the error of plain loops in
/// dW_Q for scores in the thousands.) Eight chains at a time hide their latency.
template <class T, class Isa>
void row_deltas(const FlashHead<T>& head, Index i0, Index rows, T* delta) {
  constexpr Index together = 8;
  const Index dv = head.forward.dv;
  for (Index r0 = 0; r0 < rows; r0 += together) {
    const Index count = std::min<Index>(together, rows - r0);
    T totals[together] = {};
    for (Index begin = 0; begin < dv; begin += GemmTile<T, Isa>::chain) {
      T sums[together] = {};
      for (Index n = begin, end = std::min<Index>(dv, begin + GemmTile<T, Isa>::chain); n < end;
           ++n) {
        for (Index r = 0; r < count; ++r) {
          sums[r] = sums[r] + head.d_o(i0 + r0 + r, n) * head.o(i0 + r0 + r, n);
        }
      }
      for (Index r = 0; r < count; ++r) totals[r] = begin == 0 ? sums[r] : totals[r] + sums[r];
    }
    for (Index r = 0; r < count; ++r) delta[r0 + r] = totals[r];
  }
}

/// Steps 4d to 4b of the tile's r-th query: p becomes e^(s - lse) with dropout, ds what flows into
/// the score, times scale.
template <class T, class Isa>
void flash_backward_row(const FlashHead<T>& head, const TileBlock& block, Index r, T delta,
                        const FlashBackwardScratch<T, Isa>& buffers, const TileMask<T, Isa>& mask) {
  constexpr Index keys = FlashTile<T, Isa>::keys;
  const AttentionHead<T>& forward = head.forward;
  const Index i = block.i0 + r;
  T* p = buffers.p + r * keys;
  T* ds = buffers.ds + r * keys;
  if (!mask.any(r)) {
    for (Index j = 0; j < keys; ++j) p[j] = ds[j] = T(0);
    return;
  }
  const std::uint8_t* visible = mask.full() ? nullptr : mask.row(r);
  // 4c p = e^((s - lse) - rest)
  exp_row<T, Isa>(p, head.lse(i, 0), &head.lse(i, 1), visible);
  const T* factors = buffers.factors;
  // 4d dp where dropout kept the weight, 0 elsewhere
  if (forward.dropout.active()) {
    forward.dropout.row(forward.b, forward.h, i, block.j0, keys, T(forward.dropout.keep_factor()),
                        buffers.factors);
    for (Index j = 0; j < keys; ++j) ds[j] = factors[j] == T(0) ? T(0) : ds[j] * factors[j];
  }
  // 4c ds = p (dp - delta),  4a times scale
  for (Index j = 0; j < keys; ++j) ds[j] = forward.scale * (p[j] * (ds[j] - delta));
  // 4b nothing flows through a hidden pair
  if (visible != nullptr) {
    for (Index j = 0; j < keys; ++j) ds[j] = visible[j] ? ds[j] : T(0);
  }
  if (forward.dropout.active()) {
    for (Index j = 0; j < keys; ++j) p[j] = p[j] * factors[j];
  }
}

/// One tile of one head against the block of keys that is packed in `buffers`.
template <class T, class Isa>
TileWork flash_backward_tile(const FlashHead<T>& head, const TileBlock& block,
                             const FlashBackwardScratch<T, Isa>& buffers, TileMask<T, Isa>& mask) {
  constexpr Index keys = FlashTile<T, Isa>::keys;
  const auto [i0, rows, j0, columns] = block;
  const auto& [q, k, v, L, S, d, dv, scale, rules, dropout, b, h] = head.forward;
  const Matrix<const T> p{buffers.p, keys, 1}, ds{buffers.ds, keys, 1};
  const auto q_rows = q.from(i0, 0), d_o = head.d_o.from(i0, 0);
  mask.fill(rules, block);
  // 4a s = scale q k^T,  4b bias,  4e dp = d_o v^T
  gemm_packed<T, Isa>(q_rows, buffers.packed_k_t, {buffers.p, keys, 1}, {rows, columns, d},
                      {.alpha = scale});
  add_bias<T, Isa>(head.forward, mask, block, buffers.p);
  gemm_packed<T, Isa>(d_o, buffers.packed_v_t, {buffers.ds, keys, 1}, {rows, columns, dv}, {});
  T delta[FlashTile<T, Isa>::queries];
  row_deltas<T, Isa>(head, i0, rows, delta);
  for (Index r = 0; r < rows; ++r) {
    flash_backward_row<T, Isa>(head, block, r, delta[r], buffers, mask);
  }
  const VisiblePairs row_sees{mask.full(), [&](Index r, Index j) { return mask.visible(r, j); }};
  const VisiblePairs seen_by{mask.full(), [&](Index j, Index r) { return mask.visible(r, j); }};
  // 4e dv += p^T d_o
  pack<T, Isa>(d_o, rows, dv, buffers.packed_queries);
  add_visible_product<T, Isa>(p.transposed(), d_o, buffers.packed_queries, {buffers.dv, dv, 1},
                              {columns, dv, rows}, buffers.repacked, seen_by);
  // 4a dk += ds^T q,  dq += ds k
  pack<T, Isa>(q_rows, rows, d, buffers.packed_queries);
  add_visible_product<T, Isa>(ds.transposed(), q_rows, buffers.packed_queries, {buffers.dk, d, 1},
                              {columns, d, rows}, buffers.repacked, seen_by);
  add_visible_product<T, Isa>(ds, k.from(j0, 0), buffers.packed_k, head.dq.from(i0, 0),
                              {rows, d, columns}, buffers.repacked, row_sees);
  return {mask.pairs(), executed_gemm_flops<T, Isa>(rows, columns, d + dv) +
                            executed_gemm_flops<T, Isa>(columns, dv, rows) +
                            executed_gemm_flops<T, Isa>(columns, d, rows) +
                            executed_gemm_flops<T, Isa>(rows, d, columns) +
                            ((7 + score_extras(head.forward, 2)) * keys + 2 * dv) * rows};
}

/// Keys j0 ... j0 + columns - 1 against every query of `heads` heads that share them; head_at(n)
/// is the n-th. dk and dv rows of these keys are overwritten.
template <class T, class Isa, class HeadAt>
TileWork flash_backward_keys(HeadAt&& head_at, Index heads, Index j0, Index columns, Matrix<T> dk,
                             Matrix<T> dv, Scratch<T> memory) {
  constexpr Index queries = FlashTile<T, Isa>::queries;
  TileWork work;
  TileMask<T, Isa> mask;
  const AttentionHead<T> keys_of = head_at(0).forward;
  const Index d = keys_of.d, dv_width = keys_of.dv;
  const FlashBackwardScratch<T, Isa> buffers(memory, d, dv_width);
  const auto k = keys_of.k.from(j0, 0), v = keys_of.v.from(j0, 0);
  pack<T, Isa>(k, columns, d, buffers.packed_k);
  pack<T, Isa>(k.transposed(), d, columns, buffers.packed_k_t);
  pack<T, Isa>(v.transposed(), dv_width, columns, buffers.packed_v_t);
  for (Index n = 0; n < columns * d; ++n) buffers.dk[n] = T(0);
  for (Index n = 0; n < columns * dv_width; ++n) buffers.dv[n] = T(0);

  for (Index n = 0; n < heads; ++n) {
    const FlashHead<T> head = head_at(n);
    for (Index i0 = 0; i0 < head.forward.L; i0 += queries) {
      const Index rows = std::min<Index>(queries, head.forward.L - i0);
      const KeyRange range = head.forward.visibility.range(i0, rows);
      if (range.end <= j0 || range.begin >= j0 + columns) continue;
      const TileWork tile =
          flash_backward_tile<T, Isa>(head, {i0, rows, j0, columns}, buffers, mask);
      work.pairs += tile.pairs;
      work.executed_flops += tile.executed_flops;
    }
  }
  for (Index j = 0; j < columns; ++j) {
    for (Index n = 0; n < d; ++n) dk(j0 + j, n) = buffers.dk[j * d + n];
    for (Index n = 0; n < dv_width; ++n) dv(j0 + j, n) = buffers.dv[j * dv_width + n];
  }
  return work;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
