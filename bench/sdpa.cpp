// Scaled dot-product attention alone: forward, backward, both; and with the weights kept.
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

enum class Pass { forward, backward, both };

template <class T>
struct Problem {
  AttentionCase sizes;
  Tensor<T, 4> q, k, v, d_o;  // [B, H, L, d], [B, G, L, d] twice, [B, H, L, d]
  AttentionOptions<T> options;
  Tensor<T, 4> o, weights, dq, dk, dv;
  Tensor<T, 4> lse;  // [B, H, L, 2]
  AttentionShape shape;

  Problem(const std::vector<Index>& values, Pass pass, Path path) : sizes(values) {
    const auto [B, L, D, H, G, is_causal] = sizes;
    const Index d = sizes.d();
    q = random_tensor<T>(Shape{B, H, L, d}, 1);
    k = random_tensor<T>(Shape{B, G, L, d}, 2);
    v = random_tensor<T>(Shape{B, G, L, d}, 3);
    o = Tensor<T, 4>(q.shape());
    lse = Tensor<T, 4>({B, H, L, 2});
    if (pass != Pass::forward) {
      d_o = random_tensor<T>(Shape{B, H, L, d}, 4);
      dq = Tensor<T, 4>(q.shape());
      dk = dv = Tensor<T, 4>(k.shape());
    }
    if (path == Path::materialized) weights = Tensor<T, 4>({B, H, L, L});
    if (is_causal) options.mask.add(causal);
    shape = {.batch_size = B,
             .seq_len = L,
             .d_model = D,
             .num_heads = H,
             .num_kv_heads = G,
             .causal = is_causal};
  }

  void forward(Path path, const Context& context) {
    if (path == Path::flash) {
      flash_attention_forward(q, k, v, options, o, lse, context);
    } else {
      attention_forward(q, k, v, options, weights, o, context);
    }
  }
  void backward(Path path, const Context& context) {
    if (path == Path::flash) {
      flash_attention_backward(d_o, {q, k, v}, o, lse, options, {dq, dk, dv}, context);
    } else {
      attention_backward(d_o, {q, k, v}, weights, options, {dq, dk, dv}, context);
    }
  }

  /// The last queries of the last head against the readable path: with causality from the lower
  /// right they see what they saw in the whole. Gradients of keys and values, where that is short.
  bool right(bool with_backward) const {
    const Index L = sizes.L, group = sizes.H / sizes.G;
    const Index rows = with_backward && L <= 512 ? L : std::min<Index>(L, 32);
    const auto tail = [&](const Tensor<T, 4>& x, Index heads, Index queries) {
      const auto last = slice(slice(x, 0, sizes.B - 1, 1), 1, x.extent(1) - heads, heads);
      return In<T, 4>(slice(last, 2, L - queries, queries));
    };
    const In<T, 4> q_end = tail(q, group, rows), k_end = tail(k, 1, L), v_end = tail(v, 1, L);
    Tensor<T, 4> y({1, group, rows, sizes.d()}), p({1, group, rows, L});
    attention_forward(q_end, k_end, v_end, options, p, y);
    const auto same = [](In<T, 4> got, const Tensor<T, 4>& expected) {
      return bool(close_to(got, In<T, 4>(expected), tolerance<T>));
    };
    if (!same(tail(o, group, rows), y)) return false;
    if (!with_backward) return true;
    Tensor<T, 4> a(y.shape()), b({1, 1, L, sizes.d()}), c({1, 1, L, sizes.d()});
    attention_backward(tail(d_o, group, rows), {q_end, k_end, v_end}, p, options, {a, b, c});
    if (!same(tail(dq, group, rows), a)) return false;
    return rows < L || (same(tail(dk, 1, L), b) && same(tail(dv, 1, L), c));
  }

  /// FLOPs of matrix products, as rates of attention are usually given.
  double flops(Pass pass, Path path) const {
    const auto forward = count_flops(shape);
    const auto backward = count_backward_flops(shape, path);
    const auto there = pass == Pass::backward ? 0 : forward.scores + forward.context;
    const auto back = pass == Pass::forward ? 0 : backward.scores + backward.context;
    return static_cast<double>(there + back);
  }
};

template <class T, Path path, Pass pass>
Case sdpa(const std::vector<Index>& values) {
  const auto problem = std::make_shared<Problem<T>>(values, pass, path);
  if (pass == Pass::backward) problem->forward(path, Context());
  Case one;
  one.run = [problem](const Context& context) {
    if (pass != Pass::backward) problem->forward(path, context);
    if (pass != Pass::forward) problem->backward(path, context);
  };
  one.right = [problem] { return problem->right(pass != Pass::forward); };
  one.flops = problem->flops(pass, path);
  const Problem<T>& p = *problem;
  one.bytes = bytes_of(p.q, p.k, p.v, p.o, p.lse) + bytes_of(p.d_o, p.dq, p.dk, p.dv);
  one.tokens = p.sizes.tokens();
  return one;
}

template <class T, Path path, Pass pass>
void add(Families& families, const std::string& family, Index longest) {
  families.push_back(
      {name_of<T>(family), attention_arguments(), attention_values(longest), sdpa<T, path, pass>});
}

}  // namespace

void add_sdpa(Families& families) {
  constexpr Path flash = Path::flash, kept = Path::materialized;
  add<float, flash, Pass::forward>(families, "sdpa/forward", 65536);
  add<float, flash, Pass::backward>(families, "sdpa/backward", 8192);
  add<float, flash, Pass::both>(families, "sdpa/forward_backward", 8192);
  add<double, flash, Pass::forward>(families, "sdpa/forward", 2048);
  add<double, flash, Pass::backward>(families, "sdpa/backward", 2048);
  add<double, flash, Pass::both>(families, "sdpa/forward_backward", 2048);
  add<float, kept, Pass::forward>(families, "sdpa_weights_kept/forward", 1024);
  add<float, kept, Pass::both>(families, "sdpa_weights_kept/forward_backward", 1024);
}

}  // namespace headwise::bench
