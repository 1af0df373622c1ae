// Everything but testing/laws.hpp, the executors on threads of Eigen's, OpenMP's and TBB's
// (headwise/runtime/eigen_executor.hpp ...), and io/ (headwise/io/safetensors.hpp, pytorch.hpp):
// that handles files by POSIX calls, and would take the compiler half as long again.
#pragma once

/// \namespace headwise
/// Multi-head attention for CPUs: everything public stands here, and each kind of thing in a header
/// of its own.

#include "headwise/analysis/report.hpp"
#include "headwise/autograd/apply.hpp"
#include "headwise/autograd/checkpoint.hpp"
#include "headwise/autograd/forward_mode.hpp"
#include "headwise/autograd/functions.hpp"
#include "headwise/autograd/profile.hpp"
#include "headwise/autograd/tape.hpp"
#include "headwise/kernels/mask_function.hpp"
#include "headwise/kernels/score_function.hpp"
#include "headwise/nn/cost.hpp"
#include "headwise/nn/embedding.hpp"
#include "headwise/nn/feed_forward.hpp"
#include "headwise/nn/head_parallel.hpp"
#include "headwise/nn/kv_cache.hpp"
#include "headwise/nn/layer_norm.hpp"
#include "headwise/nn/linear.hpp"
#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/nn/rms_norm.hpp"
#include "headwise/nn/sampling.hpp"
#include "headwise/nn/transformer_block.hpp"
#include "headwise/nn/transformer_block_step.hpp"
#include "headwise/nn/transformer_decoder.hpp"
#include "headwise/ops/accumulate.hpp"
#include "headwise/ops/activation.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "headwise/ops/dropout.hpp"
#include "headwise/ops/elementwise.hpp"
#include "headwise/ops/embedding.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/ops/layer_norm.hpp"
#include "headwise/ops/linear.hpp"
#include "headwise/ops/packed_attention.hpp"
#include "headwise/ops/rms_norm.hpp"
#include "headwise/ops/rms_norm_heads.hpp"
#include "headwise/ops/rotary.hpp"
#include "headwise/ops/softmax.hpp"
#include "headwise/optim/adamw.hpp"
#include "headwise/optim/schedules.hpp"
#include "headwise/optim/sgd.hpp"
#include "headwise/print_config.hpp"
#include "headwise/runtime/num_threads.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/score/alibi.hpp"
#include "headwise/tensor/dual_view.hpp"
#include "headwise/tensor/eigen.hpp"
#include "headwise/tensor/print.hpp"
#include "headwise/testing/check_op.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/version.hpp"

#if defined(HEADWISE_COMPILED)  // by the target headwise::compiled
#include "headwise/compiled.hpp"
#endif
