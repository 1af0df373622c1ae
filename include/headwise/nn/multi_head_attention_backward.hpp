// The backward pass of MultiHeadAttention: the forward's steps, walked down.
#pragma once

#include <algorithm>
#include <optional>

#include "headwise/nn/multi_head_attention_packed.hpp"
#include "headwise/nn/multi_head_attention_positions.hpp"
#include "headwise/nn/multi_head_attention_scores.hpp"
#include "headwise/nn/multi_head_attention_trace.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/linear.hpp"

namespace headwise::inline v0_1 {

/// The gradients of the inputs of cross-attention.
template <class T>
requires(Scalar<T> || NarrowFloat<T>) struct CrossAttentionGradients {
  Tensor<T, 3> query;  // [B, L, D]
  Tensor<T, 3> key;    // [B, S, kdim]
  Tensor<T, 3> value;  // [B, S, vdim]
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// The inputs that a cache views, as numbers of T: of 16 bits as tensors of this.
template <class T>
struct CachedInputs {
  /// The cache has to stay. Throws std::bad_alloc.
  CachedInputs(const MultiHeadAttentionCache<T>& cache, const Context& context)
      : query(viewed_numbers(cache.query, widened[0], context)),
        key(cache.self_attention ? query : viewed_numbers(cache.key, widened[1], context)),
        value(cache.self_attention ? query : viewed_numbers(cache.value, widened[2], context)),
        projected_query(cache.x_norm.absent() ? query : In<T, 3>(cache.x_norm)) {}
  CachedInputs(const CachedInputs&) = delete;
  CachedInputs& operator=(const CachedInputs&) = delete;

  Tensor<T, 3> widened[3];
  const In<T, 3> query;            // [B, L, D]
  const In<T, 3> key;              // [B, S, kdim]
  const In<T, 3> value;            // [B, S, vdim]
  const In<T, 3> projected_query;  // [B, L, D]; what the projections read
};

/// Gradients of the projections: one tensor with self-attention, three without.
template <class T>
struct ProjectionGradients {
  Tensor<T, 3> qkv;      // [B, L, H d + G d + G dv]
  Tensor<T, 3> q, k, v;  // [B, L, H d], [B, S, G d], [B, S, G dv]

  /// Those of queries, keys and values, wherever they lie.
  ///@{
  Out<T, 3> of_q(const MultiHeadAttentionOptions& o) { return of(q, 0, o.q_width()); }
  Out<T, 3> of_k(const MultiHeadAttentionOptions& o) { return of(k, o.q_width(), o.k_width()); }
  Out<T, 3> of_v(const MultiHeadAttentionOptions& o) {
    return of(v, o.q_width() + o.k_width(), o.v_width());
  }
  ///@}

 private:
  Out<T, 3> of(Tensor<T, 3>& own, Index begin, Index width) {
    return qkv.absent() ? Out<T, 3>(own) : slice(qkv, 2, begin, width);
  }
};

template <class T>
ProjectionGradients<T> projection_gradients(const MultiHeadAttentionCache<T>& cache,
                                            const Context& context) {
  ProjectionGradients<T> d;
  const auto like = [&](const Tensor<T, 3>& x) {
    return Tensor<T, 3>::uninitialized(x.shape(), context.memory);
  };
  if (cache.self_attention) {
    d.qkv = like(cache.qkv);
  } else {
    d.q = like(cache.q);
    d.k = like(cache.k);
    d.v = like(cache.v);
  }
  return d;
}

/// Steps 5 to 3: from the gradient of the context to those of the projections.
template <class T, class W>
GainGradients<T> backward_heads(const MultiHeadAttentionOptions& o,
                                const MultiHeadAttentionParameters<T, W>& p,
                                const MultiHeadAttentionCache<T>& cache,
                                const Tensor<T, 3>& d_context, ProjectionGradients<T>& d,
                                const ScoreGradients<T>& score, const Context& context) {
  const AttentionInputs<T> read = heads_of(o, cache);
  const auto dq = split_heads(d.of_q(o), o.num_heads);
  const auto dk = split_heads(d.of_k(o), o.num_kv_heads);
  const auto dv = split_heads(d.of_v(o), o.num_kv_heads);
  const In<T, 4> d_heads = split_heads(d_context, o.num_heads);
  const auto options = attention_options(cache.call, p);
  if (cache.call.path == Path::materialized) {
    run_attention_backward<T, OutputMemory::fresh>(d_heads, read, cache.weights, options,
                                                   {dq, dk, dv, score}, context);
  } else if (cache.call.packed()) {
    const PackedGradients<T> to{rows_of_heads(dq), rows_of_heads(dk), rows_of_heads(dv), score};
    packed_backward_call<T, T, OutputMemory::fresh>(
        rows_of_heads(d_heads), packed_heads(cache, read),
        rows_of_heads(split_heads(cache.context, o.num_heads)), rows_of_heads(In<T, 4>(cache.lse)),
        options, to, context);
  } else {
    flash_backward_call<T, T, OutputMemory::fresh>(
        d_heads, read, {split_heads(cache.context, o.num_heads), cache.lse}, options,
        {dq, dk, dv, score}, context);
  }
  GainGradients<T> gains = normalise_and_rotate_backward<T>(o, p, cache, dq, dk, context);
  if (context.trace != nullptr) {
    trace_backward_heads<T>(d_heads, dq, dk, dv, *context.trace);
  }
  return gains;
}

/// Step 2: from the gradients of the projections to those of their inputs.
template <class T, class W>
void backward_projections(const MultiHeadAttentionParameters<T, W>& p, const CachedInputs<T>& of,
                          bool self, const ProjectionGradients<T>& d,
                          CrossAttentionGradients<T>& to, const Context& context) {
  const auto through = [&](const Tensor<T, 3>& dy, In<T, 3> x, In<W, 2> w, Tensor<T, 3>& dx) {
    run_linear_backward<T, W, OutputMemory::fresh>(merge_rows(dy), merge_rows(x), w, merge_rows(dx),
                                                   {}, {}, context);
  };
  // One product sums the three branches: dx = [dq | dk | dv] [W_Q | W_K | W_V]^T.
  if (self) return through(d.qkv, of.query, p.w_qkv, to.query);
  through(d.q, of.query, p.W_Q(), to.query);
  through(d.k, of.key, p.W_K(), to.key);
  through(d.v, of.value, p.W_V(), to.value);
}

/// The gradients of the weights and biases of steps 6 and 2. Made before the first of them is
/// written, so that a call that gets no memory leaves the caller's as they were.
template <class T>
class WeightGradients {
 public:
  /// Throws std::bad_alloc.
  WeightGradients(const MultiHeadAttentionCache<T>& cache, const CachedInputs<T>& inputs,
                  In<T, 3> dy, const ProjectionGradients<T>& d, const Context& context)
      : dy_(merge_rows(dy)), d_(d), self_(cache.self_attention) {
    of_w_o_.emplace(dy_, merge_rows(cache.context), context);
    if (self_) {
      of_w_qkv_.emplace(merge_rows(d.qkv), merge_rows(inputs.projected_query), context);
    } else {
      of_w_q_.emplace(merge_rows(d.q), merge_rows(inputs.projected_query), context);
      of_w_k_.emplace(merge_rows(d.k), merge_rows(inputs.key), context);
      of_w_v_.emplace(merge_rows(d.v), merge_rows(inputs.value), context);
    }
    Index scratch = 0;
    for (const auto* one : {&of_w_o_, &of_w_qkv_, &of_w_q_, &of_w_k_, &of_w_v_}) {
      if (*one) scratch = std::max<Index>(scratch, (*one)->scratch());
    }
    workspace_.emplace(context.executor.concurrency(), scratch, context.memory);
  }

  void add_to(MultiHeadAttentionGradients<T>& to, const Context& context) {
    const auto bias = [&](In<T, 2> d, Tensor<T, 1>& db) {
      if (!db.absent()) run_bias_backward<T, OutputMemory::fresh>(d, db, context);
    };
    of_w_o_->add_to(to.w_o, *workspace_, context);
    bias(dy_, to.b_o);
    if (self_) {
      of_w_qkv_->add_to(to.w_qkv, *workspace_, context);
      const In<T, 2> d_qkv = merge_rows(d_.qkv);
      bias(slice(d_qkv, 1, 0, to.q_width), to.b_q);
      bias(slice(d_qkv, 1, to.q_width, to.k_width), to.b_k);
      bias(slice(d_qkv, 1, to.q_width + to.k_width, to.v_width), to.b_v);
      return;
    }
    of_w_q_->add_to(to.W_Q(), *workspace_, context);
    of_w_k_->add_to(to.W_K(), *workspace_, context);
    of_w_v_->add_to(to.W_V(), *workspace_, context);
    bias(merge_rows(d_.q), to.b_q);
    bias(merge_rows(d_.k), to.b_k);
    bias(merge_rows(d_.v), to.b_v);
  }

 private:
  const In<T, 2> dy_;
  const ProjectionGradients<T>& d_;
  const bool self_;
  std::optional<LinearWeightGradient<T>> of_w_o_, of_w_qkv_, of_w_q_, of_w_k_, of_w_v_;
  std::optional<Workspace<T>> workspace_;
};

template <class T, class W>
[[gnu::cold]] void trace_backward_inputs(const MultiHeadAttentionOptions& o,
                                         const MultiHeadAttentionParameters<T, W>& p,
                                         ProjectionGradients<T>& d, In<T, 3> dx_norm,
                                         const Context& context) {
  trace_branch("dX_norm,Q", In<T, 3>(d.of_q(o)), In<W, 2>(p.W_Q()), context);
  trace_branch("dX_norm,K", In<T, 3>(d.of_k(o)), In<W, 2>(p.W_K()), context);
  trace_branch("dX_norm,V", In<T, 3>(d.of_v(o)), In<W, 2>(p.W_V()), context);
  context.trace->record("dX_norm", dx_norm);
}

/// Rows of dy, or where the output was dropped what flows into it before, in `storage`.
template <class T>
In<T, 3> backward_output_dropout(const MultiHeadAttentionCache<T>& cache, const In<T, 3>& dy,
                                 Tensor<T, 3>& storage, const Context& context) {
  const In<T, 3> rows = uniform_rows(dy, storage, context.memory);
  if (cache.call.output_dropout.active()) {
    auto dropped = Tensor<T, 3>::uninitialized(dy.shape(), context.memory);
    dropout_backward(In<T, 2>(merge_rows(rows)), cache.call.output_dropout, merge_rows(dropped),
                     context);
    storage = std::move(dropped);
    return storage;
  }
  return rows;
}

/// dx of dy_in [B, L, D] and what forward kept; adds to gradients. With self-attention that of
/// query alone, the sum over its three uses. A cache in 16 bits is widened first. Throws ShapeError
/// before anything is added, std::bad_alloc.
template <class T, class W>
CrossAttentionGradients<T> multi_head_attention_backward(
    const MultiHeadAttentionOptions& o, const MultiHeadAttentionParameters<T, W>& p, In<T, 3> dy_in,
    const MultiHeadAttentionCache<T>& cache, MultiHeadAttentionGradients<T>& gradients,
    const Context& context) {
  if constexpr (std::same_as<T, float>) {
    if (!cache.saved.exact()) {
      return multi_head_attention_backward(o, p, dy_in, wide_attention_cache(cache, context),
                                           gradients, context);
    }
  }
  const auto like = [&](In<T, 3> x) {
    return Tensor<T, 3>::uninitialized(x.shape(), context.memory);
  };
  const CachedInputs<T> inputs(cache, context);
  CrossAttentionGradients<T> of_inputs{like(inputs.query), {}, {}};
  if (!cache.self_attention) {
    of_inputs.key = like(inputs.key);
    of_inputs.value = like(inputs.value);
  }

  if (context.trace != nullptr) context.trace->record("dA_out", dy_in);
  // 7 dropout
  Tensor<T, 3> dy_storage;
  const In<T, 3> dy = backward_output_dropout(cache, dy_in, dy_storage, context);
  // 6 linear
  Tensor<T, 3> d_context = like(cache.context);
  run_linear_backward<T, W, OutputMemory::fresh>(merge_rows(dy), merge_rows(cache.context), p.w_o,
                                                 merge_rows(d_context), {}, {}, context);
  // 5 merge_heads, 4 attention, 3 split_heads
  ProjectionGradients<T> d = projection_gradients(cache, context);
  ScoreGradientTensors<T> of_scores(score_gradients(gradients), context.memory);
  const GainGradients<T> gains =
      backward_heads(o, p, cache, d_context, d, of_scores.views(), context);
  // 2 linear
  backward_projections(p, inputs, cache.self_attention, d, of_inputs, context);
  if (context.trace != nullptr) {
    trace_backward_inputs<T>(o, p, d, of_inputs.query, context);
  }
  // The gradients of the parameters of 6 linear and 2 linear, and
  // 1 layer_norm
  WeightGradients<T> of_weights(cache, inputs, dy, d, context);
  const auto finish = [&](Tensor<T, 3>& dx, MultiHeadAttentionGradients<T>& to,
                          const Context& with) {
    if (o.layer_norm) {  // first: it checks what the cache has of it
      layer_norm_backward(In<T, 2>(merge_rows(of_inputs.query)), merge_rows(inputs.query), p.gamma,
                          {cache.mean, cache.rstd}, merge_rows(dx), {to.gamma, to.beta}, with);
    }
    of_weights.add_to(to, with);
    gains.add_to(to, with);
    of_scores.add_to(score_gradients(to));
  };
  if (context.trace != nullptr) trace_backward_ends<T>(o, of_inputs.query, finish, context);
  finish(of_inputs.query, gradients, context);
  return of_inputs;
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
