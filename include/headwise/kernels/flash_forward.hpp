// Flash attention forward: one block of queries against all their keys, nothing of size L x S.
//
// Traffic of a block of `queries` rows: q is read once, k and v once for each block of queries
// (packed, then read from L1 or L2), o and logsumexp written once; scores live in L1.
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", 2022, arXiv 2205.14135, algorithm 1, with
// the queries outside as in Dao, "FlashAttention-2", 2023, arXiv 2307.08691, algorithm 1.
// The steps are numbered in docs/derivations/flash_backward.md.
#pragma once

#include "headwise/kernels/flash_tile.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// The buffers of a task.
template <class T, class Isa>
struct FlashForwardScratch {
  using Tile = FlashTile<T, Isa>;

  T* s;         // [queries, keys]
  T* packed_k;  // k^T [d, keys]
  T* packed_v;  // [keys, dv]
  T* repacked;  // v without what one row may not see
  T* context;   // [queries, dv]
  T* factors;   // [keys], dropout of a row

  constexpr FlashForwardScratch(Scratch<T>& memory, Index d, Index dv)
      : s(memory.take(Tile::queries * Tile::keys)),
        packed_k(memory.take(packed_size<T, Isa>(d, Tile::keys))),
        packed_v(memory.take(packed_size<T, Isa>(Tile::keys, dv))),
        repacked(memory.take(packed_size<T, Isa>(Tile::keys, dv))),
        context(memory.take(Tile::queries * dv)),
        factors(memory.take(Tile::keys)) {}
};

/// Scratch, in elements, of a task: constant for each thread whatever L and S are.
template <class T, class Isa>
constexpr Index flash_forward_scratch(Index d, Index dv) {
  Scratch<T> count;
  FlashForwardScratch<T, Isa>(count, d, dv);
  return count.taken();
}

/// The running maximum and sum of each query's softmax.
template <class T, class Isa>
struct OnlineSoftmax {
  T greatest[FlashTile<T, Isa>::queries];
  T sum[FlashTile<T, Isa>::queries];
  bool any[FlashTile<T, Isa>::queries];

  OnlineSoftmax() {
    for (Index r = 0; r < FlashTile<T, Isa>::queries; ++r) {
      greatest[r] = std::numeric_limits<T>::lowest();
      sum[r] = T(0);
      any[r] = false;
    }
  }

  /// Takes in the scores of one more block of keys: `s` becomes e^(s - m) for the new maximum m,
  /// and what was summed up before is brought to it. Returns the factor that does so.
  /// Source: Milakov and Gimelshein, 2018, arXiv 1805.02867.
  T step(Index r, T* s, const std::uint8_t* visible) {
    using S = simd::Simd<T, Isa>;
    constexpr Index keys = FlashTile<T, Isa>::keys;
    if (visible != nullptr) {
      const T lowest = std::numeric_limits<T>::lowest();
      for (Index j = 0; j < keys; ++j) s[j] = visible[j] ? s[j] : lowest;
    }
    auto greatest_lanes = S::broadcast(greatest[r]);
    for (Index j = 0; j < keys; j += S::width) {
      greatest_lanes = S::greater(greatest_lanes, S::load(s + j));
    }
    const T m = simd::max_lanes<T, Isa>(greatest_lanes);
    const T factor = S::lane(simd::exp<T, Isa>(S::broadcast(greatest[r]) - S::broadcast(m)), 0);
    sum[r] = sum[r] * factor + exp_row<T, Isa>(s, m, nullptr, visible);
    greatest[r] = m;
    any[r] = true;
    return factor;
  }
};

/// The logsumexp m + log(sum) of a row as a number and what rounding it left out: a float near
/// -1e9 is 64 from its neighbours, and e^(s - lse) would miss by as much. Where nothing was
/// visible: -infinity and 0.
template <class T, class Isa>
void store_logsumexp(const OnlineSoftmax<T, Isa>& softmax, Index r, Matrix<T> lse, Index i) {
  using std::log;
  if (!softmax.any[r]) {
    set_negative_infinity(lse(i, 0));
    lse(i, 1) = T(0);
    return;
  }
  const T log_sum = T(log(softmax.sum[r]));
  const T m = softmax.greatest[r], rounded = m + log_sum;
  const bool m_is_larger = (m < T(0) ? T(0) - m : m) > (log_sum < T(0) ? T(0) - log_sum : log_sum);
  lse(i, 0) = rounded;
  lse(i, 1) = m_is_larger ? log_sum - (rounded - m) : m - (rounded - log_sum);  // exact
}

/// Steps 4c and 4d of a tile: scores become e^(s - m) with dropout, and what the context holds is
/// brought to the new maximum.
template <class T, class Isa>
void softmax_tile(const AttentionHead<T>& head, const TileBlock& block,
                  const TileMask<T, Isa>& mask, const FlashForwardScratch<T, Isa>& buffers,
                  OnlineSoftmax<T, Isa>& softmax) {
  constexpr Index keys = FlashTile<T, Isa>::keys;
  for (Index r = 0; r < block.rows; ++r) {
    T* row = buffers.s + r * keys;
    if (!mask.any(r)) {
      for (Index j = 0; j < keys; ++j) row[j] = T(0);
      continue;
    }
    const T factor = softmax.step(r, row, mask.full() ? nullptr : mask.row(r));
    T* sums = buffers.context + r * head.dv;
    for (Index n = 0; n < head.dv; ++n) sums[n] = sums[n] * factor;
    if (!head.dropout.active()) continue;
    head.dropout.row(head.b, head.h, block.i0 + r, block.j0, keys, T(head.dropout.keep_factor()),
                     buffers.factors);
    for (Index j = 0; j < keys; ++j) row[j] = row[j] * buffers.factors[j];
  }
}

/// o rows i0 ... i0 + rows - 1 and their logsumexp [L, 2] (null for none) are overwritten.
template <class T, class Isa>
TileWork flash_forward_tile(const AttentionHead<T>& head, Index i0, Index rows, Matrix<T> o,
                            Matrix<T> lse, Scratch<T> memory) {
  constexpr Index keys = FlashTile<T, Isa>::keys;
  const FlashForwardScratch<T, Isa> buffers(memory, head.d, head.dv);
  OnlineSoftmax<T, Isa> softmax;
  TileMask<T, Isa> mask;
  TileWork work;
  for (Index n = 0; n < rows * head.dv; ++n) buffers.context[n] = T(0);

  const KeyRange range = head.visibility.range(i0, rows);
  for (Index j0 = range.begin / keys * keys; j0 < range.end; j0 += keys) {
    const Index columns = std::min<Index>(keys, head.S - j0);
    const TileBlock block{i0, rows, j0, columns};
    mask.fill(head.visibility, block);
    // 4a s = scale q k^T,  4b bias
    pack<T, Isa>(head.k.from(j0, 0).transposed(), head.d, columns, buffers.packed_k);
    gemm_packed<T, Isa>(head.q.from(i0, 0), buffers.packed_k, {buffers.s, keys, 1},
                        {rows, columns, head.d}, {.alpha = head.scale});
    add_bias<T, Isa>(head, mask, block, buffers.s);
    // 4c softmax,  4d dropout
    softmax_tile<T, Isa>(head, block, mask, buffers, softmax);
    // 4e o += p v
    const Matrix<const T> v = head.v.from(j0, 0);
    pack<T, Isa>(v, columns, head.dv, buffers.packed_v);
    const VisiblePairs visible{mask.full(), [&](Index r, Index j) { return mask.visible(r, j); }};
    add_visible_product<T, Isa>({buffers.s, keys, 1}, v, buffers.packed_v,
                                {buffers.context, head.dv, 1}, {rows, head.dv, columns},
                                buffers.repacked, visible);
    work.pairs += mask.pairs();
    work.executed_flops += executed_gemm_flops<T, Isa>(rows, columns, head.d) +
                           executed_gemm_flops<T, Isa>(rows, head.dv, columns) +
                           (5 + score_extras(head, 1)) * rows * keys;
  }
  // The sums become a softmax; a query that has seen no key has 0 and -infinity.
  for (Index r = 0; r < rows; ++r) {
    for (Index n = 0; n < head.dv; ++n) {
      o(i0 + r, n) = softmax.any[r] ? buffers.context[r * head.dv + n] / softmax.sum[r] : T(0);
    }
    if (lse.data != nullptr) store_logsumexp<T, Isa>(softmax, r, lse, i0 + r);
  }
  return work;
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
