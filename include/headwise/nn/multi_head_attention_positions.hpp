// Between projections and attention: queries and keys of each head normalised, and turned by where
// they stand. Both in place where no backward follows; the norm's input is kept where one does,
// and rotations, whose gradient is the same rotation back, never need theirs.
//
//   3a rms_norm   q = rms_norm(q) gamma_Q, k likewise, each row of each head by itself
//   3b rotary     q = R_i q_i, k = R_j k_j
//
// Backward walks them up: dq = R_i^T dq_i, then through the norm.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "headwise/nn/multi_head_attention_packed.hpp"
#include "headwise/ops/packed_rotary.hpp"
#include "headwise/ops/rms_norm_heads.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Throws ArgumentError where rotary positions would count beyond the farthest offset.
inline void require_rotary_origin(std::string_view function, const MultiHeadAttentionOptions& o,
                                  const Position& origin) {
  if (!o.rotary) return;
  const Index moved = std::max<Index>(origin.query, origin.key);
  const Index most = farthest_position - o.rotary->offset;
  require(moved <= most, function, "origin moves queries or keys by ", moved, ", expected 0 to ",
          most, " (2^48 - the offset of rotary positions)");
}

/// Step 3b, or its way back, of q [B, H, L, d] and k [B, G, S, d] in place. Positions count from
/// the call's origin, of packed sequences in each.
template <class T>
void rotate_heads(const MultiHeadAttentionOptions& o, const MultiHeadAttentionCache<T>& cache,
                  const Out<T, 4>& q, const Out<T, 4>& k, bool transposed, const Context& context) {
  const MultiHeadAttentionCall<T>& call = cache.call;
  const auto rotate_from = [&](Index first, std::span<const Index> starts, Index rows,
                               const auto&... heads) {
    RotaryOptions options = *o.rotary;
    options.offset += first;
    const Rotations<T> rotations = call.packed()
                                       ? Rotations<T>(options, o.d_head, starts, context.memory)
                                       : Rotations<T>(options, o.d_head, rows, context.memory);
    (rotations.apply(heads, 0, transposed, context), ...);
  };
  const auto& key_starts = cache.self_attention ? call.query_starts : call.key_starts;
  if (call.origin.query == call.origin.key && (cache.self_attention || !call.packed())) {
    return rotate_from(call.origin.query, call.query_starts,
                       std::max<Index>(q.extent(2), k.extent(2)), q, k);
  }
  rotate_from(call.origin.query, call.query_starts, q.extent(2), q);
  rotate_from(call.origin.key, key_starts, k.extent(2), k);
}

/// Step 3a, forward. `training` keeps what was normalised, and a number a row.
template <class T, class W>
void normalise_heads(const MultiHeadAttentionOptions& o,
                     const MultiHeadAttentionParameters<T, W>& p, MultiHeadAttentionCache<T>& cache,
                     bool training, const Context& context) {
  const WritableHeads<T> x = writable_heads(o, cache);
  const T epsilon = T(o.qk_norm_epsilon);
  if (training) {
    const Index B = x.q.extent(0), L = x.q.extent(2), S = x.k.extent(2);
    cache.q_normed = Tensor<T, 3>::uninitialized({B, L, o.q_width()}, context.memory);
    cache.k_normed = Tensor<T, 3>::uninitialized({B, S, o.k_width()}, context.memory);
    cache.q_rstd = Tensor<T, 3>::uninitialized({B, o.num_heads, L}, context.memory);
    cache.k_rstd = Tensor<T, 3>::uninitialized({B, o.num_kv_heads, S}, context.memory);
  }
  const WritableHeads<T> y = writable_heads(o, cache);
  rms_norm_forward(In<T, 4>(x.q), p.gamma_q, epsilon, y.q, cache.q_rstd, context);
  rms_norm_forward(In<T, 4>(x.k), p.gamma_k, epsilon, y.k, cache.k_rstd, context);
}

/// Steps 3a and 3b, forward.
template <class T, class W>
void normalise_and_rotate(const MultiHeadAttentionOptions& o,
                          const MultiHeadAttentionParameters<T, W>& p,
                          MultiHeadAttentionCache<T>& cache, bool training,
                          const Context& context) {
  const auto note = [&](const char* q_name, const char* k_name) {
    if (context.trace == nullptr) return;
    const AttentionInputs<T> heads = heads_of(o, cache);
    context.trace->record(q_name, heads.q);
    context.trace->record(k_name, heads.k);
  };
  if (o.qk_norm) {
    normalise_heads(o, p, cache, training, context);
    note("Q_norm", "K_norm");
  }
  if (!o.rotary) return;
  const WritableHeads<T> heads = writable_heads(o, cache);
  rotate_heads(o, cache, heads.q, heads.k, false, context);
  note("Q_rotary", "K_rotary");
}

/// The gradients of gamma_Q and gamma_K of one call; absent where there are none.
template <class T>
struct GainGradients {
  Tensor<T, 1> q, k;  // [d]

  void add_to(MultiHeadAttentionGradients<T>& to, const Context& context) const {
    add(q, to.gamma_q);
    add(k, to.gamma_k);
    context.count_flops(q.size() + k.size(), q.size() + k.size());
  }

 private:
  static void add(const Tensor<T, 1>& from, Tensor<T, 1>& to) {
    for (Index n = 0; n < from.size(); ++n) to(n) = to(n) + from(n);
  }
};

/// Steps 3b and 3a, backward: dq [B, H, L, d] and dk [B, G, S, d] in place.
template <class T, class W>
GainGradients<T> normalise_and_rotate_backward(const MultiHeadAttentionOptions& o,
                                               const MultiHeadAttentionParameters<T, W>& p,
                                               const MultiHeadAttentionCache<T>& cache,
                                               const Out<T, 4>& dq, const Out<T, 4>& dk,
                                               const Context& context) {
  const auto note = [&](const char* q_name, const char* k_name) {
    if (context.trace == nullptr) return;
    context.trace->record(q_name, In<T, 4>(dq));
    context.trace->record(k_name, In<T, 4>(dk));
  };
  GainGradients<T> gains;
  if (o.rotary) {
    note("dQ_rotary", "dK_rotary");
    rotate_heads(o, cache, dq, dk, true, context);
  }
  if (!o.qk_norm) return gains;
  note("dQ_norm", "dK_norm");
  if (!p.gamma_q.absent()) {
    gains.q = Tensor<T, 1>(Shape{o.d_head}, context.memory);
    gains.k = Tensor<T, 1>(Shape{o.d_head}, context.memory);
  }
  const AttentionInputs<T> x = projected_heads(o, cache);
  rms_norm_backward(In<T, 4>(dq), x.q, p.gamma_q, cache.q_rstd, dq, gains.q, context);
  rms_norm_backward(In<T, 4>(dk), x.k, p.gamma_k, cache.k_rstd, dk, gains.k, context);
  return gains;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
