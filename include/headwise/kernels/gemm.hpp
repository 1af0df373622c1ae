// Matrix products. Row-invariant: an element of the result depends on its row of a, its column of
// b and the inner length alone, never on how many other rows or columns there are or how they are
// cut into tiles. Each element is a sum of ordered chains of multiply-adds, `chain` terms long.
//
// Traffic: b is packed once for each block (read and written once, then read from cache for every
// `rows` rows of a); a is read where it lies, through its strides, so that a transposed a costs no
// copy; c is read and written once for each k block.
#pragma once

#include "headwise/kernels/matrix.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

HEADWISE_STRICT_MATH_BEGIN

/// The register tile and the cache blocks. They depend on the type and the instruction set alone.
template <class T, class Isa>
struct GemmTile {
  static constexpr int rows = 6;
  static constexpr int vectors = 2;  // 6 x 2 sums, 2 of b and 1 of a: 15 of 16 registers
  static constexpr Index width = simd::Simd<T, Isa>::width;
  static constexpr Index columns = vectors * width;
  /// Terms of one chain of multiply-adds; an element is the sum of its chains, in their order. (One
  /// chain of 256 lost up to twice as many digits as PyTorch; 32 cost 2 % more time than 64.)
  static constexpr Index chain = 64;
  static constexpr Index k_block = 256;
  static constexpr Index n_block = 256;
  /// Scratch of one product: a packed block of b.
  static constexpr Index scratch = k_block * n_block;
};

/// Elements that K rows of N columns take when packed.
template <class T, class Isa>
constexpr Index packed_size(Index K, Index N) {
  return K * round_up(N, GemmTile<T, Isa>::columns);
}

/// Packs b [K, N] into panels [ceil(N / columns)][K][columns], columns beyond N as 0.
/// Rows k with keep(k) false are packed as 0, whatever they hold.
template <class T, class Isa, class Keep>
void pack(Matrix<const T> b, Index K, Index N, T* packed, Keep keep) {
  constexpr Index columns = GemmTile<T, Isa>::columns;
  for (Index n0 = 0; n0 < N; n0 += columns) {
    const Index width = std::min<Index>(columns, N - n0);
    for (Index k = 0; k < K; ++k, packed += columns) {
      const T* from = &b.data[k * b.row + n0 * b.column];
      const Index filled = keep(k) ? width : 0;
      if (b.column == 1) {
        for (Index n = 0; n < filled; ++n) packed[n] = from[n];
      } else {
        for (Index n = 0; n < filled; ++n) packed[n] = from[n * b.column];
      }
      for (Index n = filled; n < columns; ++n) packed[n] = T(0);
    }
  }
}
template <class T, class Isa>
void pack(Matrix<const T> b, Index K, Index N, T* packed) {
  pack<T, Isa>(b, K, N, packed, [](Index) { return true; });
}

/// Of a product: rows of the result, columns of the result, inner length.
struct Extents {
  Index M, N, K;
};

/// Which pairs (row, inner) of a product's left operand count: all, or those that sees(m, k).
template <class Sees>
struct VisiblePairs {
  bool all;
  Sees sees;
};
template <class Sees>
VisiblePairs(bool, Sees) -> VisiblePairs<Sees>;

/// What happens to a sum before it is stored: c = alpha sum + bias, or c = c + alpha sum.
template <class T>
struct Epilogue {
  T alpha = T(1);
  const T* bias = nullptr;  // [N], dense; only where c is overwritten
  bool accumulate = false;
};

/// Stores `count` columns of M rows of sums [M, columns]. All of it in whole vectors, so that an
/// element is rounded alike wherever it stands; what lies beyond `count` is not touched.
template <class T, class Isa>
void store_tile(const T* sums, Index M, Matrix<T> c, Index count, const Epilogue<T>& epilogue) {
  using S = simd::Simd<T, Isa>;
  using Tile = GemmTile<T, Isa>;
  constexpr Index width = Tile::width;
  const bool scaled = !(epilogue.alpha == T(1));
  const auto alpha = S::broadcast(epilogue.alpha);
  for (Index n = 0; n < count; n += width) {
    const Index lanes = std::min<Index>(width, count - n);
    const bool whole = lanes == width && c.column == 1;
    T part[static_cast<std::size_t>(width)] = {};
    if (epilogue.bias != nullptr) {
      for (Index lane = 0; lane < lanes; ++lane) part[lane] = epilogue.bias[n + lane];
    }
    const auto bias = S::load(part);
    for (Index m = 0; m < M; ++m) {
      T* to = &c.data[m * c.row + n * c.column];
      auto result = S::load(sums + m * Tile::columns + n);
      if (scaled) result = alpha * result;
      if (epilogue.bias != nullptr) result = result + bias;
      if (whole) {
        S::store(epilogue.accumulate ? S::load(to) + result : result, to);
        continue;
      }
      if (epilogue.accumulate) {
        for (Index lane = 0; lane < lanes; ++lane) part[lane] = to[lane * c.column];
        result = S::load(part) + result;
      }
      S::store(result, part);
      for (Index lane = 0; lane < lanes; ++lane) to[lane * c.column] = part[lane];
    }
  }
}

/// M rows of a times one packed panel: `count` of the panel's columns are stored.
///
/// The sums leave the registers through a small array. With the epilogue written over the registers
/// themselves g++ kept all of them in memory, through the loop too: half the speed at -O3 for
/// float, at -O2 already for double.
template <class T, class Isa, int M>
void tile_product(Matrix<const T> a, Index K, const T* panel, Matrix<T> c, Index count,
                  const Epilogue<T>& epilogue) {
  using S = simd::Simd<T, Isa>;
  using Tile = GemmTile<T, Isa>;
  constexpr Index width = Tile::width;
  constexpr int vectors = Tile::vectors;
  alignas(storage_alignment) T sums[static_cast<std::size_t>(M * Tile::columns)];
  for (Index begin = 0; begin == 0 || begin < K; begin += Tile::chain) {
    typename S::Vector sum[std::size_t{M}][std::size_t{vectors}];
    simd::unrolled<M>([&](int m) HEADWISE_ALWAYS_INLINE {
      simd::unrolled<vectors>([&](int v) HEADWISE_ALWAYS_INLINE { sum[m][v] = S::zero(); });
    });
    for (Index k = begin, end = std::min<Index>(K, begin + Tile::chain); k < end; ++k) {
      typename S::Vector b[std::size_t{vectors}];
      simd::unrolled<vectors>([&](int v) HEADWISE_ALWAYS_INLINE {
        b[v] = S::load(panel + k * Tile::columns + v * width);
      });
      simd::unrolled<M>([&](int m) HEADWISE_ALWAYS_INLINE {
        const auto x = S::broadcast(a.data[m * a.row + k * a.column]);
        simd::unrolled<vectors>([&](int v)
                                    HEADWISE_ALWAYS_INLINE { sum[m][v] = sum[m][v] + x * b[v]; });
      });
    }
    simd::unrolled<M>([&](int m) HEADWISE_ALWAYS_INLINE {
      simd::unrolled<vectors>([&](int v) HEADWISE_ALWAYS_INLINE {
        T* to = sums + m * Tile::columns + v * width;
        S::store(begin == 0 ? sum[m][v] : S::load(to) + sum[m][v], to);
      });
    });
  }
  store_tile<T, Isa>(sums, M, c, count, epilogue);
}

/// tile_product for `rows` rows, 0 <= rows <= M.
template <class T, class Isa, int M>
void tile_rows(Index rows, Matrix<const T> a, Index K, const T* panel, Matrix<T> c, Index count,
               const Epilogue<T>& epilogue) {
  if constexpr (M > 0) {
    if (rows == M) return tile_product<T, Isa, M>(a, K, panel, c, count, epilogue);
    tile_rows<T, Isa, M - 1>(rows, a, K, panel, c, count, epilogue);
  }
}

/// c [M, N] from a [M, K] and a packed b.
template <class T, class Isa>
void gemm_packed(Matrix<const T> a, const T* packed, Matrix<T> c, Extents size,
                 const Epilogue<T>& epilogue) {
  const auto [M, N, K] = size;
  using Tile = GemmTile<T, Isa>;
  for (Index n = 0; n < N; n += Tile::columns, packed += K * Tile::columns) {
    const Index count = std::min<Index>(Tile::columns, N - n);
    Epilogue<T> here = epilogue;
    if (here.bias != nullptr) here.bias += n;
    for (Index m = 0; m < M; m += Tile::rows) {
      tile_rows<T, Isa, Tile::rows>(std::min<Index>(Tile::rows, M - m), a.from(m, 0), K, packed,
                                    c.from(m, n), count, here);
    }
  }
}

/// c [M, N] = alpha a [M, K] b [K, N] + bias, or c + alpha a b. b's rows k with keep(k) false count
/// as 0. `scratch` holds GemmTile::scratch elements.
template <class T, class Isa, class Keep>
void gemm(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, Extents size,
          const Epilogue<T>& epilogue, T* scratch, Keep keep) {
  const auto [M, N, K] = size;
  using Tile = GemmTile<T, Isa>;
  for (Index n = 0; n < N; n += Tile::n_block) {
    const Index n_count = std::min<Index>(Tile::n_block, N - n);
    for (Index k = 0; k == 0 || k < K; k += Tile::k_block) {
      const Index k_count = std::min<Index>(Tile::k_block, K - k);
      pack<T, Isa>(b.from(k, n), k_count, n_count, scratch,
                   [&](Index row) { return keep(k + row); });
      Epilogue<T> here = epilogue;
      if (here.bias != nullptr) here.bias += n;
      if (k != 0) {
        here.accumulate = true;
        here.bias = nullptr;
      }
      gemm_packed<T, Isa>(a.from(0, k), scratch, c.from(0, n), {M, n_count, k_count}, here);
    }
  }
}
template <class T, class Isa>
void gemm(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, Extents size,
          const Epilogue<T>& epilogue, T* scratch) {
  gemm<T, Isa>(a, b, c, size, epilogue, scratch, [](Index) { return true; });
}

/// Like gemm, where of a [M, K] only visible pairs (m, k) count: the others are 0, and what b
/// holds in row k must not reach row m even if it is infinite or NaN (0 * NaN is NaN). Same bits
/// as gemm wherever b is finite.
template <class T, class Isa, class Sees>
void gemm_visible(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, Extents size,
                  const Epilogue<T>& epilogue, T* scratch, const VisiblePairs<Sees>& visible) {
  const auto [M, N, K] = size;
  if (visible.all || all_finite<T, Isa>(b, K, N)) {
    return gemm<T, Isa>(a, b, c, size, epilogue, scratch);
  }
  for (Index m = 0; m < M; ++m) {
    gemm<T, Isa>(a.from(m, 0), b, c.from(m, 0), {1, N, K}, epilogue, scratch,
                 [&](Index k) { return visible.sees(m, k); });
  }
}

/// FLOPs of gemm as its tiles run: whole vectors of columns, and an addition for each chain that
/// joins those before it.
template <class T, class Isa>
constexpr std::int64_t executed_gemm_flops(Index M, Index N, Index K) {
  using Tile = GemmTile<T, Isa>;
  const Index joins = K == 0 ? 0 : (K - 1) / Tile::chain;
  return (std::int64_t{2} * K + joins) * M * round_up(N, Tile::columns);
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
