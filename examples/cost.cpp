// What a shape costs before it runs, and what it cost after: FLOPs and bytes.
#include <iostream>

#include "headwise/headwise.hpp"

using namespace headwise;

int main() {
  const MultiHeadAttention<float> attention(
      {.d_model = 256, .num_heads = 8, .num_kv_heads = 2, .o_bias = false});
  const Tensor3<float> x({2, 300, 256});
  for (const Path path : {Path::materialized, Path::flash}) {
    const MultiHeadAttentionCall<float> call{.mask = causal, .path = path};
    const AttentionShape shape = attention_shape(attention.options(), call, 2, 300);
    FlopTally flops;
    MemoryTally bytes;
    {
      MultiHeadAttention<float>::Cache cache;
      attention.forward(x, call, cache, {.memory = &bytes, .flops = &flops});
    }
    std::cout << (path == Path::flash ? "flash\n" : "weights kept\n");
    report_flops(std::cout, "forward FLOPs", count_flops(shape), flops);
    const MemoryCount memory = count_memory<float>(shape, path, true);
    report_memory(std::cout, "forward bytes", memory, bytes.peak());
    std::cout << '\n';
    if (flops.useful != count_flops(shape).total() || bytes.peak() != memory.peak()) return 1;
  }
  std::cout
      << "the textbook's cache of (2, 300, 256, 8): "
      << count_memory_bytes(2, 300, 256, 8, ScalarType::f32) << " bytes, keys and values "
      << count_kv_bytes({.batch_size = 2, .seq_len = 300, .d_model = 256, .num_heads = 8},
                        ScalarType::f32)
      << ", with 2 heads for them "
      << count_kv_bytes(
             {.batch_size = 2, .seq_len = 300, .d_model = 256, .num_heads = 8, .num_kv_heads = 2},
             ScalarType::f32)
      << '\n';
  return 0;
}
