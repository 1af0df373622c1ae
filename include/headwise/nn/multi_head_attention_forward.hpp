// The forward pass of MultiHeadAttention, step by step.
#pragma once

#include "headwise/nn/multi_head_attention_packed.hpp"
#include "headwise/nn/multi_head_attention_positions.hpp"
#include "headwise/nn/multi_head_attention_scores.hpp"
#include "headwise/nn/multi_head_attention_trace.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/ops/stored_rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What a module attends with: x for all three, or inputs of their own.
template <class T>
struct ModuleInputs {
  In<T, 3> query, key, value;
  bool self_attention;
};

/// The rules of what a call asks for, whatever its inputs are.
template <class T, class W>
void require_asked(std::string_view function, const MultiHeadAttentionOptions& o,
                   const MultiHeadAttentionParameters<T, W>& p,
                   const MultiHeadAttentionCall<T>& call) {
  call.attention().require_in_range(function);
  require_rotary_origin(function, o, call.origin);
  call.score.require_heads(function, o.num_heads);
  require_own_scores(function, o, p, call.score);
  call.output_dropout.require_valid(function);
}

/// All rules of a call, before the first step of it is taken and counted. Inputs are of T, or of 16
/// bits.
template <class T, class W, class U>
void require_call(const MultiHeadAttentionOptions& o, const MultiHeadAttentionParameters<T, W>& p,
                  const ModuleInputs<U>& inputs, const MultiHeadAttentionCall<T>& call) {
  constexpr std::string_view function = "MultiHeadAttention::forward";
  const auto& [query, key, value, self] = inputs;
  const Index B = call.packed() ? 1 : query.extent(0), L = query.extent(1), S = key.extent(1);
  const auto sequences = call.packed() ? "packed sequences, " : "";
  require_shape(function, self ? "x" : "query", query, Shape{B, L, o.d_model}, sequences,
                "d_model ", o.d_model);
  if (self) {
    require(o.fused(), function,
            "kdim or vdim differ from d_model, expected separate keys and values");
  } else {
    require_shape(function, "key", key, Shape{B, S, o.kdim}, "batch of query, kdim ", o.kdim);
    require_shape(function, "value", value, Shape{B, S, o.vdim}, "batch and length of key, vdim ",
                  o.vdim);
  }
  if (call.packed()) {
    require_packed_call(function, call, self, o.num_heads, L, S);
  } else {
    require(call.key_starts.empty(), function,
            "key_starts is given without query_starts, expected both or none");
    call.mask.require_fits(function, B, o.num_heads, L, S);
  }
  require_asked(function, o, p, call);
}

/// Inputs of 16 bits as floats.
class WidenedInputs {
 public:
  /// Throws as require_call does, before anything is read; std::bad_alloc.
  template <class W, class U>
  WidenedInputs(const MultiHeadAttentionOptions& o, const MultiHeadAttentionParameters<float, W>& p,
                const ModuleInputs<U>& inputs, const MultiHeadAttentionCall<float>& call,
                const Context& context)
      : self_(inputs.self_attention) {
    require_call(o, p, inputs, call);
    query_ = widened_tensor(inputs.query, context);
    if (self_) return;
    key_ = widened_tensor(inputs.key, context);
    value_ = widened_tensor(inputs.value, context);
  }
  ModuleInputs<float> views() const {
    if (self_) return {query_, query_, query_, true};
    return {query_, key_, value_, false};
  }

 private:
  Tensor<float, 3> query_, key_, value_;
  bool self_;
};

/// Step 2 of self-attention: one product with the fused matrix. Where only some of q, k and v have
/// a bias, a product for each: the same bits, for a row of y knows only its own column of w.
template <class T, class W>
void project_fused(const MultiHeadAttentionParameters<T, W>& p, In<T, 2> x, Out<T, 2> qkv,
                   const Context& context) {
  const bool all = !p.b_q.absent() && !p.b_k.absent() && !p.b_v.absent();
  const bool none = p.b_q.absent() && p.b_k.absent() && p.b_v.absent();
  if (all || none) {
    Tensor<T, 1> bias;  // [H d + G d + G dv]
    if (all) {
      bias = Tensor<T, 1>::uninitialized({p.q_width + p.k_width + p.v_width}, context.memory);
      copy(In<T, 1>(p.b_q), slice(bias, 0, 0, p.q_width));
      copy(In<T, 1>(p.b_k), slice(bias, 0, p.q_width, p.k_width));
      copy(In<T, 1>(p.b_v), slice(bias, 0, p.q_width + p.k_width, p.v_width));
    }
    run_linear_forward<T, W, OutputMemory::fresh>(x, p.w_qkv, bias, qkv, context);
    return;
  }
  run_linear_forward<T, W, OutputMemory::fresh>(x, p.W_Q(), p.b_q, slice(qkv, 1, 0, p.q_width),
                                                context);
  run_linear_forward<T, W, OutputMemory::fresh>(x, p.W_K(), p.b_k,
                                                slice(qkv, 1, p.q_width, p.k_width), context);
  run_linear_forward<T, W, OutputMemory::fresh>(
      x, p.W_V(), p.b_v, slice(qkv, 1, p.q_width + p.k_width, p.v_width), context);
}

/// Step 1: x_norm, where the module has it.
template <class T, class W>
void normalise_query(const MultiHeadAttentionOptions& o,
                     const MultiHeadAttentionParameters<T, W>& p, MultiHeadAttentionCache<T>& cache,
                     const Context& context) {
  if (!o.layer_norm) return;
  const Index N = cache.query.extent(0) * cache.query.extent(1);
  cache.x_norm = Tensor<T, 3>::uninitialized(cache.query.shape(), context.memory);
  cache.mean = Tensor<T, 1>::uninitialized({N}, context.memory);
  cache.rstd = Tensor<T, 1>::uninitialized({N}, context.memory);
  layer_norm_forward(merge_rows(In<T, 3>(cache.query)), {p.gamma, p.beta}, T(o.layer_norm_epsilon),
                     merge_rows(cache.x_norm), {cache.mean, cache.rstd}, context);
  round_saved(cache.x_norm, cache.saved, context);
}

/// Steps 1 and 2: what attention reads, into the cache.
template <class T, class W>
void project(const MultiHeadAttentionOptions& o, const MultiHeadAttentionParameters<T, W>& p,
             MultiHeadAttentionCache<T>& cache, const Context& context) {
  const Index B = cache.query.extent(0), L = cache.query.extent(1), S = cache.key.extent(1);
  const auto tensor = [&](Index length, Index width) {
    return Tensor<T, 3>::uninitialized({B, length, width}, context.memory);
  };
  // 1 layer_norm
  normalise_query(o, p, cache, context);
  // 2 linear
  const In<T, 2> x = merge_rows(cache.projected_query());
  if (cache.self_attention) {
    cache.qkv = tensor(L, p.q_width + p.k_width + p.v_width);
    project_fused(p, x, Out<T, 2>(merge_rows(cache.qkv)), context);
    return;
  }
  cache.q = tensor(L, p.q_width);
  cache.k = tensor(S, p.k_width);
  cache.v = tensor(S, p.v_width);
  run_linear_forward<T, W, OutputMemory::fresh>(x, p.W_Q(), p.b_q, merge_rows(cache.q), context);
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(In<T, 3>(cache.key)), p.W_K(), p.b_k,
                                                merge_rows(cache.k), context);
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(In<T, 3>(cache.value)), p.W_V(), p.b_v,
                                                merge_rows(cache.v), context);
}

/// Steps 3 to 5: heads are views of the projections and of the context.
template <class T, class W>
void attend(const MultiHeadAttentionOptions& o, const MultiHeadAttentionParameters<T, W>& p,
            MultiHeadAttentionCache<T>& cache, bool training, const Context& context) {
  const Index B = cache.query.extent(0), L = cache.query.extent(1), S = cache.key.extent(1);
  const AttentionInputs<T> read = heads_of(o, cache);
  cache.context = Tensor<T, 3>::uninitialized({B, L, o.context_width()}, context.memory);
  const Out<T, 4> heads = split_heads(cache.context, o.num_heads);
  const AttentionOptions<T> options = attention_options(cache.call, p);
  if (cache.call.path == Path::materialized) {
    cache.weights = Tensor<T, 4>::uninitialized({B, o.num_heads, L, S}, context.memory);
    run_attention_forward<T, OutputMemory::fresh>(read, options, cache.weights, heads, context);
  } else {
    if (training) cache.lse = Tensor<T, 4>::uninitialized({B, o.num_heads, L, 2}, context.memory);
    if (cache.call.packed()) {
      packed_forward_call<T, T, OutputMemory::fresh>(packed_heads(cache, read), options,
                                                     rows_of_heads(heads),
                                                     rows_of_heads(Out<T, 4>(cache.lse)), context);
    } else {
      flash_forward_call<T, T, T, OutputMemory::fresh>({read.q, read.k, read.v}, options, heads,
                                                       cache.lse, context);
    }
  }
}

/// Steps 3 to 5. Where the cache is kept in 16 bits, what a norm reads is rounded before it, and
/// what attention reads before attention.
template <class T, class W>
void attend_projected(const MultiHeadAttentionOptions& o,
                      const MultiHeadAttentionParameters<T, W>& p,
                      MultiHeadAttentionCache<T>& cache, bool training, const Context& context) {
  const auto round_projections = [&] {
    for (const auto member : saved_projections<T>) {
      round_saved(cache.*member, cache.saved, context);
    }
  };
  if (o.qk_norm) round_projections();
  normalise_and_rotate(o, p, cache, training, context);
  if (!o.qk_norm) round_projections();
  round_saved(cache.q_normed, cache.saved, context);
  round_saved(cache.k_normed, cache.saved, context);
  attend(o, p, cache, training, context);
}

/// y [B, L, D]: steps 1 to 7, into a cache that is fresh; after a throw it is to be dropped.
/// Where `training`, it keeps what backward reads, as context.saved says; else what these steps
/// hand to each other. Throws ShapeError or ArgumentError before the first step, std::bad_alloc.
template <class T, class W>
Tensor<T, 3> multi_head_attention_forward(const MultiHeadAttentionOptions& o,
                                          const MultiHeadAttentionParameters<T, W>& p,
                                          const ModuleInputs<T>& inputs,
                                          const MultiHeadAttentionCall<T>& call,
                                          MultiHeadAttentionCache<T>& cache, bool training,
                                          const Context& context) {
  require_call(o, p, inputs, call);
  const bool self = inputs.self_attention;
  cache.self_attention = self;
  cache.module = o;
  cache.call = call;
  if (training) cache.saved = saved_of<T>(context, call.path);
  cache.query = uniform_rows(inputs.query, cache.query_copy, context.memory);
  const In<T, 3> query = cache.query;
  cache.key = self ? query : uniform_rows(inputs.key, cache.key_copy, context.memory);
  cache.value = self ? query : uniform_rows(inputs.value, cache.value_copy, context.memory);

  // 1 layer_norm, 2 linear
  project(o, p, cache, context);
  if (context.trace != nullptr) trace_projections(o, p, cache, *context.trace);
  // 3 split_heads, 4 attention, 5 merge_heads
  attend_projected(o, p, cache, training, context);
  // 6 linear
  auto y = Tensor<T, 3>::uninitialized({cache.query.extent(0), cache.query.extent(1), o.d_model},
                                       context.memory);
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(cache.context), p.w_o, p.b_o,
                                                merge_rows(y), context);
  if (context.trace != nullptr) trace_forward(o, p, cache, In<T, 3>(y), context);
  // 7 dropout
  if (call.output_dropout.active()) {
    dropout_forward(In<T, 2>(merge_rows(y)), call.output_dropout, merge_rows(y), context);
  }
  if (context.trace != nullptr) context.trace->record("A_out", y);
  for_each_saved<T>([&](auto member) { drop_saved_floats(cache.*member, cache.saved); });
  cache.filled = true;
  return y;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
