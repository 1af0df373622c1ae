// Products of float by pieces of bf16, for calls that ask for them.
#pragma once

#include <concepts>

#include "headwise/kernels/split_kernels.hpp"
#include "headwise/runtime/bf16_unit.hpp"
#include "headwise/runtime/products.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Products of float by the tiles of AMX, where this process has them, and by multiply-adds of
/// float where it has not: for a call's context, `{.products = split_products()}`.
///
/// pieces   of bf16 that a float is split into. Three are the float itself, and their six greatest
///          products give what float's own multiply-adds give, with errors no larger. Two are its
///          first 16 to 17 binary digits, and three products the result to 2^-15 of the sum of its
///          terms' magnitudes: faster.
///
/// Everything stays float32 outside the products. What takes them, and what is promised of bits, is
/// as for bf16_products(): the same for any number of threads, any batch and any chunking, others
/// than without. A factor that is infinite or above 3.39e38 makes NaN; one below 1e-30 may lose
/// digits, and below 1.2e-38 is 0; a product below 2e-31 may, too. The kernels are compiled where
/// this is called, and nowhere else.
///
/// Source  Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
///         Higher-Precision Computations", 2019, arXiv 1904.06376. XLA calls the two
///         BF16_BF16_F32_X6 and BF16_BF16_F32_X3.
template <int pieces = 3, std::same_as<float> T = float>
requires(pieces == 2 || pieces == 3) Products split_products() {
  return bf16_unit() == Bf16Unit::amx ? Products(&kernels::split_kernels<T, pieces>()) : Products();
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
