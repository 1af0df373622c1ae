// flash_attention_forward of few queries over many keys, as when tokens are decoded one by one from
// a cache: the same function and the same bits by kernels that read keys and values once, at the
// speed of memory.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "headwise/ops/forward_inputs.hpp"
#include "headwise/ops/rows.hpp"

namespace headwise::inline v0_1::detail::inline HEADWISE_CODE {

/// Whether masks of pairs and biases are known to be the same for all heads: of functions nobody
/// knows.
template <class T>
bool same_for_heads(const AttentionMask<T>& mask) {
  const auto same = [](const auto& pairs) { return pairs.extent(1) == 1; };
  return mask.functions().empty() &&
         std::ranges::all_of(mask.pair_masks(), same, &PairMask::pairs) &&
         std::ranges::all_of(mask.biases(), same, &BiasMask<T>::values);
}

/// Whether the kernels of decoding take a call of few queries: keys are transposed or their rows
/// dense, and rows of values are; heads that share keys have masks of pairs and biases in common.
/// Every other call goes the general way.
template <class T, class Q, class U>
bool decodes(const ForwardInputs<Q, U>& in, const AttentionOptions<T>& options, Index group) {
  return (in.k.stride(3) == 1 || !in.blocks.absent()) && in.v.stride(3) == 1 &&
         !options.dropout.active() && (group == 1 || same_for_heads(options.mask));
}

/// What a forward call asks the memory resource for.
template <class T>
class ForwardWorkspace {
 public:
  /// Throws std::bad_alloc.
  ForwardWorkspace(const kernels::Kernels<T>& run, const AttentionSizes& s, const Context& context)
      : sizes_(run.decode, run.flash_forward_scratch(s.d, s.dv),
               {s.B * s.G, s.group(), s.L, s.S, s.d, s.dv, context.executor.concurrency()}),
        workers_(context.executor.concurrency(), sizes_.each_worker, context.memory),
        shared_(1, sizes_.shared, context.memory) {}

  /// Whether there are kernels for so few queries.
  bool few() const { return sizes_.few; }
  const kernels::DecodePlan& plan() const { return sizes_.plan; }
  Scratch<T> of(Index worker) { return workers_.of(worker); }
  /// What the tasks of the same rows share.
  Scratch<T> shared_by(Index n) {
    Scratch<T> memory = shared_.of(0);
    memory.take(n * sizes_.each_task);
    return memory;
  }

 private:
  kernels::ForwardMemory<T> sizes_;
  Workspace<T> workers_;
  Workspace<T> shared_;
};

/// The kernels of decoding over keys and values of U.
template <class T, class U>
const kernels::DecodeKernels<T>& decode_kernels_here() {
  if constexpr (std::same_as<T, U>) {
    return kernels::kernels_here<T>().decode;
  } else {
    return kernels::model_kernels_here<T>().decode(stored_as<U>);
  }
}

/// What is done to the scores of some heads of a batch element, where anything is.
template <class T>
class ScoresOfHeads {
 public:
  /// Of heads first ... last, at most as many as a task has rows.
  ScoresOfHeads(const AttentionOptions<T>& options, const AttentionSizes& sizes, Index b,
                Index first, Index last) {
    if (options.score.plain()) return;
    scores_.emplace();
    for (Index h = first; h <= last; ++h) {
      (*scores_)[static_cast<std::size_t>(h - first)] =
          head_score(options.score, options.origin.of_head(b, h), options.gap, h, sizes.L, sizes.S);
    }
  }
  /// From the first head on; null for nothing.
  const HeadScore<T>* data() const { return scores_ ? scores_->data() : nullptr; }

 private:
  std::optional<std::array<HeadScore<T>, std::size_t{kernels::most_decode_rows}>> scores_;
};

/// The call of few queries: o and lse are as flash_attention_forward leaves them.
template <class T, class U>
class DecodeCall {
 public:
  DecodeCall(ForwardWorkspace<T>& scratch, const AttentionSizes& sizes,
             const ForwardInputs<T, U>& in, const AttentionOptions<T>& options, const Out<T, 4>& o,
             const Out<T, 4>& lse, const Context& context)
      : scratch_(scratch),
        sizes_(sizes),
        in_(in),
        options_(options),
        o_(o),
        lse_(lse),
        context_(context) {}

  /// A task is some rows of the heads that share keys; where there are fewer of them than threads,
  /// a part of the keys.
  void compute() {
    if (scratch_.plan().key_parts == 1) {
      for_each_task(1, [&](const auto& group, const auto& task, Index, Index worker) {
        count(group, run_.run(group, task, scratch_.of(worker)));
      });
      return;
    }
    for_each_task(scratch_.plan().key_parts,
                  [&](const auto& group, const auto& task, Index n, Index worker) {
                    count(group, run_.score(group, task, parts(n, task), scratch_.of(worker)));
                  });
    for_each_task(scratch_.plan().key_parts,
                  [&](const auto& group, const auto& task, Index n, Index worker) {
                    count(group, run_.weigh(group, task, parts(n, task), scratch_.of(worker)));
                  });
    for_each_task(1, [&](const auto& group, const auto& task, Index n, Index worker) {
      run_.join(group, task, parts(n, task), scratch_.of(worker));
    });
  }

 private:
  /// f(group, task, number of the task's rows among all, worker), the keys in so many parts.
  template <class F>
  void for_each_task(Index key_parts, const F& f) {
    const auto task = [&](Index t, Index worker) {
      const Index n = t / key_parts, part = n % scratch_.plan().row_parts, first = part * run_.rows;
      const Index b = n / scratch_.plan().row_parts / sizes_.G,
                  g = n / scratch_.plan().row_parts % sizes_.G;
      const Index rows = std::min<Index>(run_.rows, scratch_.plan().rows - first);
      const Index h = g * sizes_.group(), last = first + rows - 1;
      const ScoresOfHeads<T> scores(options_, sizes_, b, h + first / sizes_.L, h + last / sizes_.L);
      f(group(b, g, scores), kernels::DecodeTask{first, rows, t % key_parts, key_parts}, n, worker);
    };
    constexpr double reading = 4;  // what one takes that waits for its key or value
    run_tasks(context_, sizes_.B * sizes_.G * scratch_.plan().row_parts * key_parts,
              reading * multiply_adds(sizes_), task);
  }

  /// The query heads of batch element b that share key head g.
  kernels::DecodeGroup<T> group(Index b, Index g, const ScoresOfHeads<T>& scores) const {
    const Index heads = sizes_.group(), h = g * heads;
    const bool absent = lse_.absent();
    return {.first = forward_head(sizes_, in_, options_, b, h),
            .heads = heads,
            .scores = scores.data(),
            .q_head = in_.q.stride(1),
            .o = kernels::matrix(o_, b, h),
            .o_head = o_.stride(1),
            .lse = absent ? kernels::Matrix<T>{nullptr, 0, 0} : kernels::matrix(lse_, b, h),
            .lse_head = absent ? 0 : lse_.stride(1)};
  }

  /// What rows keep of each block.
  kernels::DecodeParts<T> parts(Index n, const kernels::DecodeTask& task) {
    Scratch<T> memory = scratch_.shared_by(n);
    return {memory, run_, task.rows, scratch_.plan().blocks, sizes_.dv};
  }

  void count(const kernels::DecodeGroup<T>& group, const kernels::TileWork& work) const {
    const std::int64_t extra = kernels::forward_extras(group.first);
    context_.count_flops(work.pairs * (2 * (sizes_.d + sizes_.dv) + 5 + extra),
                         work.executed_flops);
  }

  ForwardWorkspace<T>& scratch_;
  const AttentionSizes& sizes_;
  const ForwardInputs<T, U>& in_;
  const AttentionOptions<T>& options_;
  const Out<T, 4>& o_;
  const Out<T, 4>& lse_;
  const Context& context_;
  const kernels::DecodeKernels<T>& run_ = decode_kernels_here<T, U>();
};

}  // namespace headwise::inline v0_1::detail::inline HEADWISE_CODE
