#include "headwise/runtime/thread_pool.hpp"

#include "outside_faults/allocations.hpp"

namespace outside_faults_thread_pool {

using namespace headwise_tests;

TEST_CASE("a run of a pool allocates nothing, nor does one inside its tasks", "[outside]") {
  headwise::ThreadPool pool(3);
  std::atomic<long> tasks = 0;
  reset_allocations();
  for (int run = 0; run < 100; ++run) {
    pool.run(20, [&](headwise::Index, headwise::Index) {
      pool.run(3, [&](headwise::Index, headwise::Index) { ++tasks; });
    });
  }
  CHECK(allocations().count == 0);
  CHECK(tasks == 6000);
}

}  // namespace outside_faults_thread_pool
