// How the gradients of flash attention are cut into tasks.
#pragma once

#include "headwise/ops/ordered_turns.hpp"
#include "headwise/ops/score_gradients.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// A call of flash_attention_backward whose arguments fit. A task is a block of keys of a key/value
/// head: it has dk and dv to itself; to dq the blocks of keys add one after the other, so that its
/// bits do not depend on threads. Tasks of one head may run beside each other, a tile behind the
/// one before: where there are fewer heads than threads, too.
template <class T>
class FlashBackwardCall {
 public:
  /// Throws std::bad_alloc.
  FlashBackwardCall(const In<T, 4>& d_o, const AttentionInputs<T>& inputs, const In<T, 4>& o,
                    const In<T, 4>& lse, const AttentionOptions<T>& options,
                    const AttentionGradients<T>& to, const AttentionSizes& sizes,
                    const Context& context)
      : d_o_(d_o),
        inputs_(inputs),
        o_(o),
        lse_(lse),
        options_(options),
        to_(to),
        sizes_(sizes),
        context_(context),
        run_(kernels::kernels_here<T>()),
        query_blocks_((sizes.L + run_.backward_queries - 1) / run_.backward_queries),
        key_blocks_((sizes.S + run_.backward_keys - 1) / run_.backward_keys),
        workspace_(context.executor.concurrency(), run_.flash_backward_scratch(sizes.d, sizes.dv),
                   context.memory),
        delta_storage_(1, sizes.B * sizes.H * sizes.L, context.memory),
        deltas_(delta_storage_.of(0).take(0)),
        turns_(sizes.B * sizes.H * query_blocks_, context.memory),
        score_(to.score, sizes, key_blocks_, query_blocks_, context.memory) {}

  /// delta = rowsum(d_o * o) of every query; dq begins with 0.
  void prepare_queries() {
    const auto task = [&](Index t, Index) {
      const Index b = t / query_blocks_ / sizes_.H, h = t / query_blocks_ % sizes_.H;
      const Index i0 = t % query_blocks_ * run_.backward_queries;
      const Index rows = std::min<Index>(run_.backward_queries, sizes_.L - i0);
      const auto head = head_at(b, h);
      for (Index i = i0; i < i0 + rows; ++i) {
        for (Index n = 0; n < sizes_.d; ++n) head.dq(i, n) = T(0);
      }
      run_.row_deltas(head, i0, rows, deltas_of(b, h) + i0);
      score_.add_sink(head, b, h, i0, rows, t % query_blocks_);
      context_.count_flops(2 * sizes_.dv * rows, 2 * sizes_.dv * rows);
    };
    context_.executor.run(sizes_.B * sizes_.H * query_blocks_, task);
  }

  /// Everything else.
  void run_key_blocks() {
    if (sizes_.group() == 0) {
      fill(to_.dk, T(0));
      fill(to_.dv, T(0));
      return;
    }
    const Index heads = sizes_.B * sizes_.G;
    if (score_.heads_in_order()) {
      for (Index head = 0; head < heads; ++head) run_head(head / sizes_.G, head % sizes_.G);
    } else {
      const auto task = [&](Index, Index worker) {
        const Index taken = turns_.take();
        run_block(taken % heads / sizes_.G, taken % sizes_.G, taken / heads, worker);
      };
      context_.executor.run(heads * key_blocks_, task);
    }
    score_.finish();
  }

 private:
  /// All blocks of keys of one key/value head, where no other may run beside it.
  void run_head(Index b, Index g) {
    if (score_.blocks_in_order()) {
      for (Index block = 0; block < key_blocks_; ++block) run_block(b, g, block, 0);
      return;
    }
    const Index before = (b * sizes_.G + g) * key_blocks_;
    const auto task = [&](Index, Index worker) { run_block(b, g, turns_.take() - before, worker); };
    context_.executor.run(key_blocks_, task);
  }

  T* deltas_of(Index b, Index h) { return deltas_ + (b * sizes_.H + h) * sizes_.L; }

  kernels::FlashHead<T> head_at(Index b, Index h) {
    return {attention_head(sizes_, inputs_.q, inputs_.k, inputs_.v, options_, b, h),
            kernels::matrix(o_, b, h),
            kernels::matrix(d_o_, b, h),
            kernels::matrix(lse_, b, h),
            deltas_of(b, h),
            kernels::matrix(to_.dq, b, h)};
  }

  void run_block(Index b, Index g, Index block, Index worker) {
    const Index keys = run_.backward_keys, queries = run_.backward_queries;
    const Index j0 = block * keys, n = std::min<Index>(keys, sizes_.S - j0);
    const Index first = g * sizes_.group();
    const auto first_head = head_at(b, first);
    run_.flash_backward_begin(first_head.forward, j0, n, workspace_.of(worker));
    kernels::TileWork work;
    std::int64_t extra = 0;
    for (Index h = first; h < first + sizes_.group(); ++h) {
      auto head = head_at(b, h);
      head.flows = score_.flows(b, h, block);
      extra = kernels::backward_extras(head);
      for (Index i0 = 0; i0 < sizes_.L; i0 += queries) {
        const Index rows = std::min<Index>(queries, sizes_.L - i0);
        const KeyBlocks blocks = head.forward.visibility.blocks(i0, rows, keys);
        if (!blocks.holds(j0)) continue;
        const Index place = (b * sizes_.H + h) * query_blocks_ + i0 / queries;
        turns_.wait(place, blocks.before(j0));
        const auto tile = run_.flash_backward_tile(head, i0, rows, j0, n, workspace_.of(worker));
        turns_.finish(place);
        work.pairs += tile.pairs;
        work.executed_flops += tile.executed_flops;
      }
    }
    run_.flash_backward_end(first_head.forward, j0, n, kernels::matrix(to_.dk, b, g),
                            kernels::matrix(to_.dv, b, g), score_.flows(b, first, block).scale,
                            workspace_.of(worker));
    context_.count_flops(work.pairs * (6 * sizes_.d + 4 * sizes_.dv + 7 + extra),
                         work.executed_flops);
  }

  const In<T, 4> d_o_;
  const AttentionInputs<T>& inputs_;
  const In<T, 4> o_, lse_;
  const AttentionOptions<T>& options_;
  const AttentionGradients<T>& to_;
  const AttentionSizes sizes_;
  const Context& context_;
  const kernels::Kernels<T>& run_;
  const Index query_blocks_, key_blocks_;
  Workspace<T> workspace_, delta_storage_;
  T* deltas_;  // [B, H, L]
  OrderedTurns turns_;
  ScoreGradientSums<T> score_;
};

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
