// Floating-point operations in closed form, from shapes alone. A multiply-add is two; comparisons
// and copies are none; e^x is one. Conventions, a pair being a visible (query, key) of one head:
//   linear        2 N K O, and N O for a bias
//   scores        2 d a pair            context  2 dv a pair
//   softmax       5 a pair: scale, subtract the maximum, e^x, sum, divide
#pragma once

#include <array>
#include <string_view>

#include "headwise/analysis/attention_shape.hpp"
#include "headwise/runtime/path.hpp"

namespace headwise::inline v0_1 {

/// FLOPs by step, in the order of the computation.
struct FlopCount {
  std::int64_t layer_norm = 0;    // step 1
  std::int64_t q_projection = 0;  // step 2, 2 N D H d
  std::int64_t k_projection = 0;  // step 2
  std::int64_t v_projection = 0;  // step 2
  std::int64_t qk_norm = 0;       // step 3a
  std::int64_t rotary = 0;        // step 3b, 3 an element that turns
  std::int64_t scores = 0;        // step 4a
  std::int64_t softmax = 0;       // step 4c
  std::int64_t context = 0;       // step 4e
  std::int64_t o_projection = 0;  // step 6
  std::int64_t biases = 0;        // of the projections and of masks, and what is done to scores
  std::int64_t dropout = 0;       // steps 4d and 7

  /// Steps 2 and 6, without their biases.
  std::int64_t projections() const {
    return q_projection + k_projection + v_projection + o_projection;
  }
  /// Matrix products alone.
  std::int64_t products() const { return projections() + scores + context; }
  /// All of them.
  std::int64_t total() const {
    return products() + softmax + layer_norm + qk_norm + rotary + biases + dropout;
  }

  /// One of them by its name.
  struct Step {
    std::string_view name;  // as reports print it
    std::int64_t flops;     // a multiply-add is two
  };
  /// All of them by name, in the order above.
  std::array<Step, 12> steps() const {
    return {{{"layer_norm", layer_norm},
             {"q projection", q_projection},
             {"k projection", k_projection},
             {"v projection", v_projection},
             {"qk norm", qk_norm},
             {"rotary", rotary},
             {"scores", scores},
             {"softmax", softmax},
             {"context", context},
             {"o projection", o_projection},
             {"biases", biases},
             {"dropout", dropout}}};
  }
};

namespace detail::inline HEADWISE_CODE {

/// What is done to the score of a pair: a quotient, a tanh and a product; a product and a
/// difference; a sum. A mask's bias is a sum.
inline std::int64_t score_operations(const AttentionShape& s) {
  return (s.softcap ? 3 : 0) + (s.alibi || s.own_slopes ? 2 : 0) +
         (s.relative_bias || s.own_distances > 0 ? 1 : 0) + s.mask_biases;
}

}  // namespace detail::inline HEADWISE_CODE

/// Forward, either path.
inline FlopCount count_flops(const AttentionShape& s) {
  detail::require_shape_of_call("count_flops", s);
  const std::int64_t N = s.query_rows(), M = s.key_rows(), D = s.d_model;
  const std::int64_t pairs = visible_pairs(s);
  FlopCount count;
  if (s.layer_norm) count.layer_norm = N * ((s.layer_norm_affine ? 9 : 7) * D + 16);
  count.q_projection = 2 * N * D * s.q_width();
  count.k_projection = 2 * M * s.k_in() * s.k_width();
  count.v_projection = 2 * M * s.v_in() * s.v_width();
  if (s.qk_norm) count.qk_norm = s.head_rows() * ((s.qk_norm_affine ? 4 : 3) * s.d() + 4);
  count.rotary = 3 * s.head_rows() * s.rotary_width;
  count.scores = 2 * s.d() * pairs;
  count.softmax = 5 * pairs;
  count.context = 2 * s.dv() * pairs;
  count.o_projection = 2 * N * s.context_width() * D;
  count.biases = (s.q_bias ? N * s.q_width() : 0) + (s.k_bias ? M * s.k_width() : 0) +
                 (s.v_bias ? M * s.v_width() : 0) + (s.o_bias ? N * D : 0) +
                 detail::score_operations(s) * pairs;
  count.dropout = (s.weight_dropout ? pairs : 0) + (s.output_dropout ? N * D : 0);
  return count;
}

/// Backward. Products cost twice the forward's: one for each operand's gradient. Flash computes
/// scores again: `scores` is 6 d a pair, against 4 d with kept weights.
///
/// softmax, a pair: dp p summed (2), subtract, multiply, scale; flash: scale, subtract both parts
/// of the logsumexp (2), e^x again, then subtract, multiply, scale, and 2 dv a query for
/// rowsum(d_o o). Flash does to scores again what forward did; kept weights need them again, 2 d a
/// pair, for a softcap or a function of the user's own. A softcap's slope: 4, with its scores 8.
/// What is learned of what changes scores is not counted.
inline FlopCount count_backward_flops(const AttentionShape& s, Path path) {
  detail::require_shape_of_call("count_backward_flops", s);
  if (s.packed()) detail::require_packed_path("count_backward_flops", path);
  const bool flash = path == Path::flash;
  const FlopCount forward = count_flops(s);
  const std::int64_t N = s.query_rows(), D = s.d_model, pairs = visible_pairs(s);
  FlopCount count;
  if (s.layer_norm) count.layer_norm = N * ((s.layer_norm_affine ? 18 : 11) * D + 2);
  count.q_projection = 2 * forward.q_projection;
  count.k_projection = 2 * forward.k_projection;
  count.v_projection = 2 * forward.v_projection;
  count.o_projection = 2 * forward.o_projection;
  if (s.qk_norm) {
    count.qk_norm = s.head_rows() * ((s.qk_norm_affine ? 12 : 7) * s.d() + 1) +
                    (s.qk_norm_affine ? 2 * s.d() : 0);
  }
  count.rotary = forward.rotary;
  count.scores = (flash ? 6 : 4) * s.d() * pairs;
  count.context = 4 * s.dv() * pairs;
  count.softmax = flash ? 7 * pairs + 2 * s.dv() * s.num_heads * s.query_rows() : 5 * pairs;
  count.biases = forward.biases - (flash ? 0 : detail::score_operations(s) * pairs);
  if (s.softcap) count.biases += (flash ? 4 : 8) * pairs;
  if (!flash && (s.softcap || s.score_function)) count.scores += 2 * s.d() * pairs;
  count.dropout = (s.weight_dropout ? 2 * pairs : 0) + (s.output_dropout ? N * D : 0);
  return count;
}

/// Forward FLOPs of plain self-attention: 8 B L D^2 + 4 B L^2 D + 5 B H L^2.
inline std::int64_t count_flops(Index batch_size, Index seq_len, Index d_model, Index n_heads) {
  return count_flops(AttentionShape{.batch_size = batch_size,
                                    .seq_len = seq_len,
                                    .d_model = d_model,
                                    .num_heads = n_heads})
      .total();
}

}  // namespace headwise::inline v0_1
