// Multi-head attention as somebody writes it over Eigen in an afternoon: weights of size L x L
// kept, a loop over heads, Eigen's products. The rival of the families eigen_plain/.
//
// It knows nothing of headwise, and this header nothing of Eigen: eigen_plain_module.cpp is
// compiled for the machine at hand, and no inline function of either may be shared between the two.
#pragma once

#include <cstddef>
#include <memory>

namespace headwise::bench {

/// Row-major; columns of w_qkv are Q | K | V, head i in its own d columns.
struct EigenPlainParameters {
  std::ptrdiff_t B, L, D, H, G;
  bool is_causal;
  const float* w_qkv;  // [D, (H + 2 G) d]
  const float* b_qkv;  // [(H + 2 G) d]
  const float* w_o;    // [D, D]
  const float* b_o;    // [D]
};

/// Buffers are made once and used again by every call.
class EigenPlainModule {
 public:
  explicit EigenPlainModule(const EigenPlainParameters& parameters);
  ~EigenPlainModule();

  /// y for x, both [B L, D]; keeps what backward needs.
  void forward(const float* x, float* y);
  /// dx for dy, both [B L, D]; gradients of the parameters are added to.
  void backward(const float* x, const float* dy, float* dx);

  const float* d_w_qkv() const;
  const float* d_w_o() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headwise::bench
