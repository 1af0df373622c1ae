// Products whose factors are rounded to bf16, for calls that ask for them.
#pragma once

#include "headwise/kernels/bf16_kernels.hpp"
#include "headwise/runtime/products.hpp"
#include "headwise/tensor/require.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// Products of float whose factors are rounded to bf16, the nearest number of 8 binary digits, and
/// summed in float: for a call's context, `{.products = bf16_products()}`.
///
/// unit   what multiplies: by default the fastest that this process has beside its instruction set
///
/// Everything stays float32 outside the products: inputs, outputs, parameters, gradients, caches,
/// softmax. Linear layers and attention on either path, forward and backward, and so the modules,
/// the tape and the decoder take them; a backward call that is to match its forward is given the
/// same. All that is promised of bits holds: the same for any number of threads, any batch and any
/// chunking; a query sees nothing of what is hidden from it. Bits differ from unit to unit. Few
/// queries over a cache go the way of many, without the kernels of decoding. The kernels are
/// compiled where this is called, and nowhere else.
///
/// Throws  ArgumentError for a unit that the processor does not have. Asks the operating system for
///         the tiles of AMX where it may use them.
template <std::same_as<float> T = float>
Products bf16_products(Bf16Unit unit = bf16_unit()) {
  require(is_supported(unit), "bf16_products", "the unit is ", name_of(unit),
          ", which this processor does not have");
  return Products(&kernels::bf16_kernels_of<T>(unit, instruction_set_here()));
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
