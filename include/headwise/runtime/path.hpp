// The two ways in which attention is computed.
#pragma once

namespace headwise::inline v0_1 {

/// Both give the same function.
enum class Path {
  flash,         ///< in tiles: nothing of size L x S
  materialized,  ///< with the weights [B, H, L, S] kept
};

}  // namespace headwise::inline v0_1
