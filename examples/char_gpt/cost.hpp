// Bytes of a step of the decoder from its sizes alone: what forward leaves for backward in closed
// form, and the most that is live at once by walking over the step with a pencil. The tape's own
// lists are not in it: they grow with the layers alone.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "headwise/analysis/count_memory.hpp"
#include "model.hpp"

namespace char_gpt {

/// What the tape asks for to keep so many numbers: 64 bytes more than they take. Of a parameter it
/// keeps 0 numbers: where it is.
template <class T>
constexpr std::int64_t kept_bytes(std::initializer_list<Index> values) {
  std::int64_t bytes = 0;
  for (const Index numbers : values) bytes += 64 + numbers * static_cast<std::int64_t>(sizeof(T));
  return bytes;
}

/// What forward of a batch [B, L] leaves for backward, the loss included.
///
/// Of N = B L rows and a width of D a block keeps 16 N D + 2 N H + 4 N numbers, what is behind the
/// blocks 2 N D + N V + 3 N and the loss.
template <class T>
std::int64_t activation_bytes(const ModelOptions& m, Index B, Index L) {
  const Index N = B * L, D = m.width, H = m.heads, V = m.vocabulary;
  const std::int64_t norm = kept_bytes<T>({N * D, 0, N, N});  // its input, gamma, mean, rstd
  const std::int64_t attention = kept_bytes<T>({N * D, 0, 3 * N * D, 2 * N * H, N * D, 0});
  const std::int64_t feed_forward = kept_bytes<T>({N * D, 0, 4 * N * D, 4 * N * D, 0});
  const std::int64_t head = kept_bytes<T>({N * D, 0, N * V, N, 1});
  return m.layers * (norm + attention + norm + feed_forward) + norm + head;
}

/// The values, gradients and scratch of a step, taken and given back as the tape does.
template <class T>
class StepMemory {
 public:
  /// Of a batch [B, L] on so many threads.
  StepMemory(const ModelOptions& m, Index B, Index L, Index workers)
      : model_(m), B_(B), L_(L), N_(B * L), D_(m.width), V_(m.vocabulary), workers_(workers) {
    forward();
    kept_ = live_;
    backward();
  }
  /// Live between forward and backward.
  std::int64_t kept() const { return kept_; }
  /// The most that is live.
  std::int64_t peak() const { return peak_; }
  /// Live behind it: the loss.
  std::int64_t left() const { return live_; }

 private:
  void forward() {
    take({0, N_ * D_, 0, N_ * D_});  // the tables, the tokens' rows, h
    give({N_ * D_, 0});              // those rows; positions
    for (Index n = 0; n < model_.layers; ++n) {
      norm();
      linear(D_, 3 * D_);
      take({N_ * D_, 2 * N_ * model_.heads});
      scratch(flash_forward());
      branch_end(D_);
      norm();
      linear(D_, 4 * D_);
      take({4 * N_ * D_});  // gelu
      branch_end(4 * D_);
    }
    norm();
    take({N_ * V_});  // the table is there
    scratch(product(N_, V_, D_));
    take({1, N_});
    scratch(N_ * bytes_of<Index> + N_ * bytes_of<T>);  // columns and losses of rows
  }

  void backward() {
    take({1, N_ * V_});  // gradients of loss and logits
    scratch(N_ * bytes_of<Index>);
    give({1, N_ * V_, N_});
    head_backward();
    norm_backward(true);
    for (Index n = 0; n < model_.layers; ++n) {
      take({N_ * D_});  // the gradient of h in between: what came goes on along the branch
      linear_backward(4 * D_, D_);
      take({4 * N_ * D_});               // gelu: its gradient,
      give({4 * N_ * D_, 4 * N_ * D_});  // its input and what came
      linear_backward(D_, 4 * D_);
      norm_backward(false);
      take({N_ * D_});
      linear_backward(D_, D_, false);  // attention keeps the context, too
      take({3 * N_ * D_});
      scratch(flash_backward());
      give({3 * N_ * D_, N_ * D_, 2 * N_ * model_.heads, N_ * D_});
      linear_backward(D_, 3 * D_);
      norm_backward(false);
    }
    embeddings_backward();
  }

  /// Layer norm: gamma, y and two numbers a row. Its input is there.
  void norm() { take({0, N_ * D_, N_, N_}); }
  void linear(Index K, Index O) {
    take({0, N_ * O});
    scratch(product(N_, O, K));
  }
  /// The last product of a branch, added to h.
  void branch_end(Index K) {
    linear(K, D_);
    take({N_ * D_});
    give({N_ * D_});
  }

  /// As all of backward, this gives back what was kept, and the gradient that came.
  void linear_backward(Index K, Index O, bool keeps_input = true) {
    take({N_ * K});
    scratch(std::max(product(N_, K, O), product(K, O, N_)));
    if (keeps_input) give({N_ * K});
    give({0, N_ * O});
  }
  /// The scratch of both products at once.
  void head_backward() {
    take({N_ * D_});
    scratch(product(V_, D_, N_) + product(N_, D_, V_));
    give({N_ * D_, 0, N_ * V_});
  }
  /// Where h has a gradient already, its part is written beside that and added.
  void norm_backward(bool first) {
    take({N_ * D_});
    if (!first) give({N_ * D_});
    give({N_ * D_, 0, N_, N_, N_ * D_});
  }
  /// The rows' gradient is that of h, or beside it a copy where positions have the same; for
  /// positions it is summed over the batch.
  void embeddings_backward() {
    const Index beside = B_ == 1 ? N_ * D_ : L_ * D_;
    take({beside});
    give({beside, N_ * D_});
  }

  template <class X>
  static constexpr auto bytes_of = static_cast<std::int64_t>(sizeof(X));

  std::int64_t product(Index M, Index N, Index K) const {
    return headwise::detail::gemm_workspace_bytes<T>(kernels_, workers_, M, N, K);
  }
  std::int64_t flash_forward() const {
    const Index d = D_ / model_.heads;
    return headwise::detail::workspace_bytes<T>(workers_, kernels_.flash_forward_scratch(d, d));
  }
  std::int64_t flash_backward() const {
    return headwise::detail::flash_backward_bytes<T>(
        kernels_, workers_,
        {.batch_size = B_, .seq_len = L_, .d_model = D_, .num_heads = model_.heads});
  }

  void take(std::initializer_list<Index> values) {
    live_ += kept_bytes<T>(values);
    scratch(0);
  }
  void give(std::initializer_list<Index> values) { live_ -= kept_bytes<T>(values); }
  void scratch(std::int64_t bytes) { peak_ = std::max(peak_, live_ + bytes); }

  const ModelOptions model_;
  const Index B_, L_, N_, D_, V_, workers_;
  const headwise::kernels::Kernels<T>& kernels_ = headwise::kernels::kernels_here<T>();
  std::int64_t live_ = 0, peak_ = 0, kept_ = 0;
};

}  // namespace char_gpt
