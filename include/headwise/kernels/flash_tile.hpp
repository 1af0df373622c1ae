// What the tiles of flash attention share: their sizes, the mask of a tile, products over visible
// pairs, and what was done.
#pragma once

#include <cstdint>

#include "headwise/kernels/attention_head.hpp"
#include "headwise/simd/exp.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// Queries and keys of a tile. They depend on the type and the instruction set alone, so that a
/// query meets its keys in the same blocks whatever else is computed beside it.
template <class T, class Isa>
struct FlashTile {
  static constexpr Index queries = 48;  // a multiple of the register tile's 6 rows
  static constexpr Index keys = 64;     // 48 x 64 scores: 12 KiB in float, 24 in double
};

/// Where a tile stands: queries i0 ... i0 + rows - 1 and keys j0 ... j0 + columns - 1.
struct TileBlock {
  Index i0, rows, j0, columns;
};

/// What a tile has done: the pairs that causality, window and lengths leave to its queries, and
/// the multiply-adds and score operations that ran, padding and masked pairs too.
struct TileWork {
  std::int64_t pairs = 0;
  std::int64_t executed_flops = 0;
};

/// Which pairs of a tile are visible: [rows][keys] bytes, unless all of them are.
template <class T, class Isa>
class TileMask {
 public:
  static constexpr Index keys = FlashTile<T, Isa>::keys;

  void fill(const HeadVisibility<T>& visible, const TileBlock& block) {
    const auto [i0, rows, j0, columns] = block;
    full_ = columns == keys && !visible.has_pair_masks();
    pairs_ = 0;
    for (Index r = 0; r < rows; ++r) {
      KeyRange range = visible.range(i0 + r);
      range.begin = std::clamp(range.begin - j0, Index{0}, columns);
      range.end = std::clamp(range.end - j0, range.begin, columns);
      pairs_ += range.size();
      if (range.size() != keys) full_ = false;
      any_[r] = range.size() != 0;
      std::uint8_t* row = bytes_ + r * keys;
      for (Index j = 0; j < keys; ++j) row[j] = j >= range.begin && j < range.end;
      if (!visible.has_pair_masks()) continue;
      any_[r] = false;
      for (Index j = range.begin; j < range.end; ++j) {
        row[j] = visible.pair_visible(i0 + r, j0 + j);
        any_[r] = any_[r] || row[j];
      }
    }
  }

  bool full() const { return full_; }
  bool any(Index r) const { return any_[r]; }
  bool visible(Index r, Index j) const { return bytes_[r * keys + j] != 0; }
  const std::uint8_t* row(Index r) const { return bytes_ + r * keys; }
  std::int64_t pairs() const { return pairs_; }

 private:
  bool full_ = false;
  std::int64_t pairs_ = 0;
  bool any_[FlashTile<T, Isa>::queries] = {};
  std::uint8_t bytes_[FlashTile<T, Isa>::queries * keys];
};

/// Adds biases to the visible scores of a tile; `s` has rows of FlashTile::keys.
template <class T, class Isa>
void add_bias(const AttentionHead<T>& head, const TileMask<T, Isa>& mask, const TileBlock& block,
              T* s) {
  constexpr Index keys = FlashTile<T, Isa>::keys;
  if (head.visibility.bias_count() == 0) return;
  for (Index r = 0; r < block.rows; ++r) {
    for (Index j = 0; j < keys; ++j) {
      if (mask.visible(r, j)) {
        s[r * keys + j] = s[r * keys + j] + head.visibility.bias(block.i0 + r, block.j0 + j);
      }
    }
  }
}

/// row_j = e^(row_j - shift), or e^((row_j - shift) - rest) where a rest is given; 0 where not
/// visible. Returns the sum.
template <class T, class Isa>
T exp_row(T* row, T shift, const T* rest, const std::uint8_t* visible) {
  using S = simd::Simd<T, Isa>;
  constexpr Index keys = FlashTile<T, Isa>::keys;
  const auto shifts = S::broadcast(shift);
  const auto rests = rest == nullptr ? S::zero() : S::broadcast(*rest);
  for (Index j = 0; j < keys; j += S::width) {
    auto x = S::load(row + j) - shifts;
    if (rest != nullptr) x = x - rests;
    S::store(simd::exp<T, Isa>(x), row + j);
  }
  if (visible != nullptr) {
    for (Index j = 0; j < keys; ++j) row[j] = visible[j] ? row[j] : T(0);
  }
  auto sum = S::zero();
  for (Index j = 0; j < keys; j += S::width) sum = sum + S::load(row + j);
  return simd::sum_lanes<T, Isa>(sum);
}

/// c [M, N] += a [M, K] b [K, N] over visible pairs (m, k), b given as it is and packed. Where the
/// tile is not fully visible and b holds an infinity or NaN, each row packs b anew without the
/// rows that it may not see: the same bits otherwise, for a hidden pair adds exactly 0.
template <class T, class Isa, class Sees>
void add_visible_product(Matrix<const T> a, Matrix<const T> b, const T* packed, Matrix<T> c,
                         Extents size, T* repacked, const VisiblePairs<Sees>& visible) {
  const auto [M, N, K] = size;
  const Epilogue<T> add{.accumulate = true};
  if (visible.all || all_finite<T, Isa>(b, K, N)) {
    return gemm_packed<T, Isa>(a, packed, c, size, add);
  }
  for (Index m = 0; m < M; ++m) {
    pack<T, Isa>(b, K, N, repacked, [&](Index k) { return visible.sees(m, k); });
    gemm_packed<T, Isa>(a.from(m, 0), repacked, c.from(m, 0), {1, N, K}, add);
  }
}

/// Elements of a packed operand of a tile: `rows` inner steps of a width that may be d or dv.
template <class T, class Isa>
constexpr Index packed_operand(Index rows, Index d, Index dv) {
  return std::max<Index>(packed_size<T, Isa>(rows, d), packed_size<T, Isa>(rows, dv));
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
