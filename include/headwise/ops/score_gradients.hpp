// The gradients of what changes scores: the rules that they keep, and their sums over pairs, which
// many tasks add to and whose bits do not depend on who comes first.
#pragma once

#include <algorithm>
#include <limits>

#include "headwise/ops/ordered_turns.hpp"
#include "headwise/ops/sequence_rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Throws ShapeError unless each gradient that is asked for belongs to something in the options,
/// has its shape, and shares memory with nothing that the call reads or overwrites, as far as it
/// knows: what a function has captured lies behind it.
template <class T>
void require_score_gradients(std::string_view function, const ScoreGradients<T>& gradients,
                             const AttentionOptions<T>& options,
                             std::initializer_list<Footprint> others) {
  if (!gradients.any()) return;
  const auto require_like = [&](std::string_view name, const auto& gradient, const auto& of) {
    if (gradient.absent()) return;
    require_shape(function, name, gradient, of.shape(),
                  of.absent() ? "the call has nothing that it is the gradient of"
                              : "the shape of what it is the gradient of");
    require_apart_from_options<T>(function, {name, gradient}, options);
  };
  if (!gradients.d_scale.absent()) {
    require_shape(function, "d_scale", gradients.d_scale, Shape{1}, "one scale for all heads");
    require_apart_from_options<T>(function, {"d_scale", gradients.d_scale}, options);
  }
  if (!gradients.d_function.absent()) {
    require_shape(function, "d_function", gradients.d_function,
                  Shape{options.score.function.parameters}, "the function's parameters");
    require_apart_from_options<T>(function, {"d_function", gradients.d_function}, options);
  }
  require_like("d_alibi_slopes", gradients.d_alibi_slopes, options.score.alibi_slopes);
  require_like("d_relative_bias", gradients.d_relative_bias, options.score.relative_bias);
  require_like("d_sinks", gradients.d_sinks, options.score.sinks);
  const auto biases = options.mask.biases();
  for (std::size_t n = 0; n < gradients.d_biases.size(); ++n) {
    require_like("d_biases", gradients.d_biases[n],
                 n < biases.size() ? biases[n].values : In<T, 4>());
  }
  static_assert(AttentionMask<T>::max_terms == 4);
  require_outputs_apart(function,
                        {{"d_scale", gradients.d_scale},
                         {"d_function", gradients.d_function},
                         {"d_alibi_slopes", gradients.d_alibi_slopes},
                         {"d_relative_bias", gradients.d_relative_bias},
                         {"d_sinks", gradients.d_sinks},
                         {"d_biases", gradients.d_biases[0]},
                         {"d_biases", gradients.d_biases[1]},
                         {"d_biases", gradients.d_biases[2]},
                         {"d_biases", gradients.d_biases[3]}},
                        others);
}

HEADWISE_STRICT_MATH_BEGIN

/// The bias's gradient for a head: steps of 0 where its elements are shared.
template <class T>
kernels::Matrix<T> bias_gradient(const InOut<T, 4>& gradient, Index b, Index h) {
  if (gradient.size() == 0) return {nullptr, 0, 0};
  const auto step = [&](int axis) {
    return gradient.extent(axis) == 1 ? Index{0} : gradient.stride(axis);
  };
  return {gradient.data() + b * step(0) + h * step(1), step(2), step(3)};
}

/// Where a head adds in the caller's gradients, for a task beside which no other adds to them.
template <class T>
kernels::ScoreFlows<T> flows_into(const ScoreGradients<T>& to, Index b, Index h) {
  kernels::ScoreFlows<T> flows;
  if (!to.d_scale.absent()) flows.scale = &to.d_scale(0);
  if (!to.d_alibi_slopes.absent()) flows.slope = &to.d_alibi_slopes(h);
  if (!to.d_sinks.absent()) flows.sink = {&to.d_sinks(h), 0};
  if (const auto& table = to.d_relative_bias; !table.absent()) {
    flows.table = {&table(table.extent(0) == 1 ? 0 : h, 0), table.stride(1)};
  }
  if (const auto& parameters = to.d_function; parameters.size() > 0) {
    flows.function = {&parameters(0), parameters.stride(0)};
  }
  for (std::size_t n = 0; n < to.d_biases.size(); ++n) {
    flows.biases[n] = bias_gradient(to.d_biases[n], b, h);
  }
  return flows;
}

/// Sums of gradients that all pairs of a head flow into, one set for each part of the head that a
/// task has to itself: scale, slope, table and function by blocks of keys, the sink by blocks of
/// queries. In the end they are added up in one order.
template <class T>
class ScoreGradientSums {
 public:
  /// How many queries and keys a block has.
  struct BlockSizes {
    Index queries, keys;
  };

  /// Throws std::bad_alloc.
  ScoreGradientSums(const ScoreGradients<T>& to, const FlashSequences& sequences,
                    const BlockSizes& blocks, std::pmr::memory_resource* memory)
      : to_(to),
        sequences_(sequences),
        blocks_(blocks),
        width_((to.d_scale.absent() ? 0 : 1) + (to.d_alibi_slopes.absent() ? 0 : 1) +
               to.d_relative_bias.extent(1) + to.d_function.extent(0)),
        count_(sequences.sizes.H * sequences.keys.block_numbers(blocks.keys) * width_),
        by_keys_(1, count_, memory),
        by_queries_(1,
                    to.d_sinks.absent()
                        ? 0
                        : sequences.sizes.H * sequences.queries.block_numbers(blocks.queries),
                    memory) {
    std::fill_n(by_keys_.of(0).take(0), count_, T(0));
  }

  /// What has to come in order, so that gradients of biases do not depend on who comes first.
  InOrder in_order() const {
    const AttentionSizes& s = sequences_.sizes;
    InOrder most = InOrder::nothing;
    for (const InOut<T, 4>& bias : to_.d_biases) {
      if (bias.absent()) continue;
      const bool by_heads = bias.extent(0) < s.B || bias.extent(1) < s.H;
      const bool by_queries = bias.extent(2) < s.L, by_keys = bias.extent(3) < s.S;
      if (by_keys && (by_heads || by_queries)) return InOrder::everything;
      if (by_heads) most = std::max<InOrder>(most, by_queries ? InOrder::blocks : InOrder::tiles);
    }
    return most != InOrder::nothing && sequences_.queries.packed() ? InOrder::everything : most;
  }

  /// Whether anything flows into a score.
  bool any() const { return any_; }
  /// Where a block of keys of a head adds, if so.
  kernels::ScoreFlows<T> flows(Index b, Index h, Index block) {
    kernels::ScoreFlows<T> into = flows_into(to_, b, h);
    T* next = sums(b, h, block);
    if (into.scale != nullptr) into.scale = next++;
    if (into.slope != nullptr) into.slope = next++;
    if (into.table.data != nullptr) into.table = {next, 1};
    if (into.function.data != nullptr) {
      into.function = {next + to_.d_relative_bias.extent(1), 1};
    }
    return into;
  }
  /// What queries i0 ... i0 + rows - 1 of a head return to its sink: less weight times delta each.
  void add_sink(const kernels::FlashHead<T>& head, Index b, Index h, Index i0, Index rows) {
    using std::exp;
    if (to_.d_sinks.absent()) return;
    T sum = T(0);
    for (Index i = i0; i < i0 + rows && head.forward.score.sink_counts(); ++i) {
      if (head.lse(i, 0) < std::numeric_limits<T>::lowest()) continue;  // it sees no key
      const T weight = T(exp((head.forward.score.sink - head.lse(i, 0)) - head.lse(i, 1)));
      sum = sum - weight * head.delta[i];
    }
    sink_of(b, h, i0 / blocks_.queries) = sum;
  }

  /// Adds all of them to the gradients.
  void finish() {
    if (!any_) return;
    for (Index b = 0; b < sequences_.sizes.B; ++b) {
      for (Index h = 0; h < sequences_.sizes.H; ++h) {
        const kernels::ScoreFlows<T> into = flows_into(to_, b, h);
        const Index key_blocks = sequences_.keys.count_blocks(blocks_.keys, b);
        for (Index block = 0; block < key_blocks; ++block) add_part(sums(b, h, block), into);
        const Index query_blocks = sequences_.queries.count_blocks(blocks_.queries, b);
        for (Index block = 0; into.sink.data != nullptr && block < query_blocks; ++block) {
          into.sink[0] = into.sink[0] + sink_of(b, h, block);
        }
      }
    }
  }

 private:
  /// The number of a block of head h of sequence b, among all.
  Index number(const SequenceRows& rows, Index size, Index b, Index h, Index block) const {
    return sequences_.sizes.H * rows.first_block(b, size) + h * rows.block_numbers(size, b) + block;
  }
  T* sums(Index b, Index h, Index block) {
    return by_keys_.of(0).take(0) + number(sequences_.keys, blocks_.keys, b, h, block) * width_;
  }
  T& sink_of(Index b, Index h, Index block) {
    return by_queries_.of(0).take(0)[number(sequences_.queries, blocks_.queries, b, h, block)];
  }
  void add_part(const T* part, const kernels::ScoreFlows<T>& into) const {
    if (into.scale != nullptr) *into.scale = *into.scale + *part++;
    if (into.slope != nullptr) *into.slope = *into.slope + *part++;
    for (Index n = 0; n < to_.d_relative_bias.extent(1); ++n) {
      into.table[n] = into.table[n] + *part++;
    }
    for (Index p = 0; p < to_.d_function.extent(0); ++p) {
      into.function[p] = into.function[p] + *part++;
    }
  }

  const ScoreGradients<T>& to_;
  const bool any_ = to_.any();
  const FlashSequences& sequences_;
  const BlockSizes blocks_;
  const Index width_, count_;
  Workspace<T> by_keys_, by_queries_;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
