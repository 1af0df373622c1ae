// The closed forms of cost against brute force, against the textbook's numbers, and against what is
// counted while the code runs.
#include "headwise/analysis/count_flops.hpp"

#include <optional>
#include <vector>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/nn/cost.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "support/catch.hpp"

namespace analysis_count_flops {

namespace {

using namespace headwise;

std::int64_t pairs_by_hand(Index L, Index S, Index keys, bool is_causal, Index window,
                           Index first) {
  std::int64_t pairs = 0;
  for (Index i = 0; i < L; ++i) {
    for (Index j = 0; j < keys; ++j) {
      const Index distance = j - (i + S - L);
      if (is_causal && distance > 0) continue;
      if (window != 0 && (distance >= window || -distance >= window) && j >= first) continue;
      ++pairs;
    }
  }
  return pairs;
}

struct Counted {
  std::int64_t forward, backward, forward_executed, backward_executed;
};

template <class T>
Counted run_counted(const MultiHeadAttention<T>& module, const MultiHeadAttentionCall<T>& call,
                    Index B, Index L, std::optional<Index> S = {}) {
  const auto& o = module.options();
  const Tensor<T, 3> x({B, L, o.d_model}), dy({B, L, o.d_model});
  const Tensor<T, 3> key({B, S.value_or(0), o.kdim}), value({B, S.value_or(0), o.vdim});
  FlopTally forward, backward;
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  if (!S) {
    module.forward(x, call, cache, {.flops = &forward});
    module.backward(dy, cache, gradients, {.flops = &backward});
  } else {
    module.forward(x, key, value, call, cache, {.flops = &forward});
    module.backward_cross(dy, cache, gradients, {.flops = &backward});
  }
  return {forward.useful, backward.useful, forward.executed, backward.executed};
}

}  // namespace

TEST_CASE("visible pairs in closed form equal the pairs counted one by one", "[analysis]") {
  for (const Index L : {0, 1, 2, 5, 11}) {
    for (const Index S : {0, 1, 3, 5, 17}) {
      for (Index keys = 0; keys <= S; keys += (S > 6 ? 4 : 1)) {
        for (const Index window : {0, 1, 2, 4, 30}) {
          for (const Index first : {0, 1, 3, 40}) {
            for (const bool is_causal : {false, true}) {
              CAPTURE(L, S, keys, window, first, is_causal);
              REQUIRE(visible_pairs(L, S, keys, is_causal, window, first) ==
                      pairs_by_hand(L, S, keys, is_causal, window, first));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("count_flops gives the textbook's numbers for known dimensions", "[analysis]") {
  struct Known {
    Index B, L, D, H;
    std::int64_t projections, core, softmax;
  };
  for (const Known& k : std::vector<Known>{
           {2, 6, 4, 2, 1'536, 1'152, 720},
           {2, 5, 12, 3, 11'520, 2'400, 750},
           {1, 128, 512, 8, 268'435'456, 33'554'432, 655'360},
           {1, 512, 512, 8, 1'073'741'824, 536'870'912, 10'485'760},
       }) {
    CAPTURE(k.B, k.L, k.D, k.H);
    const auto count = count_flops(
        AttentionShape{.batch_size = k.B, .seq_len = k.L, .d_model = k.D, .num_heads = k.H});
    CHECK(count.projections() == k.projections);
    CHECK(count.scores + count.context == k.core);
    CHECK(count.softmax == k.softmax);
    CHECK(count_flops(k.B, k.L, k.D, k.H) == k.projections + k.core + k.softmax);
  }
}

TEST_CASE("as many heads as one likes cost the same products as a single one", "[analysis]") {
  for (const Index H : {1, 2, 8, 64}) {
    const auto one = count_flops(AttentionShape{.seq_len = 100, .d_model = 128, .num_heads = 1});
    const auto many = count_flops(AttentionShape{.seq_len = 100, .d_model = 128, .num_heads = H});
    CHECK(many.products() == one.products());
    CHECK(many.softmax == H * one.softmax);
  }
}

TEST_CASE("backward products cost twice the forward ones and flash one score product more",
          "[analysis]") {
  const AttentionShape shape{.batch_size = 2, .seq_len = 64, .d_model = 64, .num_heads = 4};
  const auto forward = count_flops(shape);
  CHECK(count_backward_flops(shape, Path::materialized).products() == 2 * forward.products());
  CHECK(count_backward_flops(shape, Path::flash).products() ==
        2 * forward.products() + forward.scores);
}

TEST_CASE("projections and the core cost the same where the sequence is twice the width",
          "[analysis]") {
  const auto count = count_flops(AttentionShape{.seq_len = 512, .d_model = 256, .num_heads = 4});
  CHECK(count.projections() == count.scores + count.context);
}

TEST_CASE("useful FLOPs counted while running equal the formulas to the last one", "[analysis]") {
  const std::vector<Index> lengths = {7, 0, 3};
  const Tensor<double, 2> bias({21, 21}), square_bias({48, 48}), table({2, 9});
  const Tensor<double, 1> slopes(2), sinks(2);
  const auto bent = score_function<double>([](auto s, const Position&) { return s * s; });
  const auto even = mask_function([](const Position& at) { return at.key % 2 == 0; });
  struct Case {
    MultiHeadAttentionOptions options;
    MultiHeadAttentionCall<double> call;
    Index B, L;
    std::optional<Index> S = {};
  };
  std::vector<Case> cases = {
      {{.d_model = 8, .num_heads = 2}, {}, 2, 70},
      {{.d_model = 12, .num_heads = 4, .num_kv_heads = 2, .q_bias = true, .layer_norm = true},
       {.mask = {causal}},
       1,
       131},
      {{.d_model = 6, .num_heads = 3, .d_head = 5, .d_value = 2, .k_bias = true, .v_bias = true},
       {.mask = {causal, Mask::window(6)}, .weight_dropout = {0.2, 1, 1}},
       2,
       60},
      {{.d_model = 6, .num_heads = 2, .kdim = 4, .vdim = 5, .o_bias = false},
       {.mask = {Mask::key_lengths(lengths)}, .output_dropout = {0.5, 1, 1}},
       3,
       50,
       9},
      {{.d_model = 6, .num_heads = 2, .layer_norm = true, .layer_norm_affine = false},
       {.mask = {Mask::bias(bias), Mask::window(3)}},
       2,
       21},
      {{.d_model = 6, .num_heads = 2}, {.mask = {causal}}, 1, 60, 20},
      {{.d_model = 6, .num_heads = 2}, {.mask = {causal, Mask::function(even)}}, 1, 300},
      {{.d_model = 6, .num_heads = 2},
       {.mask = {causal, Mask::window(5).keeping_first(7)}},
       1,
       700},
      {{.d_model = 4, .num_heads = 1}, {.mask = {Mask::window(20).keeping_first(300)}}, 1, 600},
      {{.d_model = 6, .num_heads = 2}, {.mask = {causal}, .score = {.softcap = 3.0}}, 2, 70},
      {{.d_model = 6, .num_heads = 2},
       {.mask = {causal, Mask::bias(square_bias)},
        .score = {.softcap = 2.0,
                  .alibi_slopes = slopes,
                  .relative_bias = table,
                  .function = bent,
                  .sinks = sinks}},
       1,
       48},
      {{.d_model = 6, .num_heads = 2}, {.score = {.alibi_slopes = slopes, .function = bent}}, 1, 9},
      {{.d_model = 6, .num_heads = 2}, {}, 0, 5},
      {{.d_model = 6, .num_heads = 2}, {}, 2, 5, 0},
      {{.d_model = 16, .num_heads = 2},
       {.mask = {Mask::bias(square_bias)}, .weight_dropout = {0.2, 1, 1}},
       1,
       48},
      {{.d_model = 12,
        .num_heads = 4,
        .num_kv_heads = 2,
        .d_head = 6,
        .qk_norm = true,
        .rotary = RotaryOptions{.width = 4}},
       {.mask = {causal}},
       2,
       31},
      {{.d_model = 8, .num_heads = 2, .kdim = 3, .qk_norm = true, .qk_norm_affine = false},
       {},
       2,
       9,
       4},
      {{.d_model = 8, .num_heads = 2, .vdim = 3, .rotary = RotaryOptions{}}, {}, 3, 5, 14},
      {{.d_model = 8, .num_heads = 2, .qk_norm = true, .rotary = RotaryOptions{}}, {}, 0, 5},
  };
  for (std::size_t n = 0; n < cases.size(); ++n) {
    for (const Path path : {Path::materialized, Path::flash}) {
      Case& c = cases[n];
      c.call.path = path;
      CAPTURE(n, path == Path::flash);
      const MultiHeadAttention<double> module(c.options);
      const auto shape = attention_shape(module.options(), c.call, c.B, c.L, c.S);
      const auto counted = run_counted(module, c.call, c.B, c.L, c.S);
      CHECK(counted.forward == count_flops(shape).total());
      CHECK(counted.backward == count_backward_flops(shape, path).total());
      CHECK(counted.forward_executed >= counted.forward);
      CHECK(counted.backward_executed >= counted.backward);
    }
  }
}

TEST_CASE("tiles execute little more than is useful", "[analysis]") {
  const MultiHeadAttention<float> module(64, 1);
  for (const Index L : {512, 700}) {
    CAPTURE(L);
    const auto whole = run_counted<float>(module, {}, 1, L);
    CHECK(static_cast<double>(whole.forward_executed) < 1.02 * static_cast<double>(whole.forward));
    CHECK(static_cast<double>(whole.backward_executed) <
          1.02 * static_cast<double>(whole.backward));
    const auto half = run_counted<float>(module, {.mask = {causal}}, 1, L);
    CHECK(static_cast<double>(half.forward_executed) < 1.2 * static_cast<double>(half.forward));
    CHECK(static_cast<double>(half.backward_executed) < 1.2 * static_cast<double>(half.backward));
  }
}

TEST_CASE("keys behind the last one that a length leaves are not multiplied with", "[analysis]") {
  const MultiHeadAttention<float> module(64, 1);
  const Index length[] = {16};
  const MultiHeadAttentionCall<float> call{.mask = {Mask::key_lengths(length)}};
  const auto shape = attention_shape(module.options(), call, 1, 256, 256);
  const auto forward = count_flops(shape).total();
  const auto backward = count_backward_flops(shape, call.path).total();
  const auto cut = run_counted<float>(module, call, 1, 256);
  CHECK(static_cast<double>(cut.forward_executed) < 1.02 * static_cast<double>(forward));
  CHECK(static_cast<double>(cut.backward_executed) < 1.02 * static_cast<double>(backward));
}

}  // namespace analysis_count_flops
