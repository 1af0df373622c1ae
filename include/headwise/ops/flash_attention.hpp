// Scaled dot-product attention in tiles: the same function as in attention.hpp, with nothing of
// size L x S in either direction. Forward keeps the logsumexp of each query, from which backward
// computes the weights again.
#pragma once

#include <algorithm>
#include <type_traits>

#include "headwise/ops/attention_options.hpp"
#include "headwise/ops/decode_call.hpp"
#include "headwise/ops/flash_backward_call.hpp"
#include "headwise/ops/flash_backward_views.hpp"
#include "headwise/ops/idle_queries.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/ops/stored_rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Queries of a task of forward: as many as share a copy of their keys, in parts of one size, and
/// fewer where several workers would have less than four tasks each. No result depends on it.
template <class T>
Index queries_of_task(const kernels::Kernels<T>& run, const SequenceRows& rows, Index heads,
                      Index workers) {
  constexpr Index tasks_a_worker = 4;
  Index most = run.forward_queries;
  while (workers > 1 && most / 2 >= run.columns &&
         heads * rows.count_blocks(most) < tasks_a_worker * workers) {
    most /= 2;
  }
  if (rows.packed()) return most;
  const Index L = rows.length(0);
  return kernels::round_up(count_parts(L, count_parts(L, most)), run.columns);
}

/// A call of flash attention forward whose arguments fit. A task is some queries of a head. The
/// scratch has room for run.flash_forward_scratch of each worker.
template <class T, class Inputs, class O, class Scratches>
void forward_sequences(const FlashSequences& sequences, const Inputs& inputs,
                       const AttentionOptions<T>& options, const Out<O, 4>& o, const Out<T, 4>& lse,
                       Scratches& scratch, const Context& context) {
  const AttentionSizes& sizes = sequences.sizes;
  const SequenceRows& rows = sequences.queries;
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  const Index queries = queries_of_task(run, rows, sizes.H, context.executor.concurrency());
  Workspace<T> to_round(context.executor.concurrency(), rows_to_round<T, O>(queries, sizes.dv),
                        context.memory);
  const Index tasks = sizes.H * rows.block_numbers(queries);
  const auto task = [&](Index t, Index worker) {
    // The last first: behind a causal mask they see most keys, and should not be what is waited
    // for.
    const auto [b, number] = rows.task(tasks - 1 - t, sizes.H, queries);
    const Index blocks = rows.block_numbers(queries, b), h = number / blocks;
    const Index i0 = number % blocks * queries;
    if (i0 >= rows.length(b)) return;
    const auto head = head_of_sequence<T>(sequences, inputs, options, b, h);
    const auto head_lse =
        lse.absent() ? kernels::Matrix<T>{nullptr, 0, 0} : kernels::matrix(rows.of(lse, b), b, h);
    const Index count = std::min<Index>(queries, head.L - i0);
    const auto o_rows = kernels::matrix(rows.of(o, b), b, h).from(i0, 0);
    kernels::TileWork work;
    write_rows(o_rows, count, sizes.dv, to_round.of(worker).take(0), [&](const auto& to) {
      work = run.flash_forward(head, i0, count, to, head_lse, scratch.of(worker));
    });
    const std::int64_t extra = kernels::forward_extras(head);
    context.count_flops(work.pairs * (2 * (sizes.d + sizes.dv) + 5 + extra), work.executed_flops);
  };
  run_tasks(context, tasks, sequences.multiply_adds(), task);
}

/// The kernels of decoding, which read queries of T and write o of T: of other types copies, for
/// they are few.
template <class T, class Q, class U>
void decode_call(ForwardWorkspace<T>& scratch, const AttentionSizes& sizes,
                 const ForwardInputs<Q, U>& in, const AttentionOptions<T>& options,
                 const Out<Q, 4>& o, const Out<T, 4>& lse, const Context& context) {
  if constexpr (std::same_as<Q, T>) {
    DecodeCall<T, U>(scratch, sizes, in, options, o, lse, context).compute();
  } else {
    const auto wide_q = widened_tensor(in.q, context);
    auto wide_o = Tensor<T, 4>::uninitialized(o.shape(), context.memory);
    const ForwardInputs<T, U> wide{wide_q, in.k, in.v, in.blocks};
    DecodeCall<T, U>(scratch, sizes, wide, options, wide_o, lse, context).compute();
    for (Index b = 0; b < sizes.B; ++b) {
      for (Index h = 0; h < sizes.H; ++h) {
        T* const rows = wide_o.data() + (b * sizes.H + h) * sizes.L * sizes.dv;
        round_rows(rows, sizes.L, sizes.dv, kernels::matrix(o, b, h));
      }
    }
  }
}

/// flash_attention_forward, of queries and o of Q and of keys and values of U.
template <class T, class Q, class U, OutputMemory memory = OutputMemory::given>
void flash_forward_call(const ForwardInputs<Q, U>& in, const AttentionOptions<T>& options,
                        const Out<Q, 4>& o, const Out<T, 4>& lse, const Context& context) {
  constexpr std::string_view function = "flash_attention_forward";
  const auto& [q, k, v, blocks] = in;
  const auto sizes = require_attention(function, q, k, v, options);
  require_shape(function, "o", o, Shape{sizes.B, sizes.H, sizes.L, sizes.dv}, "q, head width of v");
  if (!lse.absent()) {
    require_shape(function, "lse", lse, Shape{sizes.B, sizes.H, sizes.L, Index{2}},
                  "two numbers a query of q");
  }
  if constexpr (memory == OutputMemory::given) {
    require_outputs_apart(function, {{"o", o}, {"lse", lse}}, {{"q", q}, in.key_bytes(), {"v", v}});
    require_apart_from_options<T>(function, {"o", o}, options);
    require_apart_from_options<T>(function, {"lse", lse}, options);
  }
  if (o.size() == 0 && lse.size() == 0) return;
  const kernels::Kernels<T>& run = kernels::kernels_for<T>(context);
  ForwardWorkspace<T> scratch(run, sizes, context);
  if (scratch.few() && decodes(in, options, sizes.group())) {
    return decode_call<T>(scratch, sizes, in, options, o, lse, context);
  }
  forward_sequences(sequences_of(sizes), in, options, o, lse, scratch, context);
}

/// flash_attention_backward, of tensors of U.
template <class T, class U, OutputMemory memory = OutputMemory::given>
void flash_backward_call(const In<U, 4>& d_o, const AttentionInputs<U>& inputs,
                         const FlashResults<T, U>& kept, const AttentionOptions<T>& options,
                         const AttentionGradients<T, U>& gradients, const Context& context) {
  constexpr std::string_view function = "flash_attention_backward";
  const auto& [q, k, v] = inputs;
  const auto& [dq, dk, dv, d_score] = gradients;
  const auto sizes = require_attention<T>(function, q, k, v, options);
  options.require_no_gap(function);
  require_flash_backward<T, 4, U, memory>(function, {d_o, q, k, v, kept.o, kept.lse, dq, dk, dv},
                                          options, d_score);
  if (dq.size() == 0 && dk.size() == 0 && dv.size() == 0) return;
  const FlashInputsWithoutIdle<T, U, 4> of(d_o, q, kept.lse, options.score, context);
  flash_backward<T, U>(sequences_of(sizes), d_o, {of.q, k, v}, {kept.o, of.lse}, options, gradients,
                       context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// o = softmax(scores over visible keys) v; scores are scale q k^T, changed as ScoreOptions says.
///
/// q        [B, H, L, d]    in
/// k        [B, G, S, d]    in; G divides H, query head h reads key head h / (H / G)
/// v        [B, G, S, dv]   in
/// options                  masks, scale, what changes scores, dropout of the weights
/// o        [B, H, L, dv]   out
/// lse      [B, H, L, 2]    out; logsumexp of each query's visible scores, and beside it what its
///                          rounding left out; {} for inference
///
/// A query that sees no key has o 0 and lse -infinity. What a hidden pair holds, NaN or infinity,
/// does not reach o. A query's bits depend on its own row and the keys alone: not on the batch, the
/// other queries, or how many keys stand behind those it sees. Any strides; outputs must not
/// overlap inputs, masks or each other.
///
/// Work    2 (d + dv) + 5 FLOPs a visible pair, and what dropout and changed scores cost
///         (count_flops); tiles without a visible pair are skipped. Scratch constant for each
///         thread; where threads share the keys of few queries, 1 + dv / 128 numbers a pair more.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Dao et al., 2022, arXiv 2205.14135; Dao, 2023, arXiv 2307.08691.
template <Scalar T>
void flash_attention_forward(In<T, 4> q, In<std::type_identity_t<T>, 4> k,
                             In<std::type_identity_t<T>, 4> v,
                             const AttentionOptions<std::type_identity_t<T>>& options,
                             Out<std::type_identity_t<T>, 4> o, Out<std::type_identity_t<T>, 4> lse,
                             const Context& context = {}) {
  detail::flash_forward_call<T, T, T>({q, k, v}, options, o, lse, context);
}
/// The same of keys and values stored in 16 bits: the bits that their numbers give as floats.
template <NarrowFloat U>
void flash_attention_forward(In<float, 4> q, In<U, 4> k, In<std::type_identity_t<U>, 4> v,
                             const AttentionOptions<float>& options, Out<float, 4> o,
                             Out<float, 4> lse, const Context& context = {}) {
  detail::flash_forward_call<float, float, U>({q, k, v}, options, o, lse, context);
}
/// And of queries and o in 16 bits, too: computed in float from the numbers that are stored,
/// widened where they are packed; o is the nearest to what that gives. No copy of a whole tensor,
/// but of few queries.
template <NarrowFloat U>
void flash_attention_forward(In<U, 4> q, In<std::type_identity_t<U>, 4> k,
                             In<std::type_identity_t<U>, 4> v,
                             const AttentionOptions<float>& options,
                             Out<std::type_identity_t<U>, 4> o, Out<float, 4> lse,
                             const Context& context = {}) {
  detail::flash_forward_call<float, U, U>({q, k, v}, options, o, lse, context);
}
/// The same of keys [B, G, S, d] that lie transposed, of the values' type: the bits that they give
/// as rows. Throws ShapeError or ArgumentError for blocks that are not those of their length, too.
template <Scalar T>
void flash_attention_forward(In<T, 4> q, const TransposedKeys<std::type_identity_t<T>>& k,
                             In<std::type_identity_t<T>, 4> v,
                             const AttentionOptions<std::type_identity_t<T>>& options,
                             Out<std::type_identity_t<T>, 4> o, Out<std::type_identity_t<T>, 4> lse,
                             const Context& context = {}) {
  k.require_blocks("flash_attention_forward");
  detail::flash_forward_call<T, T, T>(detail::ForwardInputs<T, T>::of(q, k, v), options, o, lse,
                                      context);
}
/// The same of such keys, and values, stored in 16 bits.
template <NarrowFloat U>
void flash_attention_forward(In<float, 4> q, const TransposedKeys<U>& k,
                             In<std::type_identity_t<U>, 4> v,
                             const AttentionOptions<float>& options, Out<float, 4> o,
                             Out<float, 4> lse, const Context& context = {}) {
  k.require_blocks("flash_attention_forward");
  detail::flash_forward_call<float, float, U>(detail::ForwardInputs<float, U>::of(q, k, v), options,
                                              o, lse, context);
}
/// And of queries and o in 16 bits, too.
template <NarrowFloat U>
void flash_attention_forward(In<U, 4> q, const TransposedKeys<std::type_identity_t<U>>& k,
                             In<std::type_identity_t<U>, 4> v,
                             const AttentionOptions<float>& options,
                             Out<std::type_identity_t<U>, 4> o, Out<float, 4> lse,
                             const Context& context = {}) {
  k.require_blocks("flash_attention_forward");
  detail::flash_forward_call<float, U, U>(detail::ForwardInputs<U, U>::of(q, k, v), options, o, lse,
                                          context);
}

/// The gradients of flash_attention_forward.
///
/// d_o      [B, H, L, dv]   in
/// q, k, v                  in; as in forward
/// o        [B, H, L, dv]   in; what forward returned
/// lse      [B, H, L, 2]    in; what forward returned
/// options                  as in forward
/// dq       [B, H, L, d]    out
/// dk       [B, G, S, d]    out; summed over the query heads of a group
/// dv       [B, G, S, dv]   out; summed likewise
///
/// Nothing flows through a hidden pair, whatever it holds, nor to keys and values that are finite
/// from a query whose d_o is 0, whatever it holds: where it or its lse is no number, copies of q
/// and lse are made. A weight below 2^-64 of its row, 2^-512 in double, counts as 0, whatever flows
/// by it. Outputs must not overlap inputs or each other.
/// Work    6 d + 4 dv + 7 FLOPs a visible pair (one score product more than with kept weights),
///         2 dv a query, and what dropout and changed scores cost (count_backward_flops). Scratch
///         constant for each thread.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Dao, 2023, arXiv 2307.08691, algorithm 2; docs/derivations/flash_backward.md.
template <Scalar T>
void flash_attention_backward(In<T, 4> d_o, const AttentionInputs<std::type_identity_t<T>>& inputs,
                              In<std::type_identity_t<T>, 4> o, In<std::type_identity_t<T>, 4> lse,
                              const AttentionOptions<std::type_identity_t<T>>& options,
                              const AttentionGradients<std::type_identity_t<T>>& gradients,
                              const Context& context = {}) {
  detail::flash_backward_call<T, T>(d_o, inputs, {o, lse}, options, gradients, context);
}
/// The same of what is stored in 16 bits: computed in float from the numbers that are stored, each
/// gradient the nearest to what that gives. dq is summed up in B H L d floats of the context's
/// memory; gradients of what changes scores are floats.
template <NarrowFloat U>
void flash_attention_backward(In<U, 4> d_o, const AttentionInputs<std::type_identity_t<U>>& inputs,
                              In<std::type_identity_t<U>, 4> o, In<float, 4> lse,
                              const AttentionOptions<float>& options,
                              const AttentionGradients<float, std::type_identity_t<U>>& gradients,
                              const Context& context = {}) {
  detail::flash_backward_call<float, U>(d_o, inputs, {o, lse}, options, gradients, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
