// Scaled dot-product attention whose tensors are kept in 16 bits.
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

template <class U>
struct Problem {
  AttentionCase sizes;
  Tensor<U, 4> q, k, v, d_o;  // [B, H, L, d], [B, G, L, d] twice, [B, H, L, d]
  Tensor<U, 4> o, dq, dk, dv;
  Tensor<float, 4> lse;  // [B, H, L, 2]
  AttentionOptions<float> options;

  explicit Problem(const std::vector<Index>& values) : sizes(values) {
    const auto [B, L, D, H, G, is_causal] = sizes;
    const Shape<4> of_queries{B, H, L, sizes.d()}, of_keys{B, G, L, sizes.d()};
    q = convert<U>(random_tensor<float>(of_queries, 1));
    k = convert<U>(random_tensor<float>(of_keys, 2));
    v = convert<U>(random_tensor<float>(of_keys, 3));
    d_o = convert<U>(random_tensor<float>(of_queries, 4));
    o = dq = Tensor<U, 4>(of_queries);
    dk = dv = Tensor<U, 4>(of_keys);
    lse = Tensor<float, 4>({B, H, L, 2});
    if (is_causal) options.mask.add(causal);
  }

  void run(bool backward, const Context& context) {
    flash_attention_forward<U>(q, k, v, options, o, lse, context);
    if (!backward) return;
    flash_attention_backward<U>(d_o, {q, k, v}, o, lse, options, {dq, dk, dv}, context);
  }
  /// Floats give the same, rounded.
  bool right(bool backward) const {
    const auto wide_q = convert<float>(q), wide_k = convert<float>(k), wide_v = convert<float>(v),
               wide_o = convert<float>(o);
    Tensor<float, 4> y(o.shape()), kept(lse.shape()), a(q.shape()), b(k.shape()), c(v.shape());
    const auto same = [](const Tensor<U, 4>& x, const Tensor<float, 4>& expected) {
      const auto nearest = convert<U>(expected);
      return std::equal(x.data(), x.data() + x.size(), nearest.data());
    };
    flash_attention_forward<float>(wide_q, wide_k, wide_v, options, y, kept);
    if (!same(o, y)) return false;
    if (!backward) return true;
    flash_attention_backward<float>(convert<float>(d_o), {wide_q, wide_k, wide_v}, wide_o, kept,
                                    options, {a, b, c});
    return same(dq, a) && same(dk, b) && same(dv, c);
  }
};

template <class U, bool backward>
Case sdpa(const std::vector<Index>& values) {
  const auto problem = std::make_shared<Problem<U>>(values);
  const Problem<U>& p = *problem;
  Case one;
  one.run = [problem](const Context& context) { problem->run(backward, context); };
  one.right = [problem] { return problem->right(backward); };
  const Index pairs = visible_pairs(p.sizes.L, p.sizes.L, p.sizes.L, p.sizes.is_causal, Index{0});
  one.flops = static_cast<double>((backward ? 14 : 4) * p.sizes.B * p.sizes.D * pairs);
  one.bytes = bytes_of(p.q, p.k, p.v, p.o, p.lse);
  if (backward) one.bytes += bytes_of(p.d_o, p.dq, p.dk, p.dv);
  one.tokens = p.sizes.tokens();
  return one;
}

template <class U>
void add(Families& families, const std::string& name) {
  const auto values = attention_values(2048);
  families.push_back(
      {name_of<float>(name + "/forward"), attention_arguments(), values, sdpa<U, false>});
  families.push_back(
      {name_of<float>(name + "/forward_backward"), attention_arguments(), values, sdpa<U, true>});
}

}  // namespace

void add_sdpa_stored(Families& families) {
  add<BFloat16>(families, "sdpa_bf16");
  add<Float16>(families, "sdpa_fp16");
}

}  // namespace headwise::bench
