// Bytes in closed form, from shapes alone: what a cache holds, what a call needs at its peak. They
// are the sizes that are asked of the memory resource, equal to the byte to what a tally counts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "headwise/analysis/attention_shape.hpp"
#include "headwise/kernels/kernels.hpp"
#include "headwise/runtime/path.hpp"

namespace headwise::inline v0_1 {

/// Scalar types by their size.
enum class ScalarType : std::size_t { f32 = 4, f64 = 8 };

/// The textbook's intermediates of plain self-attention: X, Q, K, V and the merged context,
/// B L D each, and the weights, B H L^2. (MultiHeadAttention keeps less: it only views X, and
/// flash attention keeps 2 B H L numbers in place of the weights; see count_memory.)
inline std::int64_t count_memory_bytes(Index batch_size, Index seq_len, Index d_model,
                                       Index n_heads, ScalarType dtype) {
  detail::require_shape_of_call(
      "count_memory_bytes",
      {.batch_size = batch_size, .seq_len = seq_len, .d_model = d_model, .num_heads = n_heads});
  const std::int64_t elements =
      5 * batch_size * seq_len * d_model + batch_size * n_heads * seq_len * seq_len;
  return elements * static_cast<std::int64_t>(dtype);
}

/// Bytes of keys and values, B S G (d + dv) elements: smaller by H / G with grouped heads.
inline std::int64_t count_kv_bytes(const AttentionShape& s, ScalarType dtype) {
  detail::require_shape_of_call("count_kv_bytes", s);
  return s.key_rows() * (s.k_width() + s.v_width()) * static_cast<std::int64_t>(dtype);
}

/// A call as a sequence of stages: what is live, and the scratch on top of it.
struct MemoryCount {
  /// One step of a call.
  struct Stage {
    std::string name;      // as reports print it
    std::int64_t live;     // bytes of tensors that stay behind the stage
    std::int64_t scratch;  // bytes that are returned at its end
  };
  std::vector<Stage> stages;  // in the order of the computation
  std::int64_t cache = 0;     // kept for backward after the call
  std::int64_t result = 0;    // returned to the caller

  /// The most that is live at once, scratch included.
  std::int64_t peak() const {
    std::int64_t most = 0;
    for (const Stage& stage : stages) most = std::max<Index>(most, stage.live + stage.scratch);
    return most;
  }
};

namespace detail {

/// Bytes of `elements` of T for each worker, as a Workspace asks for them.
template <class T>
std::int64_t workspace_bytes(Index workers, Index elements) {
  return workers * padded<T>(elements) * static_cast<std::int64_t>(sizeof(T));
}

/// Cosines and sines of as many positions as queries or keys have. Packed: of every row, copied
/// from those of the longest sequence; where keys are rows of their own, behind the queries.
template <class T>
std::int64_t rotations_bytes(const AttentionShape& s) {
  std::int64_t positions = std::max<Index>(s.seq_len, s.S());
  if (s.packed()) {
    positions = s.seq_len + longest_of(s.query_starts);
    if (!s.self_attention()) {
      positions = std::max<std::int64_t>(positions, s.S() + longest_of(s.key_starts));
    }
  }
  return 2 * positions * (s.rotary_width / 2) * static_cast<std::int64_t>(sizeof(T));
}

/// Numbers that training keeps in 16 bits, where it is asked to.
struct SavedElements {
  std::int64_t x_norm = 0, projections = 0, normed = 0;

  template <class T>
  static SavedElements of(const AttentionShape& s, bool flash) {
    if (!s.saved_in_16_bits || !flash || !std::same_as<T, float>) return {};
    const std::int64_t N = s.query_rows(), M = s.key_rows();
    return {.x_norm = s.layer_norm ? N * s.d_model : 0,
            .projections = N * s.q_width() + M * (s.k_width() + s.v_width()),
            .normed = s.qk_norm ? N * s.q_width() + M * s.k_width() : 0};
  }
  std::int64_t total() const { return x_norm + projections + normed; }
};

inline namespace HEADWISE_CODE {  // tiles depend on flags

/// The stages of a call that computes in T, one on top of the other.
template <class T>
struct Stages {
  MemoryCount count;
  std::int64_t live = 0;  // bytes

  /// `more` numbers of T stay behind the stage.
  void add(const char* name, std::int64_t more, std::int64_t scratch) {
    live += more * static_cast<std::int64_t>(sizeof(T));
    count.stages.push_back({name, live, scratch});
  }
  /// Numbers that are there as T already are kept in 16 bits, too.
  void round(const char* name, std::int64_t elements) {
    if (elements == 0) return;
    live += 2 * elements;
    count.stages.push_back({name, live, 0});
  }
};

/// A product [M, K] [K, N], as linear_forward asks for its scratch.
template <class T>
std::int64_t gemm_workspace_bytes(const kernels::Kernels<T>& run, Index workers, Index M, Index N,
                                  Index K) {
  const Index scratch = run.gemm_scratch({M, N, K});
  return M == 0 || N == 0 ? 0 : workspace_bytes<T>(workers, scratch);
}
/// What the projections of queries, keys and values ask for: of self-attention one product, whose
/// three biases lie in scratch, too.
template <class T>
std::int64_t projection_bytes(const kernels::Kernels<T>& run, Index workers,
                              const AttentionShape& s) {
  const std::int64_t N = s.query_rows(), M = s.key_rows(), D = s.d_model;
  const bool all_biases = s.q_bias && s.k_bias && s.v_bias;
  const bool no_bias = !s.q_bias && !s.k_bias && !s.v_bias;
  if (s.self_attention() && (all_biases || no_bias)) {  // one product
    const Index width = s.q_width() + s.k_width() + s.v_width();
    return gemm_workspace_bytes<T>(run, workers, N, width, D) +
           (all_biases ? width * static_cast<std::int64_t>(sizeof(T)) : 0);
  }
  return std::max<std::int64_t>({gemm_workspace_bytes<T>(run, workers, N, s.q_width(), D),
                                 gemm_workspace_bytes<T>(run, workers, M, s.k_width(), s.k_in()),
                                 gemm_workspace_bytes<T>(run, workers, M, s.v_width(), s.v_in())});
}
/// What flash_attention_forward asks for: scratch for each worker, and what those share who compute
/// few queries together.
template <class T>
std::int64_t flash_forward_bytes(const kernels::Kernels<T>& run, Index workers,
                                 const AttentionShape& s) {
  if (s.packed()) return workspace_bytes<T>(workers, run.flash_forward_scratch(s.d(), s.dv()));
  const Index heads = s.G() == 0 ? 0 : s.num_heads / s.G();
  const kernels::ForwardMemory<T> memory(
      run.decode, run.flash_forward_scratch(s.d(), s.dv()),
      {s.batch_size * s.G(), heads, s.seq_len, s.S(), s.d(), s.dv(), workers});
  return workspace_bytes<T>(workers, memory.each_worker) + workspace_bytes<T>(1, memory.shared);
}
/// What flash_attention_backward asks for: scratch for each worker, a delta for each query, and a
/// count for each block of queries (and a sum, for the module's sinks; one for each block of keys,
/// for its slopes and distances); packed, for every sequence one more.
template <class T>
std::int64_t flash_backward_bytes(const kernels::Kernels<T>& run, Index workers,
                                  const AttentionShape& s) {
  const Index heads = s.batch_size * s.num_heads;
  const auto count_blocks = [&](Index length, Index size) {
    const Index sequences = static_cast<Index>(s.query_starts.size()) - 1;
    return s.packed() ? length / size + sequences : (length + size - 1) / size;
  };
  const Index blocks = count_blocks(s.seq_len, run.backward_queries);
  const Index sums = count_blocks(s.S(), run.backward_keys) * s.own_numbers_of_pairs();
  return workspace_bytes<T>(workers, run.flash_backward_scratch(s.d(), s.dv())) +
         workspace_bytes<T>(1, heads * s.seq_len) + workspace_bytes<Index>(1, heads * blocks) +
         workspace_bytes<T>(1, s.own_sinks ? heads * blocks : 0) +
         workspace_bytes<T>(1, heads * sums);
}

/// What attention asks for by either path: nothing where there is nothing to compute.
///@{
template <class T>
std::int64_t attention_forward_bytes(const kernels::Kernels<T>& run, Index workers,
                                     const AttentionShape& s, bool flash) {
  if (s.query_rows() == 0) return 0;
  if (flash) return flash_forward_bytes<T>(run, workers, s);
  return workspace_bytes<T>(
      workers, run.attention_forward_scratch(s.seq_len, s.S(), s.d(), s.dv(), s.weight_dropout));
}
template <class T>
std::int64_t attention_backward_bytes(const kernels::Kernels<T>& run, Index workers,
                                      const AttentionShape& s, bool flash) {
  if (s.query_rows() == 0 && s.key_rows() == 0) return 0;
  if (flash) return flash_backward_bytes<T>(run, workers, s);
  return workspace_bytes<T>(
      workers, run.attention_backward_scratch(s.seq_len, s.S(), s.d(), s.dv(), s.weight_dropout,
                                              s.softcap || s.score_function || s.own_scores() > 0));
}
///@}

}  // namespace HEADWISE_CODE
}  // namespace detail

inline namespace HEADWISE_CODE {

/// The forward call of MultiHeadAttention: `training` fills a cache. Inputs are viewed. `products`
/// are those of the call's context.
template <Scalar T>
MemoryCount count_memory(const AttentionShape& s, Path path, bool training, Index workers = 1,
                         const Products& products = {}) {
  detail::require_size("count_memory", "workers", workers, 1);
  detail::require_shape_of_call("count_memory", s, static_cast<double>(workers));
  if (s.packed()) detail::require_packed_path("count_memory", path);
  const bool flash = path == Path::flash;
  const kernels::Kernels<T>& run = kernels::kernels_with<T>(products);
  constexpr std::int64_t bytes = sizeof(T);
  const std::int64_t N = s.query_rows(), M = s.key_rows(), D = s.d_model;
  const auto saved = training ? detail::SavedElements::of<T>(s, flash) : detail::SavedElements();
  detail::Stages<T> stages;
  if (s.layer_norm) stages.add("layer_norm", N * D + 2 * N, 0);
  stages.round("layer_norm in 16 bits", saved.x_norm);
  stages.add(s.self_attention() ? "qkv projection" : "q, k, v projections",
             N * s.q_width() + M * (s.k_width() + s.v_width()),
             detail::projection_bytes<T>(run, workers, s));
  if (s.qk_norm) {
    stages.round("projections in 16 bits", saved.projections);
    stages.add("qk norm", training ? N * s.q_width() + M * s.k_width() + s.head_rows() : 0, 0);
  }
  if (s.rotary_width != 0) stages.add("rotary", 0, detail::rotations_bytes<T>(s));
  stages.round("heads in 16 bits", s.qk_norm ? saved.normed : saved.projections);
  const std::int64_t weights = s.num_heads * N * s.S(), lse = training ? 2 * s.num_heads * N : 0;
  stages.add("attention", N * s.context_width() + (flash ? lse : weights),
             detail::attention_forward_bytes<T>(run, workers, s, flash));
  stages.count.cache = training ? stages.live - saved.total() * bytes : 0;
  stages.add("o projection", N * D,
             detail::gemm_workspace_bytes<T>(run, workers, N, D, s.context_width()));
  stages.count.result = N * D * bytes;
  return stages.count;
}

/// The backward call, on top of what the forward call left.
template <Scalar T>
MemoryCount count_backward_memory(const AttentionShape& s, Path path, Index workers = 1,
                                  const Products& products = {}) {
  detail::require_size("count_backward_memory", "workers", workers, 1);
  detail::require_shape_of_call("count_backward_memory", s, static_cast<double>(workers));
  if (s.packed()) detail::require_packed_path("count_backward_memory", path);
  const bool flash = path == Path::flash;
  const kernels::Kernels<T>& run = kernels::kernels_with<T>(products);
  constexpr std::int64_t bytes = sizeof(T);
  const std::int64_t N = s.query_rows(), M = s.key_rows(), D = s.d_model;
  const Index width = s.q_width() + s.k_width() + s.v_width();
  const Index qw = s.q_width(), kw = s.k_width(), vw = s.v_width(), cw = s.context_width();
  detail::Stages<T> stages;
  const std::int64_t inputs = N * D + (s.self_attention() ? 0 : M * (s.k_in() + s.v_in()));
  const std::int64_t saved = detail::SavedElements::of<T>(s, flash).total();
  if (saved != 0) {
    const std::int64_t of_rows = (s.layer_norm ? 2 * N : 0) + (s.qk_norm ? s.head_rows() : 0);
    stages.add("widening", saved + of_rows + (s.context_width() + 2 * s.num_heads) * N, 0);
  }
  const auto product = [&](Index rows, Index columns, Index inner) {
    return detail::gemm_workspace_bytes<T>(run, workers, rows, columns, inner);
  };
  stages.add("gradients of inputs", inputs, 0);
  if (s.output_dropout) stages.add("dropout", N * D, 0);
  stages.add("o projection", N * cw, product(N, cw, D));
  const std::int64_t projected = s.self_attention() ? N * width : N * qw + M * (kw + vw);
  stages.add("attention", projected + s.num_heads * s.own_scores(),
             detail::attention_backward_bytes<T>(run, workers, s, flash));
  if (s.rotary_width != 0) stages.add("rotary", 0, detail::rotations_bytes<T>(s));
  if (s.qk_norm) stages.add("qk norm", s.qk_norm_affine ? 2 * s.d() : 0, 0);
  if (s.self_attention()) {
    stages.add("projections", 0, product(N, D, width));
    stages.add("weights", 0, std::max<std::int64_t>(product(cw, D, N), product(D, width, N)));
  } else {
    stages.add("projections", 0,
               std::max<std::int64_t>(
                   {product(N, D, qw), product(M, s.k_in(), kw), product(M, s.v_in(), vw)}));
    stages.add("weights", 0,
               std::max<std::int64_t>({product(cw, D, N), product(D, qw, N),
                                       product(s.k_in(), kw, M), product(s.v_in(), vw, M)}));
  }
  stages.count.result = inputs * bytes;
  return stages.count;
}

}  // namespace HEADWISE_CODE
}  // namespace headwise::inline v0_1
