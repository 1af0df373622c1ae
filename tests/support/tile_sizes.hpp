// How long a sequence has to be for attention to cut it into blocks. Taken from the kernels, so
// that tests of what happens between blocks do not fall short when those grow.
#pragma once

#include <algorithm>

#include "headwise/kernels/kernels.hpp"

namespace headwise_tests {

using namespace headwise;

/// Of both directions and of every instruction set (tests/kernels/tile_sizes.test.cpp). Queries are
/// those of backward: forward's tasks are cut by the number of workers, within them panels of a few
/// vectors are.
struct TileSizes {
  using Forward = kernels::generic::ForwardTile<double>;
  using Backward = kernels::generic::BackwardTile<double>;

  static constexpr Index queries = Backward::queries;
  static constexpr Index keys = std::max<Index>(Forward::keys, Backward::keys);
};

}  // namespace headwise_tests
