// How the gradients of flash attention are cut into tasks.
#pragma once

#include <optional>

#include "headwise/ops/flash_backward_views.hpp"
#include "headwise/ops/ordered_turns.hpp"
#include "headwise/ops/rows.hpp"
#include "headwise/ops/stored_rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

HEADWISE_STRICT_MATH_BEGIN

/// A call of flash attention backward whose arguments fit. A task is a block of keys of a key/value
/// head: it has dk and dv to itself; to dq the blocks of keys add one after the other, so that its
/// bits do not depend on threads. Tasks of one head may run beside each other, a tile behind the
/// one before: where there are fewer heads than threads, too. Tensors are of U, which may be stored
/// in 16 bits: dq is then summed up apart.
template <class T, class U>
class FlashBackwardCall {
 public:
  /// Throws std::bad_alloc.
  FlashBackwardCall(const FlashSequences& sequences, const In<U, 4>& d_o,
                    const AttentionInputs<U>& inputs, const FlashResults<T, U>& kept,
                    const AttentionOptions<T>& options, const AttentionGradients<T, U>& to,
                    const Context& context)
      : sequences_(sequences),
        d_o_(d_o),
        inputs_(inputs),
        kept_(kept),
        options_(options),
        to_(to),
        context_(context),
        run_(kernels::kernels_for<T>(context)),
        workspace_(context.executor.concurrency(), run_.flash_backward_scratch(sizes_.d, sizes_.dv),
                   context.memory),
        delta_storage_(1, sizes_.H * queries_.total(), context.memory),
        deltas_(delta_storage_.of(0).take(0)),
        to_round_(context.executor.concurrency(),
                  rows_to_round<T, U>(run_.backward_keys, sizes_.d) +
                      rows_to_round<T, U>(run_.backward_keys, sizes_.dv),
                  context.memory),
        dq_storage_(1, rows_to_round<T, U>(sizes_.H * queries_.total(), sizes_.d), context.memory),
        dq_(sums_of_queries()),
        turns_(sizes_.H * queries_.block_numbers(run_.backward_queries), context.memory),
        score_(to.score, sequences, {run_.backward_queries, run_.backward_keys}, context.memory),
        head_turns_(in_order_, queries_.block_numbers(run_.backward_queries, 0),
                    sequences_.keys.block_numbers(run_.backward_keys, 0), context.memory) {}

  /// Everything, but for dq where it is stored as another type.
  void run() {
    if (sizes_.group() == 0) {
      fill(to_.dk, U());
      fill(to_.dv, U());
      return;
    }
    if (in_order_ == InOrder::everything) {
      run_in_order();
    } else {
      run_beside();
    }
    begin_unseeing_queries();
    score_.finish();
  }

  /// Stores dq, where that is not where it was summed up.
  void store_queries() {
    if constexpr (!std::same_as<T, U>) {
      for_query_blocks([&](Index b, Index h, Index i0, Index rows) {
        const auto to = kernels::matrix(queries_.of(to_.dq, b), b, h);
        const auto sums = head_at(b, h).dq;
        for (Index i = i0; i < i0 + rows; ++i) {
          round_rows(sums.from(i, 0).data, 1, sizes_.d, to.from(i, 0));
        }
      });
    }
  }

 private:
  /// run(b, h, i0, rows) for blocks of queries of each head.
  template <class F>
  void for_query_blocks(const F& run) {
    const Index most = run_.backward_queries;
    const auto task = [&](Index t, Index) {
      const auto [b, number] = queries_.task(t, sizes_.H, most);
      const Index blocks = queries_.block_numbers(most, b), i0 = number % blocks * most;
      if (i0 >= queries_.length(b)) return;
      run(b, number / blocks, i0, std::min<Index>(most, queries_.length(b) - i0));
    };
    run_tasks(context_, sizes_.H * queries_.block_numbers(most), multiply_adds_, task);
  }

  /// All blocks of keys, one after the other.
  void run_in_order() {
    for (Index b = 0; b < sizes_.B; ++b) {
      for (Index g = 0; g < sizes_.G; ++g) {
        const Index blocks = sequences_.keys.count_blocks(run_.backward_keys, b);
        for (Index block = 0; block < blocks; ++block) run_block({b, g, block}, 0);
      }
    }
  }

  /// All blocks of keys, each taken behind those that it waits for.
  void run_beside() {
    const Index count = sizes_.G * sequences_.keys.block_numbers(run_.backward_keys);
    // A worker asks for what it most likely takes next, where keys and values are more than a
    // second cache holds. (A window of 256 keys over 16,384: 1.02 times as fast; 16 keys by 16:
    // 0.94.)
    const Index workers = context_.executor.concurrency();
    const double numbers = static_cast<double>(sequences_.keys.total()) *
                           static_cast<double>(sizes_.G * (sizes_.d + sizes_.dv));
    const bool asks = numbers * sizeof(U) > 0x1p20;
    const auto task = [&](Index, Index worker) {
      const Index taken = turns_.take(), after = taken + workers;
      const KeyTask block = block_of_turn(taken);
      if (block.number * run_.backward_keys >= sequences_.keys.length(block.b)) return;
      run_block(block, worker,
                asks && after < count ? std::optional(block_of_turn(after)) : std::nullopt);
    };
    run_tasks(context_, count, multiply_adds_, task);
  }

  /// Queries i0 ... i0 + rows - 1 before a block of keys adds to them: delta = rowsum(d_o * o), and
  /// dq begins with 0. The first block that they look at does it, which reads d_o and dq anyway.
  /// (For all queries before all blocks it took 7 % of backward for a window of 256 keys, now 4.)
  void begin_queries(const kernels::FlashHead<T>& head, Index b, Index h, Index i0, Index rows) {
    zero_rows(head.dq.from(i0, 0), rows, sizes_.d);
    run_.row_deltas(head, i0, rows, deltas_of(b, h) + i0);
    score_.add_sink(head, b, h, i0, rows);
    context_.count_flops(2 * sizes_.dv * rows, 2 * sizes_.dv * rows);
  }

  /// The queries that no block of keys began with.
  void begin_unseeing_queries() {
    for_query_blocks([&](Index b, Index h, Index i0, Index rows) {
      if (turns_.done(place_of(b, h, i0)) == 0) begin_queries(head_at(b, h), b, h, i0, rows);
    });
  }

  /// That of a block of queries among all turns.
  Index place_of(Index b, Index h, Index i0) const {
    const Index most = run_.backward_queries;
    return sizes_.H * queries_.first_block(b, most) + h * queries_.block_numbers(most, b) +
           i0 / most;
  }

  T* deltas_of(Index b, Index h) {
    return deltas_ + queries_.before(b) * sizes_.H + h * queries_.length(b);
  }

  /// Where dq is summed up: [B, H, L, d], or [N, H, d] of packed sequences, each over all rows.
  Out<T, 4> sums_of_queries() {
    if constexpr (std::same_as<T, U>) {
      return to_.dq;
    } else {
      const Index H = sizes_.H, L = sizes_.L, d = sizes_.d;
      const Shape<4> steps = queries_.packed() ? Shape{Index{0}, d, H * d, Index{1}}
                                               : Shape{H * L * d, L * d, d, Index{1}};
      return {dq_storage_.of(0).take(0), to_.dq.shape(), steps};
    }
  }

  kernels::FlashHead<T> head_at(Index b, Index h) {
    kernels::FlashHead<T> head{head_of_sequence<T>(sequences_, inputs_, options_, b, h),
                               {},
                               {},
                               kernels::matrix(queries_.of(kept_.lse, b), b, h),
                               deltas_of(b, h),
                               kernels::matrix(queries_.of(dq_, b), b, h)};
    if constexpr (std::same_as<T, U>) {
      head.o = kernels::matrix(queries_.of(kept_.o, b), b, h);
      head.d_o = kernels::matrix(queries_.of(d_o_, b), b, h);
    } else {
      head.stored_o = stored_head(queries_.of(kept_.o, b), b, h);
      head.stored_d_o = stored_head(queries_.of(d_o_, b), b, h);
    }
    return head;
  }

  /// A block of keys of a key/value head of a sequence.
  struct KeyTask {
    Index b, g, number;
  };
  /// Whose turn it is: first blocks of all heads first; of packed sequences, and where blocks wait
  /// for those of the head before, one after the other.
  KeyTask block_of_turn(Index turn) const {
    const SequenceRows& rows = sequences_.keys;
    if (rows.packed()) {
      const auto [b, number] = rows.task(turn, sizes_.G, run_.backward_keys);
      return {b, number % sizes_.G, number / sizes_.G};
    }
    if (in_order_ == InOrder::blocks) {
      const Index blocks = rows.count_blocks(run_.backward_keys, 0), head = turn / blocks;
      return {head / sizes_.G, head % sizes_.G, turn % blocks};
    }
    const Index together = sizes_.B * sizes_.G;
    return {turn % together / sizes_.G, turn % sizes_.G, turn / together};
  }

  /// Query head h, and where a block of keys adds what flows into its scores.
  kernels::FlashHead<T> head_at(const KeyTask& block, Index h) {
    auto head = head_at(block.b, h);
    if (score_.any()) head.flows = score_.flows(block.b, h, block.number);
    return head;
  }

  /// What is asked for before a block is begun with.
  kernels::KeysAhead<T> keys_of(const KeyTask& block) {
    const auto head = head_at(block.b, block.g * sizes_.group()).forward;
    const Index first = block.number * run_.backward_keys;
    const Index count = std::clamp<Index>(head.S - first, 0, run_.backward_keys);
    return {head.k, head.v, head.stored_k, head.stored_v, first, count};
  }

  /// One of them; `next` is asked for beside its last tile. Keys behind the last one that a length
  /// leaves are not multiplied with.
  void run_block(const KeyTask& of, Index worker, const std::optional<KeyTask>& next = {}) {
    const Index keys = run_.backward_keys, queries = run_.backward_queries;
    const Index b = of.b, g = of.g, j0 = of.number * keys;
    const Index first = g * sizes_.group();
    auto head = head_at(of, first);
    const Index here = std::min<Index>(keys, sequences_.keys.length(b) - j0);
    const Index n = std::clamp<Index>(head.forward.visibility.key_count() - j0, 0, here);
    T* const to_scale = head.flows.scale;
    if (n > 0) run_.flash_backward_begin(head.forward, j0, n, workspace_.of(worker));
    kernels::TileWork work;
    for (Index h = first; h < first + sizes_.group(); ++h) {
      if (h != first) head = head_at(of, h);
      if (next && h + 1 == first + sizes_.group()) head.next = keys_of(*next);
      for (Index i0 = 0; i0 < head.forward.L; i0 += queries) {
        const Index rows = std::min<Index>(queries, head.forward.L - i0);
        const KeyBlocks blocks = head.forward.visibility.blocks(i0, rows, keys);
        head_turns_.wait(i0 / queries, of.number, b * sizes_.H + h);
        if (blocks.holds(j0)) {
          const Index place = place_of(b, h, i0), turn = blocks.before(j0);
          turns_.wait(place, turn);
          if (turn == 0) begin_queries(head, b, h, i0, rows);
          if (n > 0) work += run_.flash_backward_tile(head, i0, rows, j0, n, workspace_.of(worker));
          turns_.finish(place);
        }
        head_turns_.finish(i0 / queries, of.number);
      }
    }
    const auto dk_rows = kernels::matrix(sequences_.keys.of(to_.dk, b), b, g).from(j0, 0);
    const auto dv_rows = kernels::matrix(sequences_.keys.of(to_.dv, b), b, g).from(j0, 0);
    Scratch<T> memory = to_round_.of(worker);
    T* const dk_sums = memory.take(rows_to_round<T, U>(n, sizes_.d));
    T* const dv_sums = memory.take(rows_to_round<T, U>(n, sizes_.dv));
    write_rows(dk_rows, n, sizes_.d, dk_sums, [&](const kernels::Matrix<T>& dk) {
      write_rows(dv_rows, n, sizes_.dv, dv_sums, [&](const kernels::Matrix<T>& dv) {
        run_.flash_backward_end(head.forward, j0, n, dk, dv, to_scale, workspace_.of(worker));
      });
    });
    zero_rows(dk_rows.from(n, 0), here - n, sizes_.d);
    zero_rows(dv_rows.from(n, 0), here - n, sizes_.dv);
    const std::int64_t extra = kernels::backward_extras(head.forward);
    context_.count_flops(work.pairs * (6 * sizes_.d + 4 * sizes_.dv + 7 + extra),
                         work.executed_flops);
  }

  const FlashSequences& sequences_;
  const AttentionSizes& sizes_ = sequences_.sizes;
  const SequenceRows& queries_ = sequences_.queries;
  const double multiply_adds_ = sequences_.multiply_adds();
  const In<U, 4> d_o_;
  const AttentionInputs<U>& inputs_;
  const FlashResults<T, U>& kept_;
  const AttentionOptions<T>& options_;
  const AttentionGradients<T, U>& to_;
  const Context& context_;
  const kernels::Kernels<T>& run_;
  Workspace<T> workspace_, delta_storage_;
  T* deltas_;                           // [B, H, L]
  Workspace<T> to_round_, dq_storage_;  // of nothing where U is T
  const Out<T, 4> dq_;
  OrderedTurns turns_;
  ScoreGradientSums<T> score_;
  const InOrder in_order_ = score_.in_order();
  HeadTurns head_turns_;
};

/// The call from begin to end.
template <class T, class U>
void flash_backward(const FlashSequences& sequences, const In<U, 4>& d_o,
                    const AttentionInputs<U>& inputs, const FlashResults<T, U>& kept,
                    const AttentionOptions<T>& options, const AttentionGradients<T, U>& to,
                    const Context& context) {
  FlashBackwardCall<T, U> call(sequences, d_o, inputs, kept, options, to, context);
  call.run();
  call.store_queries();
}

HEADWISE_STRICT_MATH_END

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
