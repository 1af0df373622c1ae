// Two claims about layout, measured. Heads as views with strides of a fused projection, against a
// copy that lays each head out by itself; and one product for Q, K and V against one for each, and
// one for each head.
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

enum class Heads { strided, copied, contiguous };

/// x w_qkv as a module has it, [B, L, 3 D], and the same heads copied out.
struct HeadsProblem {
  AttentionCase sizes;
  Tensor<float, 3> qkv, y;      // [B, L, 3 D], [B, L, D]
  Tensor<float, 4> q, k, v, o;  // [B, H, L, d] each, heads by themselves
  Tensor<float, 4> lse = {};    // inference
  AttentionOptions<float> options;

  explicit HeadsProblem(const std::vector<Index>& values)
      : sizes(values),
        qkv(random_tensor<float>(Shape{sizes.B, sizes.L, 3 * sizes.D}, 1)),
        y({sizes.B, sizes.L, sizes.D}),
        q({sizes.B, sizes.H, sizes.L, sizes.d()}),
        k(q.shape()),
        v(q.shape()),
        o(q.shape()) {
    if (sizes.is_causal) options.mask.add(causal);
    copy_heads();
  }
  In<float, 4> heads(Index which) const {
    return split_heads(slice(qkv, 2, which * sizes.D, sizes.D), sizes.H);
  }
  void copy_heads() {
    copy(heads(0), q);
    copy(heads(1), k);
    copy(heads(2), v);
  }
  void run(Heads layout, const Context& context) {
    if (layout == Heads::strided) {
      const auto out = split_heads(y, sizes.H);
      flash_attention_forward(heads(0), heads(1), heads(2), options, out, {}, context);
      return;
    }
    if (layout == Heads::copied) copy_heads();
    flash_attention_forward(In<float, 4>(q), k, v, options, o, {}, context);
    if (layout == Heads::copied) copy(In<float, 4>(o), split_heads(y, sizes.H));
  }
  bool right(Heads layout) {
    const auto view = split_heads(y, sizes.H);
    const Tensor<float, 4> got =
        layout == Heads::contiguous ? Tensor<float, 4>(contiguous(o)) : contiguous(view);
    run(Heads::strided, Context());
    return bool(close_to(In<float, 4>(got), In<float, 4>(view), tolerance<float>));
  }
};

template <Heads layout>
Case heads(const std::vector<Index>& values) {
  const auto problem = std::make_shared<HeadsProblem>(values);
  const auto [B, L, D, H, G, is_causal] = problem->sizes;
  const auto count = count_flops(
      {.batch_size = B, .seq_len = L, .d_model = D, .num_heads = H, .causal = is_causal});
  Case one;
  one.run = [problem](const Context& context) { problem->run(layout, context); };
  one.right = [problem] { return problem->right(layout); };
  one.flops = static_cast<double>(count.scores + count.context);
  one.bytes = bytes_of(problem->qkv, problem->y);
  one.tokens = problem->sizes.tokens();
  return one;
}

enum class Projection { fused, three, by_head };

struct ProjectionProblem {
  AttentionCase sizes;
  Tensor<float, 2> x, w, y;  // [B L, D], [D, 3 D], [B L, 3 D]
  // The columns of w by themselves, as separate matrices have them, and a result for each.
  std::vector<Tensor<float, 2>> parts, results;

  ProjectionProblem(const std::vector<Index>& values, Projection projection)
      : sizes(values),
        x(random_tensor<float>(Shape{sizes.B * sizes.L, sizes.D}, 1)),
        w(random_tensor<float>(Shape{sizes.D, 3 * sizes.D}, 2)),
        y({sizes.B * sizes.L, 3 * sizes.D}) {
    if (projection == Projection::fused) return;
    const Index count = projection == Projection::three ? 3 : 3 * sizes.H;
    const Index width = 3 * sizes.D / count;
    for (Index n = 0; n < count; ++n) {
      parts.push_back(contiguous(slice(w, 1, n * width, width)));
      results.push_back(Tensor<float, 2>({x.extent(0), width}));
    }
  }
  void run(const Context& context) {
    if (parts.empty()) linear_forward(x, w, {}, y, context);
    for (std::size_t n = 0; n < parts.size(); ++n) {
      linear_forward(x, parts[n], {}, results[n], context);
    }
  }
  bool right() {
    linear_forward(x, w, {}, y, Context());
    for (std::size_t n = 0; n < results.size(); ++n) {
      const Index width = results[n].extent(1);
      const In<float, 2> expected = slice(y, 1, static_cast<Index>(n) * width, width);
      if (!close_to(In<float, 2>(results[n]), expected, tolerance<float>)) return false;
    }
    return true;
  }
};

template <Projection projection>
Case project(const std::vector<Index>& values) {
  const auto problem = std::make_shared<ProjectionProblem>(values, projection);
  Case one;
  one.run = [problem](const Context& context) { problem->run(context); };
  one.right = [problem] { return problem->right(); };
  one.flops =
      2.0 * static_cast<double>(problem->x.size()) * 3.0 * static_cast<double>(problem->sizes.D);
  one.bytes = bytes_of(problem->x, problem->w, problem->y);
  one.tokens = problem->sizes.tokens();
  return one;
}

std::vector<std::vector<Index>> standard_values(bool causal_too) {
  std::vector<std::vector<Index>> values;
  for (const BenchShape& s : shapes()) {
    if (s.purpose != "standard" || s.L > 4096) continue;
    values.push_back({s.B, s.L, s.D, s.H, s.G, 0});
    if (causal_too) values.push_back({s.B, s.L, s.D, s.H, s.G, 1});
  }
  return values;
}

}  // namespace

void add_layout(Families& families) {
  const auto add = [&](const char* name, Case (*make)(const std::vector<Index>&), bool masks) {
    families.push_back({name_of<float>(name), attention_arguments(), standard_values(masks), make});
  };
  add("heads/strided", heads<Heads::strided>, true);
  add("heads/copied", heads<Heads::copied>, true);
  add("heads/contiguous", heads<Heads::contiguous>, true);
  add("projection/fused", project<Projection::fused>, false);
  add("projection/three", project<Projection::three>, false);
  add("projection/by_head", project<Projection::by_head>, false);
}

}  // namespace headwise::bench
