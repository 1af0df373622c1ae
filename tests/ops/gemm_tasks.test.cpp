// How products are cut into tasks: every element once, and no worker waits long for the last.
#include <algorithm>

#include "headwise/ops/linear_products.hpp"
#include "support/catch.hpp"

namespace ops_gemm_tasks {

using namespace headwise;
using headwise::detail::GemmTasks;

constexpr Index panel = 64;
const kernels::Extents module_products[] = {
    {8192, 2304, 768}, {8192, 768, 768},  {768, 2304, 8192}, {768, 768, 8192}, {2048, 2304, 768},
    {4096, 1536, 512}, {512, 1536, 4096}, {512, 512, 4096},  {50000, 768, 512}};
const Index all_workers[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};

Index pieces(Index n, Index piece) { return (n + piece - 1) / piece; }

TEST_CASE("tasks of a product cover each element once", "[ops]") {
  for (const kernels::Extents size : {kernels::Extents{1, 1, 1},
                                      {1, 768, 768},
                                      {7, 65, 3},
                                      {64, 64, 64},
                                      {129, 1000, 5},
                                      {1000, 1, 1},
                                      {8192, 2304, 768}}) {
    for (const Index workers : all_workers) {
      for (const bool packs_a : {false, true}) {
        const GemmTasks tasks(size, workers, panel, packs_a);
        INFO(size.M << " x " << size.N << ", " << workers << " workers");
        const Index down = tasks.count / tasks.across;
        CHECK(tasks.count == down * tasks.across);
        CHECK((down - 1) * tasks.rows < size.M);
        CHECK(down * tasks.rows >= size.M);
        CHECK((tasks.across - 1) * tasks.columns < size.N);
        CHECK(tasks.across * tasks.columns >= size.N);
        CHECK((tasks.across == 1 || tasks.columns % panel == 0));
      }
    }
  }
}

TEST_CASE("tasks of a module's products keep all workers until the last is done", "[ops]") {
  for (const kernels::Extents& size : module_products) {
    for (const Index workers : all_workers) {
      const GemmTasks tasks(size, workers, panel, size.M < size.K);
      INFO(size.M << " x " << size.N << ", " << workers << " workers");
      const Index each = pieces(tasks.count, workers) * tasks.rows * tasks.columns;
      const auto share = static_cast<double>(size.M * size.N) / static_cast<double>(workers);
      CHECK(static_cast<double>(each) <= 1.1 * share);
    }
  }
}

TEST_CASE("a product of one worker is one task, a small one few", "[ops]") {
  for (const kernels::Extents& size : module_products) {
    CHECK(GemmTasks(size, 1, panel, false).count == 1);
  }
  CHECK(GemmTasks({16, 64, 64}, 16, panel, false).count == 1);
}

}  // namespace ops_gemm_tasks
