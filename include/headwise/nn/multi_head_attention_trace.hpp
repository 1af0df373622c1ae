// The tensors of MultiHeadAttention under their textbook names. Called only where a trace is asked
// for: what the fast path never forms (scores, weights, the branches of dx) is formed here, by code
// that is compiled for size.
#pragma once

#include "headwise/nn/multi_head_attention_cache.hpp"
#include "headwise/nn/multi_head_attention_scores.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/runtime/trace.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// What the steps that are made for a trace run with: what the call does, but that they count
/// nothing.
inline Context untraced(const Context& context) {
  return {.executor = context.executor, .memory = context.memory, .products = context.products};
}

/// Scores [B, H, L, S] as softmax reads them: scaled, biased, -infinity where hidden.
template <class T>
[[gnu::cold]] Tensor<T, 4> traced_scores(const AttentionOptions<T>& options,
                                         const AttentionInputs<T>& heads, const Context& context) {
  const auto sizes = require_attention<T>("Trace", heads.q, heads.k, heads.v, options);
  Tensor<T, 4> scores({sizes.B, sizes.H, sizes.L, sizes.S});
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  Tensor<T, 1> packed({run.gemm_scratch({sizes.L, sizes.S, sizes.d})});
  for (Index b = 0; b < sizes.B; ++b) {
    for (Index h = 0; h < sizes.H; ++h) {
      const auto head = attention_head(sizes, heads.q, heads.k, heads.v, options, b, h);
      run.score_head(head, kernels::matrix(Out<T, 4>(scores), b, h), packed.data());
      for (Index i = 0; i < sizes.L; ++i) {
        for (Index j = 0; j < sizes.S; ++j) {
          if (!head.visibility.visible(i, j)) set_negative_infinity(scores(b, h, i, j));
        }
      }
    }
  }
  return scores;
}

/// Steps 1 and 2, and the weights.
template <class T, class W>
[[gnu::cold]] void trace_projections(const MultiHeadAttentionOptions& o,
                                     const MultiHeadAttentionParameters<T, W>& p,
                                     const MultiHeadAttentionCache<T>& cache, Trace& trace) {
  const AttentionInputs<T> heads = projected_heads(o, cache);
  trace.record("X", In<T, 3>(cache.query));
  trace.record("X_norm", cache.projected_query());
  trace.record("W_Q", p.W_Q());
  trace.record("W_K", p.W_K());
  trace.record("W_V", p.W_V());
  trace.record("W_O", p.w_o);
  if (!p.b_o.absent()) trace.record("b_O", p.b_o);
  trace.record("Q", heads.q);
  trace.record("K", heads.k);
  trace.record("V", heads.v);
}

/// Steps 4a to 4c. Packed sequences have no [L, S] in common, and neither A nor AS.
template <class T>
[[gnu::cold]] void trace_weights(const MultiHeadAttentionCache<T>& cache,
                                 const AttentionOptions<T>& options,
                                 const AttentionInputs<T>& heads, const Context& context) {
  Trace& trace = *context.trace;
  trace.record("A", traced_scores(options, heads, context));
  if (cache.weights.absent()) {
    Tensor<T, 4> weights(
        {heads.q.extent(0), heads.q.extent(1), heads.q.extent(2), heads.k.extent(2)});
    Tensor<T, 4> unused(
        {heads.q.extent(0), heads.q.extent(1), heads.q.extent(2), heads.v.extent(3)});
    attention_forward(heads.q, heads.k, heads.v, options, weights, unused, untraced(context));
    trace.record("AS", weights);
  } else {
    trace.record("AS", cache.weights);
  }
}

/// Steps 3 to 6; `y` is the output before dropout.
template <class T, class W>
[[gnu::cold]] void trace_forward(const MultiHeadAttentionOptions& o,
                                 const MultiHeadAttentionParameters<T, W>& p,
                                 const MultiHeadAttentionCache<T>& cache, In<T, 3> y,
                                 const Context& context) {
  Trace& trace = *context.trace;
  const AttentionInputs<T> heads = heads_of(o, cache);
  if (!cache.call.packed()) trace_weights(cache, attention_options(cache.call, p), heads, context);
  trace.record("AO_heads", split_heads(cache.context, o.num_heads));
  trace.record("AO_cat", cache.context);
  Tensor<T, 3> before_bias(y.shape());
  run_linear_forward<T, W, OutputMemory::fresh>(merge_rows(cache.context), p.w_o, {},
                                                merge_rows(before_bias), untraced(context));
  trace.record("AO_lin", before_bias);
  trace.record("AO_bias", y);
}

/// What one projection brings to the gradient of its input: dq W^T.
template <class T, class W>
[[gnu::cold]] void trace_branch(std::string_view name, In<T, 3> d_projection, In<W, 2> w,
                                const Context& context) {
  Tensor<T, 3> branch({d_projection.extent(0), d_projection.extent(1), w.extent(0)});
  const Tensor<T, 2> x({branch.extent(0) * branch.extent(1), w.extent(0)});
  run_linear_backward<T, W, OutputMemory::fresh>(merge_rows(d_projection), x, w, merge_rows(branch),
                                                 {}, {}, untraced(context));
  context.trace->record(name, branch);
}

/// Gradients of the heads.
template <class T>
[[gnu::cold]] void trace_backward_heads(In<T, 4> d_heads, In<T, 4> dq, In<T, 4> dk, In<T, 4> dv,
                                        Trace& trace) {
  trace.record("dAO_heads", d_heads);
  trace.record("dQ", dq);
  trace.record("dK", dk);
  trace.record("dK^T", transpose(dk, 2, 3));
  trace.record("dV", dv);
}

/// dX and the gradients of the parameters, of this call alone: finish(dx, gradients, context) makes
/// the one of dX_norm and adds to the others.
template <class T, class Finish>
[[gnu::cold]] void trace_backward_ends(const MultiHeadAttentionOptions& o, Tensor<T, 3> dx,
                                       const Finish& finish, const Context& context) {
  MultiHeadAttentionGradients<T> alone(o, context.memory);
  finish(dx, alone, untraced(context));
  context.trace->record("dX", dx);
  alone.for_each([&](const std::string& name, auto view) { context.trace->record(name, view); },
                 "d");
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
