// Bytes in closed form against what the memory resource was asked for.
#include "headwise/analysis/count_memory.hpp"

#include <optional>
#include <sstream>
#include <vector>

#include "headwise/analysis/report.hpp"
#include "headwise/nn/cost.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/ops/saved_in.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"
#include "support/other_products.hpp"

namespace analysis_count_memory {

namespace {

using namespace headwise;

/// Runs forward and backward and holds every byte against the formulas.
template <class T>
void check_bytes(const MultiHeadAttentionOptions& options, MultiHeadAttentionCall<T> call, Index B,
                 Index L, std::optional<Index> S, Index workers, Saved saved = {},
                 Products products = {}) {
  const MultiHeadAttention<T> module(options);
  const auto& o = module.options();
  const Tensor<T, 3> x({B, L, o.d_model}), dy({B, L, o.d_model});
  const Tensor<T, 3> key({B, S.value_or(0), o.kdim}), value({B, S.value_or(0), o.vdim});
  ThreadPool pool(workers);
  for (const Path path : {Path::materialized, Path::flash}) {
    CAPTURE(path == Path::flash, B, L, S.value_or(-1), workers);
    call.path = path;
    auto shape = attention_shape(o, call, B, L, S);
    shape.saved_in_16_bits = !saved.exact();
    const auto forward = count_memory<T>(shape, path, true, workers, products);
    const auto inference = count_memory<T>(shape, path, false, workers, products);
    const auto backward = count_backward_memory<T>(shape, path, workers, products);
    MemoryTally tally;
    const Context context{.executor = pool, .memory = &tally, .products = products, .saved = saved};
    if (!S) {
      module.forward(x, call, context);
    } else {
      module.forward(x, key, value, call, context);
    }
    CHECK(tally.peak() == inference.peak());
    CHECK(tally.live() == 0);

    tally.reset_peak();
    MultiHeadAttentionCache<T> cache;
    auto gradients = module.zero_gradients();
    const auto y = !S ? module.forward(x, call, cache, context)
                      : module.forward(x, key, value, call, cache, context);
    CHECK(tally.peak() == forward.peak());
    CHECK(tally.live() == forward.cache + forward.result);

    tally.reset_peak();
    const std::int64_t before = tally.live();
    if (!S) {
      const auto dx = module.backward(dy, cache, gradients, context);
      CHECK(tally.live() == before + backward.result);
    } else {
      const auto d = module.backward_cross(dy, cache, gradients, context);
      CHECK(tally.live() == before + backward.result);
    }
    CHECK(tally.peak() == before + backward.peak());
  }
}

}  // namespace

TEST_CASE("of no rows the formula in bytes is what the memory resource was asked for",
          "[analysis]") {
  const MultiHeadAttentionOptions options{.d_model = 64,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .q_bias = true,
                                          .k_bias = true,
                                          .v_bias = true,
                                          .layer_norm = true,
                                          .qk_norm = true,
                                          .rotary = RotaryOptions{}};
  for (const Index workers : {1, 3}) {
    check_bytes<float>(options, {}, 2, 0, std::nullopt, workers);
    check_bytes<float>(options, {}, 0, 5, std::nullopt, workers);
    check_bytes<double>({.d_model = 64, .num_heads = 4}, {}, 2, 0, 9, workers);
    check_bytes<float>({.d_model = 64, .num_heads = 4}, {}, 2, 9, 0, workers);
  }
}

TEST_CASE("bytes asked of the memory resource equal the formula to the byte", "[analysis]") {
  const std::vector<Index> lengths = {7, 3};
  check_bytes<float>({.d_model = 64, .num_heads = 4}, {}, 2, 33, std::nullopt, 1);
  check_bytes<double>({.d_model = 64,
                       .num_heads = 4,
                       .num_kv_heads = 2,
                       .q_bias = true,
                       .k_bias = true,
                       .v_bias = true,
                       .layer_norm = true},
                      {.mask = {causal, Mask::window(5)},
                       .weight_dropout = {0.1, 1, 1},
                       .output_dropout = {0.1, 1, 1}},
                      2, 133, std::nullopt, 1);
  check_bytes<float>({.d_model = 64, .num_heads = 4, .kdim = 10, .vdim = 7, .q_bias = true},
                     {.mask = {Mask::key_lengths(lengths)}}, 2, 33, 9, 1);
  check_bytes<float>({.d_model = 30, .num_heads = 3, .d_head = 7, .d_value = 11, .v_bias = true},
                     {}, 1, 100, std::nullopt, 3);
  // A bias for some of q, k and v: three products instead of one.
  check_bytes<double>({.d_model = 256, .num_heads = 2, .q_bias = true}, {}, 1, 3, std::nullopt, 1);
  check_bytes<float>({.d_model = 64, .num_heads = 2, .k_bias = true, .v_bias = true}, {}, 1, 3,
                     std::nullopt, 2);
  check_bytes<float>({.d_model = 8, .num_heads = 2}, {}, 2, 17, 0, 1);
  check_bytes<float>({.d_model = 30,
                      .num_heads = 3,
                      .d_head = 16,
                      .qk_norm = true,
                      .rotary = RotaryOptions{.width = 6}},
                     {}, 2, 40, std::nullopt, 2);
  check_bytes<double>({.d_model = 30,
                       .num_heads = 4,
                       .num_kv_heads = 2,
                       .d_head = 4,
                       .vdim = 7,
                       .qk_norm = true,
                       .qk_norm_affine = false},
                      {}, 2, 9, 33, 1);
  // Projections and products wide enough to fill a packed block: that of o is the peak.
  check_bytes<float>({.d_model = 1280, .num_heads = 20, .rotary = RotaryOptions{}}, {}, 1, 3, 20,
                     1);
  check_bytes<double>({.d_model = 8, .num_heads = 2}, {.score = {.softcap = 2.0}}, 2, 21,
                      std::nullopt, 1);
  check_bytes<double>({.d_model = 8, .num_heads = 2, .sinks = true}, {}, 3, 21, std::nullopt, 2);
  check_bytes<float>({.d_model = 30, .num_heads = 3, .kdim = 5, .sinks = true, .relative_reach = 4},
                     {}, 2, 700, 9, 1);
  check_bytes<float>({.d_model = 30, .num_heads = 3, .alibi = true}, {}, 2, 9, 700, 1);
  // Few queries, whose keys threads share.
  check_bytes<float>({.d_model = 64, .num_heads = 2, .num_kv_heads = 1}, {.mask = {causal}}, 1, 1,
                     2100, 3);
  check_bytes<double>({.d_model = 8, .num_heads = 2}, {}, 1, 2, 1300, 3);
  check_bytes<long double>({.d_model = 8, .num_heads = 2}, {.mask = {causal}}, 1, 17, std::nullopt,
                           2);
}

TEST_CASE("bytes of a cache in 16 bits equal the formula to the byte, forward and backward",
          "[analysis]") {
  const MultiHeadAttentionOptions all{.d_model = 30,
                                      .num_heads = 3,
                                      .d_head = 16,
                                      .layer_norm = true,
                                      .qk_norm = true,
                                      .rotary = RotaryOptions{.width = 6}};
  for (const Saved& saved : {saved_in<BFloat16>(), saved_in<Float16>()}) {
    check_bytes<float>({.d_model = 64, .num_heads = 4}, {}, 2, 33, std::nullopt, 1, saved);
    check_bytes<float>(all, {.mask = {causal}}, 2, 40, std::nullopt, 2, saved);
    check_bytes<float>({.d_model = 64, .num_heads = 4, .kdim = 10, .vdim = 7}, {}, 2, 33, 9, 1,
                       saved);
    check_bytes<double>(all, {}, 2, 9, std::nullopt, 1, saved);  // nothing is rounded
  }
  const auto kept = [](bool in_16_bits) {
    return count_memory<float>(
               {.seq_len = 1024, .d_model = 768, .num_heads = 12, .saved_in_16_bits = in_16_bits},
               Path::flash, true)
        .cache;
  };
  const std::int64_t as_floats = (768 + 2 * 12) * 1024 * 4;  // context and logsumexp
  CHECK(2 * (kept(true) - as_floats) == kept(false) - as_floats);
}

TEST_CASE("bytes of calls by products of bf16 and its pieces equal the formula to the byte",
          "[analysis]") {
  for (const auto& [name, products] : headwise_tests::supported_products()) {
    CAPTURE(name);
    check_bytes<float>({.d_model = 64, .num_heads = 4}, {}, 2, 33, std::nullopt, 1, {}, products);
    check_bytes<float>({.d_model = 30, .num_heads = 3, .d_head = 7, .d_value = 11, .v_bias = true},
                       {.mask = {causal}}, 1, 300, std::nullopt, 3, {}, products);
    check_bytes<float>({.d_model = 64, .num_heads = 2, .num_kv_heads = 1}, {.mask = {causal}}, 1, 1,
                       2100, 3, {}, products);
    check_bytes<float>({.d_model = 24, .num_heads = 2, .qk_norm = true}, {}, 1, 50, std::nullopt, 1,
                       saved_in<BFloat16>(), products);
  }
}

TEST_CASE("flash attention keeps nothing that grows with the square of the length", "[analysis]") {
  const auto peak = [](Index L, Path path) {
    const AttentionShape shape{.seq_len = L, .d_model = 64, .num_heads = 4};
    return count_memory<float>(shape, path, true).peak() +
           count_backward_memory<float>(shape, path).peak();
  };
  const auto growth = [&](Path path) {
    return static_cast<double>(peak(8192, path) - peak(4096, path)) /
           static_cast<double>(peak(4096, path) - peak(2048, path));
  };
  CHECK(growth(Path::flash) == Approx(2.0).epsilon(0.01));
  CHECK(growth(Path::materialized) > 3.9);
}

TEST_CASE("count_memory_bytes gives the textbook's cache and B h L^2 of it are the weights",
          "[analysis]") {
  CHECK(count_memory_bytes(2, 6, 4, 2, ScalarType::f64) == (5 * 2 * 6 * 4 + 2 * 2 * 6 * 6) * 8);
  CHECK(count_memory_bytes(1, 512, 512, 8, ScalarType::f32) == (5 * 512 * 512 + 8 * 512 * 512) * 4);
  const auto kept = [](Path path) {
    return count_memory<float>({.batch_size = 2, .seq_len = 96, .d_model = 32, .num_heads = 4},
                               path, true)
        .cache;
  };
  CHECK(kept(Path::materialized) - kept(Path::flash) == (2 * 4 * 96 * 96 - 2 * 2 * 4 * 96) * 4);
}

TEST_CASE("grouped heads divide the bytes of keys and values by H over G", "[analysis]") {
  AttentionShape shape{.batch_size = 2, .seq_len = 10, .d_model = 64, .num_heads = 8};
  const auto all = count_kv_bytes(shape, ScalarType::f32);
  CHECK(all == 2 * 10 * 8 * (8 + 8) * 4);
  for (const Index G : {1, 2, 4}) {
    shape.num_kv_heads = G;
    CHECK(count_kv_bytes(shape, ScalarType::f32) * 8 / G == all);
  }
}

TEST_CASE("the report says whether what was counted is what was predicted", "[analysis]") {
  const AttentionShape shape{.seq_len = 6, .d_model = 4, .num_heads = 2};
  FlopTally tally;
  tally.add(count_flops(shape).total(), 5000);
  std::ostringstream right, wrong;
  report_flops(right, "forward", count_flops(shape), tally);
  tally.add(1, 0);
  report_flops(wrong, "forward", count_flops(shape), tally);
  CHECK_THAT(right.str(), ContainsSubstring("FLOPs, equal"));
  CHECK_THAT(wrong.str(), ContainsSubstring("NOT EQUAL"));
  std::ostringstream memory;
  const auto count = count_memory<float>(shape, Path::flash, true);
  report_memory(memory, "bytes", count, count.peak());
  CHECK_THAT(memory.str(), ContainsSubstring("bytes, equal"));
}

}  // namespace analysis_count_memory
