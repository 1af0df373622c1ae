// The module that a user would write over Eigen, on the parameters and inputs of ours.
#include <memory>

#include "eigen_plain_module.hpp"
#include "mha.hpp"

namespace headwise::bench {

namespace {

struct EigenProblem {
  Module<float> ours;
  Tensor<float, 1> b_qkv;  // [(H + 2 G) d]
  Tensor<float, 3> y, dx;  // [B, L, D]
  EigenPlainModule eigen;

  explicit EigenProblem(const std::vector<Index>& values)
      : ours(values),
        b_qkv(Shape{(ours.sizes.H + 2 * ours.sizes.G) * ours.sizes.d()}),
        y(ours.x.shape()),
        dx(ours.x.shape()),
        eigen(EigenPlainParameters{
            ours.sizes.B, ours.sizes.L, ours.sizes.D, ours.sizes.H, ours.sizes.G,
            ours.sizes.is_causal, ours.module.parameters().w_qkv.data(), b_qkv.data(),
            ours.module.parameters().w_o.data(), ours.module.parameters().b_o.data()}) {}

  void run(bool with_backward) {
    eigen.forward(ours.x.data(), y.data());
    if (with_backward) eigen.backward(ours.x.data(), ours.dy.data(), dx.data());
  }

  /// Against one run of ours; gradients of both from their first run.
  bool right(bool with_backward) {
    EigenProblem fresh(values());
    fresh.run(with_backward);
    Module<float>& m = fresh.ours;
    m.run(with_backward, Context());
    const auto same = [](const auto& a, const auto& b) {
      return bool(close_to(a, b, tolerance<float>));
    };
    if (!same(In<float, 3>(fresh.y), In<float, 3>(m.y))) return false;
    if (!same(In<float, 3>(y), In<float, 3>(m.y))) return false;
    if (!with_backward) return true;
    const In<float, 2> d_w_qkv(fresh.eigen.d_w_qkv(), m.gradients.w_qkv.shape());
    const In<float, 2> d_w_o(fresh.eigen.d_w_o(), m.gradients.w_o.shape());
    return same(In<float, 3>(dx), In<float, 3>(m.dx)) &&
           same(d_w_qkv, In<float, 2>(m.gradients.w_qkv)) &&
           same(d_w_o, In<float, 2>(m.gradients.w_o));
  }

  std::vector<Index> values() const {
    const AttentionCase& s = ours.sizes;
    return {s.B, s.L, s.D, s.H, s.G, s.is_causal ? 1 : 0};
  }
};

template <bool with_backward>
Case eigen_plain(const std::vector<Index>& values) {
  const auto problem = std::make_shared<EigenProblem>(values);
  Case one;
  one.run = [problem](const Context&) { problem->run(with_backward); };
  one.right = [problem] { return problem->right(with_backward); };
  // What the mathematics asks for, as for ours: the hidden half that it computes brings no credit.
  one.flops = problem->ours.flops(with_backward);
  one.bytes = problem->ours.bytes(with_backward);
  one.tokens = problem->ours.sizes.tokens();
  return one;
}

}  // namespace

void add_eigen_plain(Families& families) {
  const auto add = [&](const char* name, Case (*make)(const std::vector<Index>&)) {
    families.push_back({name_of<float>(name), attention_arguments(), attention_values(4096), make});
  };
  add("eigen_plain/mha/forward", eigen_plain<false>);
  add("eigen_plain/mha/forward_backward", eigen_plain<true>);
}

}  // namespace headwise::bench
