// What the kernels of decoding are called with: few queries, many keys.
#pragma once

#include <algorithm>

#include "headwise/kernels/arguments.hpp"
#include "headwise/runtime/workspace.hpp"

namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels {

/// Query heads that share a key head, of one batch element. Their queries are rows: row r is query
/// r % L of head r / L, so that all of them meet a key while it is in the caches.
template <class T>
struct DecodeGroup {
  AttentionHead<T> first;  // the first of the heads; what it may see, all may
  Index heads;             // that share the keys
  /// What is done to the scores of the task's heads, from its first one on; null for nothing.
  const HeadScore<T>* scores;
  Index q_head;  // from head to head of q
  Matrix<T> o;   // [L, dv] of the first head, overwritten
  Index o_head;
  Matrix<T> lse;  // [L, 2] of the first head; null for none
  Index lse_head;
};

/// Most rows of a task.
inline constexpr Index most_decode_rows = 32;

/// Some rows of a group, and the blocks of keys that a task takes them through.
struct DecodeTask {
  Index first, rows;  // rows of the group
  Index part, parts;  // of the blocks of keys that they see
};

template <class T>
struct DecodeParts;

/// The kernels of decoding in kernels/decode.inc. Types without vectors have none, and 0 queries.
template <class T>
struct DecodeKernels {
  Index queries = 0;  // most of a head
  Index rows = 0;     // most of a task
  Index keys = 0;     // of a block
  Index width = 0;    // contexts stand in rows of whole vectors
  Index (*scratch)(Index d, Index dv) = nullptr;
  /// All keys of some rows, from the first to the last.
  TileWork (*run)(const DecodeGroup<T>& group, const DecodeTask& task, Scratch<T> memory) = nullptr;
  /// The same in three steps, of which each has to be done with all parts before the next begins.
  TileWork (*score)(const DecodeGroup<T>& group, const DecodeTask& task,
                    const DecodeParts<T>& parts, Scratch<T> memory) = nullptr;
  TileWork (*weigh)(const DecodeGroup<T>& group, const DecodeTask& task,
                    const DecodeParts<T>& parts, Scratch<T> memory) = nullptr;
  void (*join)(const DecodeGroup<T>& group, const DecodeTask& task, const DecodeParts<T>& parts,
               Scratch<T> memory) = nullptr;
};

/// What some rows keep of each block of keys where threads share these: each step of the softmax
/// needs the greatest scores of all blocks before, each context all that were added before.
template <class T>
struct DecodeParts {
  Index rows, blocks;
  Index context_row;  // dv in whole vectors
  T* scores;          // [rows, blocks of keys]; weights later
  T* greatest;        // [blocks, rows], of the scores that the row sees there
  T* sums;            // [blocks, rows], of weights
  T* factors;         // [blocks, rows], what is multiplied by when the block is added
  T* contexts;        // [blocks, rows, context_row]

  DecodeParts(Scratch<T>& memory, const DecodeKernels<T>& kernels, Index some_rows,
              Index some_blocks, Index dv)
      : rows(some_rows),
        blocks(some_blocks),
        context_row(round_up(dv, kernels.width)),
        scores(memory.take(rows * blocks * kernels.keys)),
        greatest(memory.take(blocks * rows)),
        sums(memory.take(blocks * rows)),
        factors(memory.take(blocks * rows)),
        contexts(memory.take(blocks * rows * context_row)) {}
};

/// The sizes of a forward call, from which its tasks and its memory follow.
struct ForwardExtents {
  Index groups;  // B G
  Index heads;   // H / G
  Index L, S, d, dv;
  Index workers;
};

/// How a call of few queries is cut into tasks. No result depends on it.
struct DecodePlan {
  Index rows = 0;       // of a group
  Index row_parts = 1;  // tasks of them
  Index key_parts = 1;  // parts of the keys, each a task; 1: the steps are not taken apart
  Index blocks = 0;     // of keys

  DecodePlan() = default;
  /// Threads share keys where there are too few groups for them, by parts of some hundred KiB.
  template <class T>
  DecodePlan(const DecodeKernels<T>& kernels, const ForwardExtents& of)
      : rows(of.heads * of.L),
        row_parts((rows + kernels.rows - 1) / kernels.rows),
        blocks((of.S + kernels.keys - 1) / kernels.keys) {
    constexpr Index tasks_a_worker = 4, least_blocks = 4;
    const Index tasks = of.groups * row_parts;
    if (tasks == 0 || tasks % of.workers == 0 || tasks >= tasks_a_worker * of.workers) return;
    const Index wanted = (tasks_a_worker * of.workers + tasks - 1) / tasks;
    key_parts = std::max<Index>(1, std::min<Index>(wanted, blocks / least_blocks));
  }
};

/// What flash_attention_forward asks for, whatever its masks are. Few queries may have to go the
/// general way, too.
template <class T>
struct ForwardMemory {
  bool few;             // whether there are kernels for so few queries
  DecodePlan plan;      // of those
  Index each_worker;    // elements of scratch
  Index each_task = 0;  // elements that the tasks of the same rows share
  Index shared = 0;     // those of all

  ForwardMemory(const DecodeKernels<T>& kernels, Index general_scratch, const ForwardExtents& of)
      : few(kernels.queries != 0 && of.L <= kernels.queries), each_worker(general_scratch) {
    if (!few) return;
    plan = DecodePlan(kernels, of);
    each_worker = std::max<Index>(each_worker, kernels.scratch(of.d, of.dv));
    if (plan.key_parts == 1) return;
    Scratch<T> count;
    DecodeParts<T>(count, kernels, std::min<Index>(plan.rows, kernels.rows), plan.blocks, of.dv);
    each_task = count.taken();
    shared = of.groups * plan.row_parts * each_task;
  }
};

}  // namespace headwise::inline v0_1::inline HEADWISE_CODE::kernels
