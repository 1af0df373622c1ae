// Keys in the order in which few queries read them fastest: a view, as In is one of rows.
#pragma once

#include <memory_resource>

#include "headwise/tensor/require.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise::inline v0_1 {

/// Keys [B, G, S, d] in blocks of 128, each transposed: the lanes of a vector are keys, and a block
/// lies in one piece. A query that meets rows of keys has to transpose them each time; these were
/// when they were written. It owns nothing.
template <class T>
struct TransposedKeys {
  /// Keys of a block: those of the kernels, which sum block by block.
  static constexpr Index block = 128;

  In<T, 5> blocks;   // [B, G, ceil(S / 128), d, 128]; each block in one piece
  Index length = 0;  // S; what stands behind them in the last block may be anything

  /// How many blocks so many keys take.
  static constexpr Index count(Index keys) { return keys / block + (keys % block != 0 ? 1 : 0); }

  /// [B, G, S, d].
  Shape<4> shape() const { return {blocks.extent(0), blocks.extent(1), length, blocks.extent(3)}; }
  /// The number of elements.
  Index size() const { return shape().size(); }
  /// Element c of key j of head g in batch element b.
  const T& operator()(Index b, Index g, Index j, Index c) const {
    return blocks(b, g, j / block, c, j % block);
  }
  /// The same keys as rows, [B, G, S, d], dense. Throws std::bad_alloc.
  Tensor<T, 4> rows(std::pmr::memory_resource* memory = std::pmr::get_default_resource()) const {
    auto to = Tensor<T, 4>::uninitialized(shape(), memory);
    for_each_index(shape(),
                   [&](const Shape<4>& at) { to(at) = (*this)(at[0], at[1], at[2], at[3]); });
    return to;
  }

  /// Throws ShapeError unless the blocks are those of `length` keys, and ArgumentError unless each
  /// lies in one piece.
  void require_blocks(std::string_view function) const {
    require(length >= 0, function, "k is of ", length, " keys, expected 0 or more");
    require_countable(function, "k", blocks);
    require_shape(function, "k", blocks,
                  Shape{blocks.extent(0), blocks.extent(1), count(length), blocks.extent(3), block},
                  "blocks of 128 keys, ", length, " in all");
    require(blocks.size() == 0 || (blocks.stride(4) == 1 && blocks.stride(3) == block), function,
            "k has strides of ", blocks.stride(3), " and ", blocks.stride(4),
            " within its blocks, expected 128 and 1");
  }
};

}  // namespace headwise::inline v0_1
