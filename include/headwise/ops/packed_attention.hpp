// Attention over sequences of different lengths that lie one behind the other, without padding: the
// tasks of all of them in one launch of flash attention.
#pragma once

#include <span>
#include <type_traits>

#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/packed_starts.hpp"

namespace headwise::inline v0_1 {

/// Queries [N, H, d], keys [M, G, d] and values [M, G, dv] of B sequences. Sequence b has queries
/// query_starts[b] ... query_starts[b + 1] - 1 and keys key_starts[b] ... key_starts[b + 1] - 1:
/// cumulative lengths, from 0 to N and M. Sequences may be empty.
template <class T>
struct PackedSequences {
  In<T, 3> q, k, v;                             // [N, H, d], [M, G, d], [M, G, dv]
  LastingSpan<Index> query_starts, key_starts;  // [B + 1]
};

/// The gradients of queries, keys and values, of their shapes, stored as U; overwritten. Beside
/// them those of what changes scores: added to, sequence by sequence.
template <Scalar T, class U = T>
struct PackedGradients {
  Out<U, 3> dq, dk, dv;          // [N, H, d], [M, G, d], [M, G, dv]
  ScoreGradients<T> score = {};  // as flash_attention_backward's
};

}  // namespace headwise::inline v0_1

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Throws unless the mask's terms are such as sequences of different lengths can have.
template <class T>
void require_packed_mask(std::string_view function, const AttentionMask<T>& mask, Index B, Index H,
                         std::span<const Index> key_starts) {
  const auto by_head = [&](std::string_view argument, const auto& pairs) {
    require_countable(function, argument, pairs);
    const Shape<4>& got = pairs.shape();
    if ((got[0] == B || got[0] == 1) && (got[1] == H || got[1] == 1) && got[2] == 1 && got[3] == 1)
      return;
    raise<ShapeError>(function, ": ", argument, " is ", got, ", expected ",
                      Shape{B, H, Index{1}, Index{1}},
                      " or 1 on an axis (packed sequences have no [L, S] in common)");
  };
  for (const PairMask& term : mask.pair_masks()) {
    by_head(term.name, term.pairs);
  }
  for (const BiasMask<T>& term : mask.biases()) {
    by_head("Mask::bias", term.values);
  }
  require(!mask.documents().present(), function,
          "Mask::documents is given, expected none (each packed sequence is one)");
  if (!mask.has_key_lengths()) return;
  const std::span<const Index> lengths = mask.key_lengths();
  require(static_cast<Index>(lengths.size()) == B, function, "Mask::key_lengths has ",
          lengths.size(), " lengths, expected ", B, " (one a sequence)");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const Index most = key_starts[b + 1] - key_starts[b];
    require(lengths[b] >= 0 && lengths[b] <= most, function, "Mask::key_lengths holds ", lengths[b],
            " at ", b, ", expected 0 to ", most, " (the keys of that sequence)");
  }
}

/// Checks inputs and options, and names what the call goes over.
template <class T, class U>
FlashSequences require_packed(std::string_view function, const PackedSequences<U>& x,
                              const AttentionOptions<T>& options) {
  const Index N = x.q.extent(0), H = x.q.extent(1), d = x.q.extent(2), M = x.k.extent(0),
              G = x.k.extent(1), dv = x.v.extent(2);
  require_countable(function, "q", x.q);
  require_shape(function, "k", x.k, Shape{M, G, d}, "head width of q ", x.q.shape());
  require_shape(function, "v", x.v, Shape{M, G, dv}, "rows and heads of k ", x.k.shape());
  require_groups(function, H, G);
  require_packed_starts(function, x.query_starts, N, "the rows of q", x.key_starts, M,
                        "the rows of k");
  const Index B = static_cast<Index>(x.query_starts.size()) - 1;
  require_packed_mask<T>(function, options.mask, B, H, x.key_starts);
  options.require_in_range(function);
  options.require_no_gap(function);
  options.score.require_heads(function, H);
  return {{B, H, G, N, M, d, dv}, SequenceRows(x.query_starts), SequenceRows(x.key_starts)};
}

/// Throws ShapeError where an output shares memory with the cumulative lengths.
template <class U>
void require_apart_from_starts(std::string_view function, const Footprint& out,
                               const PackedSequences<U>& x) {
  require_apart(
      function, out,
      {{"query_starts", starts_view(x.query_starts)}, {"key_starts", starts_view(x.key_starts)}});
}

/// packed_attention_forward, of tensors of U.
template <class T, class U, OutputMemory memory = OutputMemory::given>
void packed_forward_call(const PackedSequences<U>& inputs, const AttentionOptions<T>& options,
                         const Out<U, 3>& o, const Out<T, 3>& lse, const Context& context) {
  constexpr std::string_view function = "packed_attention_forward";
  const auto sequences = require_packed<T>(function, inputs, options);
  const auto& [q, k, v, query_starts, key_starts] = inputs;
  const auto& [B, H, G, N, M, d, dv] = sequences.sizes;
  require_shape(function, "o", o, Shape{N, H, dv}, "q, head width of v");
  if (!lse.absent()) {
    require_shape(function, "lse", lse, Shape{N, H, Index{2}}, "two numbers a query of q");
  }
  if constexpr (memory == OutputMemory::given) {
    require_outputs_apart(function, {{"o", o}, {"lse", lse}}, {{"q", q}, {"k", k}, {"v", v}});
    require_apart_from_starts(function, {"o", o}, inputs);
    require_apart_from_starts(function, {"lse", lse}, inputs);
    require_apart_from_options<T>(function, {"o", o}, options);
    require_apart_from_options<T>(function, {"lse", lse}, options);
  }
  if (o.size() == 0 && lse.size() == 0) return;

  const auto of = [&, &batch = B](const auto& x) { return by_sequence(x, batch); };
  Workspace<T> scratch(context.executor.concurrency(),
                       kernels::kernels_for<T>(context).flash_forward_scratch(d, dv),
                       context.memory);
  forward_sequences(sequences, ForwardInputs<U, U>{of(q), of(k), of(v)}, options, of(o), of(lse),
                    scratch, context);
}

/// packed_attention_backward, of tensors of U.
template <class T, class U, OutputMemory memory = OutputMemory::given>
void packed_backward_call(const In<U, 3>& d_o, const PackedSequences<U>& inputs, const In<U, 3>& o,
                          const In<T, 3>& lse, const AttentionOptions<T>& options,
                          const PackedGradients<T, U>& gradients, const Context& context) {
  constexpr std::string_view function = "packed_attention_backward";
  const auto sequences = require_packed<T>(function, inputs, options);
  const auto& [q, k, v, query_starts, key_starts] = inputs;
  const auto& [dq, dk, dv, d_score] = gradients;
  require_flash_backward<T, 3, U, memory>(
      function,
      {d_o, q, k, v, o, lse, dq, dk, dv, starts_view(query_starts), starts_view(key_starts)},
      options, d_score);
  if constexpr (memory == OutputMemory::given) {
    require_apart_from_starts(function, {"dq", dq}, inputs);
    require_apart_from_starts(function, {"dk", dk}, inputs);
    require_apart_from_starts(function, {"dv", dv}, inputs);
  }
  if (dq.size() == 0 && dk.size() == 0 && dv.size() == 0) return;

  const Index B = sequences.sizes.B;
  const auto of = [&](const auto& x) { return by_sequence(x, B); };
  const FlashInputsWithoutIdle<T, U, 3> read(d_o, q, lse, options.score, context);
  flash_backward<T, U>(sequences, of(d_o), {of(read.q), of(k), of(v)}, {of(o), of(read.lse)},
                       options, {of(dq), of(dk), of(dv), d_score}, context);
}

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE

namespace headwise::inline v0_1::inline HEADWISE_CODE {

/// flash_attention_forward of every packed sequence, in one launch.
///
/// inputs   q [N, H, d], k [M, G, d], v [M, G, dv], cumulative lengths [B + 1]
/// options  masks, scale, dropout of the weights, what changes scores; masks and biases of pairs
///          [B or 1, H or 1, 1, 1]
/// o        [N, H, dv]   out
/// lse      [N, H, 2]    out; as flash_attention_forward leaves it; {} for inference
///
/// Causality, windows and their first keys count within a sequence; its last query is beside its
/// last key. The bits of a sequence are those of a call for it alone, or in a padded batch with
/// Mask::key_lengths; dropout is drawn for sequence b as for element b of a batch. Any strides.
///
/// Work    2 (d + dv) + 5 FLOPs a visible pair, and what dropout and changed scores cost
///         (count_flops). Scratch constant for each thread.
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Dao et al., 2022, arXiv 2205.14135; Dao, 2023, arXiv 2307.08691.
template <Scalar T>
void packed_attention_forward(const PackedSequences<T>& inputs,
                              const AttentionOptions<std::type_identity_t<T>>& options,
                              Out<std::type_identity_t<T>, 3> o,
                              Out<std::type_identity_t<T>, 3> lse, const Context& context = {}) {
  detail::packed_forward_call<T, T>(inputs, options, o, lse, context);
}
/// The same of what is stored in 16 bits, as flash_attention_forward's.
template <NarrowFloat U>
void packed_attention_forward(const PackedSequences<U>& inputs,
                              const AttentionOptions<float>& options,
                              Out<std::type_identity_t<U>, 3> o, Out<float, 3> lse,
                              const Context& context = {}) {
  detail::packed_forward_call<float, U>(inputs, options, o, lse, context);
}

/// The gradients of packed_attention_forward.
///
/// d_o        [N, H, dv]   in
/// inputs, options         as in forward
/// o          [N, H, dv]   in; what forward returned
/// lse        [N, H, 2]    in; what forward returned
/// gradients               out; dq [N, H, d], dk [M, G, d], dv [M, G, dv]
///
/// The bits of a sequence are those of a call for it alone; of gradients of what changes scores,
/// those of such calls one after the other. Nothing flows from a query whose d_o is 0, either, to
/// keys and values that are finite, nor by a weight below 2^-64 of its row, 2^-512 in double.
/// Work    6 d + 4 dv + 7 FLOPs a visible pair, 2 dv a query, and what dropout and changed scores
///         cost (count_backward_flops).
/// Throws  ShapeError or ArgumentError before anything is written; std::bad_alloc.
/// Source  Dao, 2023, arXiv 2307.08691, algorithm 2; docs/derivations/flash_backward.md.
template <Scalar T>
void packed_attention_backward(In<T, 3> d_o, const PackedSequences<std::type_identity_t<T>>& inputs,
                               In<std::type_identity_t<T>, 3> o, In<std::type_identity_t<T>, 3> lse,
                               const AttentionOptions<std::type_identity_t<T>>& options,
                               const PackedGradients<std::type_identity_t<T>>& gradients,
                               const Context& context = {}) {
  detail::packed_backward_call<T, T>(d_o, inputs, o, lse, options, gradients, context);
}
/// The same of what is stored in 16 bits, as flash_attention_backward's.
template <NarrowFloat U>
void packed_attention_backward(In<U, 3> d_o, const PackedSequences<std::type_identity_t<U>>& inputs,
                               In<std::type_identity_t<U>, 3> o, In<float, 3> lse,
                               const AttentionOptions<float>& options,
                               const PackedGradients<float, std::type_identity_t<U>>& gradients,
                               const Context& context = {}) {
  detail::packed_backward_call<float, U>(d_o, inputs, o, lse, options, gradients, context);
}

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE
