// FLOPs and bytes of packed sequences in closed form against what is counted.
#include <optional>
#include <vector>

#include "headwise/analysis/count_flops.hpp"
#include "headwise/analysis/count_memory.hpp"
#include "headwise/nn/cost.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"

namespace analysis_packed_calls {

using namespace headwise;

namespace {
using Starts = std::vector<Index>;
}

TEST_CASE("FLOPs and bytes of packed calls are those of the formulas", "[analysis]") {
  const MultiHeadAttentionOptions plain{.d_model = 12, .num_heads = 4};
  const MultiHeadAttentionOptions full{.d_model = 12,
                                       .num_heads = 4,
                                       .num_kv_heads = 2,
                                       .d_head = 6,
                                       .d_value = 5,
                                       .q_bias = true,
                                       .v_bias = true,
                                       .layer_norm = true,
                                       .qk_norm = true,
                                       .sinks = true,
                                       .alibi = true,
                                       .relative_reach = 2,
                                       .rotary = RotaryOptions{.width = 4, .offset = 7}};
  const Starts starts = {0, 5, 5, 6, 473, 500}, key_starts = {0, 9, 11, 12, 379, 450};
  const Starts lengths = {3, 2, 1, 300, 0};
  for (const bool self : {true, false}) {
    for (const MultiHeadAttentionOptions& options : {plain, full}) {
      for (const Index workers : {1, 3}) {
        CAPTURE(self, options.layer_norm, workers);
        const MultiHeadAttention<float> module(options);
        const Tensor3<float> x({1, 500, 12}), key({1, 450, 12});
        MultiHeadAttentionCall<float> call{.mask = {causal, Mask::window(50)}};
        call.query_starts = starts;
        if (!self) call.key_starts = key_starts, call.mask = {Mask::key_lengths(lengths)};
        const auto shape = attention_shape(module.options(), call, 1, 500,
                                           self ? std::nullopt : std::optional<Index>(450));
        ThreadPool pool(workers);
        MemoryTally memory;
        FlopTally flops;
        const Context context{.executor = pool, .memory = &memory, .flops = &flops};
        MultiHeadAttentionCache<float> cache;
        auto gradients = module.zero_gradients();
        const auto y = self ? module.forward(x, call, cache, context)
                            : module.forward(x, key, key, call, cache, context);
        const auto forward = count_memory<float>(shape, Path::flash, true, workers);
        CHECK(memory.peak() == forward.peak());
        CHECK(memory.live() == forward.cache + forward.result);
        CHECK(flops.useful == count_flops(shape).total());

        flops.reset(), memory.reset_peak();
        const std::int64_t before = memory.live();
        if (self) {
          (void)module.backward(x, cache, gradients, context);
        } else {
          (void)module.backward_cross(x, cache, gradients, context);
        }
        const auto backward = count_backward_memory<float>(shape, Path::flash, workers);
        CHECK(memory.peak() == before + backward.peak());
        CHECK(flops.useful == count_backward_flops(shape, Path::flash).total());
      }
    }
  }
}

}  // namespace analysis_packed_calls
