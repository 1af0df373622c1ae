// A transformer block while memory runs out anywhere: at any operator new of the program.
#include "headwise/nn/transformer_block.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "outside_faults/allocations.hpp"
#include "support/parameter_values.hpp"

namespace outside_faults_block {

using namespace headwise_tests;

namespace {

TransformerBlockOptions options_of(bool norm_first) {
  return {.d_model = 6,
          .num_heads = 2,
          .d_hidden = 5,
          .activation = Activation::silu,
          .gated = norm_first,
          .norm_first = norm_first};
}

template <class T>
TransformerBlockCall<T> call_of(Path path) {
  TransformerBlockCall<T> call{.mask = causal, .path = path};
  call.weight_dropout = {.rate = 0.5, .seed = 1};
  call.attention_dropout = {.rate = 0.5, .seed = 2};
  call.hidden_dropout = {.rate = 0.5, .seed = 3};
  call.output_dropout = {.rate = 0.5, .seed = 4};
  return call;
}

}  // namespace

TEST_CASE("a block that is made or called while memory runs out leaves everything as it was",
          "[outside]") {
  const bool norm_first = GENERATE(false, true);
  const Path path = GENERATE(Path::flash, Path::materialized);
  const auto nothing_to_change = [] { return true; };
  CHECK(fail_each_allocation([&] { TransformerBlock<double> block(options_of(norm_first)); },
                             nothing_to_change) > 8);
  const TransformerBlock<double> block(options_of(norm_first));
  const auto x = random_tensor<double>(Shape{2, 5, 6}, 1), dy = random_tensor<double>(x.shape(), 2);
  const Context context{.memory = std::pmr::new_delete_resource()};  // every time anew
  const auto call = call_of<double>(path);
  TransformerBlockCache<double> cache;
  (void)block.forward(x, call, cache, context);
  auto gradients = block.zero_gradients();
  (void)block.backward(dy, cache, gradients, context);
  const auto once = values_of<double>(gradients);
  CHECK(fail_each_allocation([&] { (void)block.backward(dy, cache, gradients, context); },
                             [&] { return same_bits(values_of<double>(gradients), once); }) > 12);
  CHECK_FALSE(same_bits(values_of<double>(gradients), once));
  CHECK(fail_each_allocation([&] { (void)block.forward(x, call, context); }, nothing_to_change) >
        8);
}

TEST_CASE("after a first call with the same shapes a block asks the system for nothing",
          "[outside]") {
  if (!detail::recycles()) return;
  const bool norm_first = GENERATE(false, true);
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index threads = GENERATE(1, 3);
  auto options = options_of(norm_first);
  options.d_model = 64;
  const TransformerBlock<float> block(options);
  const Tensor3<float> x(Shape{2, 70, 64}), dy(x.shape());
  ThreadPool pool(threads);
  const Context context{.executor = pool};
  auto gradients = block.zero_gradients();
  TransformerBlockCache<float> cache;
  for (int step = 0; step < 5; ++step) {
    reset_allocations();
    const auto y = block.forward(x, call_of<float>(path), cache, context);
    const auto dx = block.backward(dy, cache, gradients, context);
    const long count = allocations().count;
    CAPTURE(step, threads, count);
    if (step >= 2) CHECK(count == 0);  // the second fills a cache beside the first's
  }
}

}  // namespace outside_faults_block
