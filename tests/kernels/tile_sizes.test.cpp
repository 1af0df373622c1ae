#include "support/tile_sizes.hpp"

#include "support/catch.hpp"
#include "support/instruction_sets.hpp"

namespace kernels_tile_sizes {

using namespace headwise;
using headwise_tests::TileSizes;

TEMPLATE_TEST_CASE("no instruction set cuts attention into larger blocks than tests reckon with",
                   "[kernels]", float, double) {
  for (const InstructionSet set : headwise_tests::supported_instruction_sets()) {
    CAPTURE(name_of(set));
    const kernels::Kernels<TestType>& run = kernels::kernels_of<TestType>(set);
    CHECK(run.backward_queries <= TileSizes::queries);
    CHECK(run.forward_keys <= TileSizes::keys);
    CHECK(run.backward_keys <= TileSizes::keys);
  }
}

}  // namespace kernels_tile_sizes
