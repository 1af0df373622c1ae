// Scaled dot-product attention with its weights kept: the specification that the tiled form in
// flash_attention.hpp is held against, and what gives weights to look at.
#pragma once

#include <string_view>
#include <type_traits>

#include "headwise/ops/idle_queries.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/ops/score_gradients.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// All rules of attention_backward. Fresh gradients of what changes scores were made in the shapes
/// of that.
template <class T, OutputMemory memory>
AttentionSizes require_attention_backward(const In<T, 4>& d_o, const AttentionInputs<T>& inputs,
                                          const In<T, 4>& weights,
                                          const AttentionOptions<T>& options,
                                          const AttentionGradients<T>& gradients) {
  constexpr std::string_view function = "attention_backward";
  const In<T, 4> q = inputs.q, k = inputs.k, v = inputs.v;
  const Out<T, 4> dq = gradients.dq, dk = gradients.dk, dv = gradients.dv;
  const auto sizes = require_attention<T>(function, q, k, v, options);
  options.require_no_gap(function);
  const auto& [B, H, G, L, S, d, width_v] = sizes;
  require_shape(function, "d_o", d_o, Shape{B, H, L, width_v}, "q, head width of v");
  require_shape(function, "weights", weights, Shape{B, H, L, S}, "q by keys of k");
  require_shape(function, "dq", dq, q.shape(), "the shape of q");
  require_shape(function, "dk", dk, k.shape(), "the shape of k");
  require_shape(function, "dv", dv, v.shape(), "the shape of v");
  if constexpr (memory == OutputMemory::fresh) return sizes;
  require_outputs_apart(function, {{"dq", dq}, {"dk", dk}, {"dv", dv}},
                        {{"d_o", d_o}, {"q", q}, {"k", k}, {"v", v}, {"weights", weights}});
  require_apart_from_options<T>(function, {"dq", dq}, options);
  require_apart_from_options<T>(function, {"dk", dk}, options);
  require_apart_from_options<T>(function, {"dv", dv}, options);
  require_score_gradients<T>(function, gradients.score, options,
                             {{"d_o", d_o},
                              {"q", q},
                              {"k", k},
                              {"v", v},
                              {"weights", weights},
                              {"dq", dq},
                              {"dk", dk},
                              {"dv", dv}});
  return sizes;
}

/// attention_forward, also into tensors that were made for it.
template <class T, OutputMemory memory = OutputMemory::given>
void run_attention_forward(const AttentionInputs<T>& inputs, const AttentionOptions<T>& options,
                           const Out<T, 4>& weights, const Out<T, 4>& o, const Context& context) {
  constexpr std::string_view function = "attention_forward";
  const auto& [q, k, v] = inputs;
  const auto sizes = require_attention<T>(function, q, k, v, options);
  const auto& [B, H, G, L, S, d, dv] = sizes;
  require_shape(function, "weights", weights, Shape{B, H, L, S}, "q by keys of k");
  require_shape(function, "o", o, Shape{B, H, L, dv}, "q, head width of v");
  if constexpr (memory == OutputMemory::given) {
    require_outputs_apart(function, {{"weights", weights}, {"o", o}},
                          {{"q", q}, {"k", k}, {"v", v}});
    require_apart_from_options<T>(function, {"weights", weights}, options);
    require_apart_from_options<T>(function, {"o", o}, options);
  }
  if (weights.size() == 0 && o.size() == 0) return;

  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  Workspace<T> workspace(context.executor.concurrency(),
                         run.attention_forward_scratch(L, S, d, dv, options.dropout.active()),
                         context.memory);
  const auto task = [&, &sizes = sizes](Index t, Index worker) {
    const Index b = t / sizes.H, h = t % sizes.H;
    const auto head = attention_head(sizes, inputs.q, inputs.k, inputs.v, options, b, h);
    run.attention_head_forward(head, kernels::matrix(weights, b, h), kernels::matrix(o, b, h),
                               workspace.of(worker));
    const std::int64_t pairs = pairs_of(head.visibility, head.L);
    const std::int64_t extra = kernels::forward_extras(head);
    context.count_flops(pairs * (2 * (head.d + head.dv) + 5 + extra),
                        run.executed_gemm_flops({head.L, head.S, head.d}) +
                            run.executed_gemm_flops({head.L, head.dv, head.S}) +
                            (5 + extra) * head.L * head.S);
  };
  run_tasks(context, B * H, multiply_adds(sizes), task);
}

/// attention_backward, also into tensors that were made for it.
template <class T, OutputMemory memory = OutputMemory::given>
void run_attention_backward(const In<T, 4>& d_o, const AttentionInputs<T>& inputs,
                            const In<T, 4>& weights, const AttentionOptions<T>& options,
                            const AttentionGradients<T>& gradients, const Context& context) {
  const In<T, 4> q = inputs.q, k = inputs.k, v = inputs.v;
  const Out<T, 4> dq = gradients.dq, dk = gradients.dk, dv = gradients.dv;
  const auto sizes =
      require_attention_backward<T, memory>(d_o, inputs, weights, options, gradients);
  const auto& [B, H, G, L, S, d, width_v] = sizes;
  if (dq.size() == 0 && dk.size() == 0 && dv.size() == 0) return;

  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  const AttentionInputsWithoutIdle<T> of(run, d_o, q, weights, context);
  Workspace<T> workspace(
      context.executor.concurrency(),
      run.attention_backward_scratch(
          L, S, d, width_v, options.dropout.active(),
          options.score.softcap || !options.score.function.absent() || gradients.score.any()),
      context.memory);
  const auto task = [&, &sizes = sizes](Index t, Index worker) {
    const Index b = t / sizes.G, g = t % sizes.G;
    if (sizes.group() == 0) {
      fill(select(select(dk, b), g), T(0));
      fill(select(select(dv, b), g), T(0));
    }
    for (Index n = 0; n < sizes.group(); ++n) {
      const Index h = g * sizes.group() + n;
      const auto head = attention_head(sizes, of.q, k, v, options, b, h);
      const auto flows = flows_into(gradients.score, b, h);
      run.attention_head_backward(head, kernels::matrix(d_o, b, h),
                                  kernels::matrix(of.weights, b, h),
                                  {kernels::matrix(dq, b, h), kernels::matrix(dk, b, g),
                                   kernels::matrix(dv, b, g), n != 0, flows},
                                  workspace.of(worker));
      const std::int64_t pairs = pairs_of(head.visibility, head.L);
      const std::int64_t extra = kernels::readable_backward_extras(head);
      context.count_flops(pairs * (4 * (head.d + head.dv) + 5 + extra),
                          run.executed_gemm_flops({head.L, head.S, head.dv}) +
                              run.executed_gemm_flops({head.S, head.dv, head.L}) +
                              run.executed_gemm_flops({head.L, head.d, head.S}) +
                              run.executed_gemm_flops({head.S, head.d, head.L}) +
                              (5 + extra) * head.L * head.S);
    }
  };
  if (gradients.score.any()) {  // heads may share them: each adds to them in its turn
    for (Index t = 0; t < B * G; ++t) task(t, 0);
  } else {
    run_tasks(context, B * G, multiply_adds(sizes), task);
  }
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// weights = softmax(scores over visible keys), o = weights v; scores are scale q k^T, changed as
/// ScoreOptions says.
///
/// q        [B, H, L, d]    in
/// k        [B, G, S, d]    in; G divides H, query head h reads key head h / (H / G)
/// v        [B, G, S, dv]   in
/// options                  masks, scale, what changes scores, dropout of the weights
/// weights  [B, H, L, S]    out; before dropout: rows sum to 1
/// o        [B, H, L, dv]   out
///
/// A query that sees no key has weights 0 and o 0. What a hidden pair holds, NaN or infinity, does
/// not reach o. Any strides; outputs must not overlap inputs or each other.
/// Work    2 (d + dv) + 5 FLOPs a visible pair, and what dropout and changed scores cost
///         (count_flops).
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Vaswani et al., "Attention Is All You Need", 2017, arXiv 1706.03762, equation 1.
template <Scalar T>
void attention_forward(In<T, 4> q, In<std::type_identity_t<T>, 4> k,
                       In<std::type_identity_t<T>, 4> v,
                       const AttentionOptions<std::type_identity_t<T>>& options,
                       Out<std::type_identity_t<T>, 4> weights, Out<std::type_identity_t<T>, 4> o,
                       const Context& context = {}) {
  detail::run_attention_forward<T>({q, k, v}, options, weights, o, context);
}

/// The gradients of attention_forward.
///
/// d_o      [B, H, L, dv]   in
/// q, k, v                  in; as in forward
/// weights  [B, H, L, S]    in; what forward returned
/// options                  as in forward
/// dq       [B, H, L, d]    out
/// dk       [B, G, S, d]    out; summed over the query heads of a group
/// dv       [B, G, S, dv]   out; summed likewise
///
/// Nothing flows through a hidden pair, whatever it holds, nor to keys and values that are finite
/// from a query whose d_o is 0, whatever it holds: where it or its weights are no numbers, copies
/// of q and weights are made. Outputs must not overlap inputs or each other.
/// Work    4 (d + dv) + 5 FLOPs a visible pair, and what dropout and changed scores cost
///         (count_backward_flops); scratch [L, S] a thread. On the calling thread alone where
///         gradients of what changes scores are asked for: heads add to them in order.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  docs/derivations/attention_backward.md, steps 4e to 4a.
template <Scalar T>
void attention_backward(In<T, 4> d_o, const AttentionInputs<std::type_identity_t<T>>& inputs,
                        In<std::type_identity_t<T>, 4> weights,
                        const AttentionOptions<std::type_identity_t<T>>& options,
                        const AttentionGradients<std::type_identity_t<T>>& gradients,
                        const Context& context = {}) {
  detail::run_attention_backward<T>(d_o, inputs, weights, options, gradients, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
