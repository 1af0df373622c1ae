// What is done to scores, in the tiles of flash attention, forward and backward, with the gradients
// of what is learned: scores/plain is the same call with nothing done to them.
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

enum class Change {
  plain,
  softcap,
  alibi,
  relative,
  sinks,
  bias,
  keep,
  dropout,
  fading,
  bent,
  window
};

constexpr Index window = 256;

constexpr auto fading = [](auto s, const Position& at) {
  return s - 0.01f * static_cast<float>(at.query - at.key);
};
constexpr auto bent = [](auto s, const Position&, const auto& w) { return s * (w[0] + 0.01f * s); };

/// Causal self-attention of one tensor each, with what one change views and learns.
struct Problem {
  Index B, L, H, G, d;
  Tensor<float, 4> q, k, v, d_o, o, lse, dq, dk, dv, bias, d_bias;
  Tensor<float, 1> slopes, d_slopes, sinks, d_sinks, d_function{Shape{1}};
  Tensor<float, 2> table, d_table;
  Tensor<bool, 2> seen;
  decltype(score_function<float>(fading)) fading_function = score_function<float>(fading);
  decltype(score_function(std::array{1.0f}, bent)) bent_function =
      score_function(std::array{1.0f}, bent);
  AttentionOptions<float> options{.mask = causal};
  ScoreGradients<float> learned;

  Problem(const std::vector<Index>& sizes, Change change)
      : B(sizes.at(0)), L(sizes.at(1)), H(sizes.at(3)), G(sizes.at(4)), d(sizes.at(2) / H) {
    const Shape<4> of_queries{B, H, L, d}, of_keys{B, G, L, d};
    q = random_tensor<float>(of_queries, 1), d_o = random_tensor<float>(of_queries, 2);
    k = random_tensor<float>(of_keys, 3), v = random_tensor<float>(of_keys, 4);
    for (auto* x : {&o, &dq}) *x = Tensor<float, 4>(of_queries);
    for (auto* x : {&dk, &dv}) *x = Tensor<float, 4>(of_keys);
    lse = Tensor<float, 4>(Shape{B, H, L, Index{2}});
    give(change);
  }

  void give(Change change) {
    ScoreOptions<float>& score = options.score;
    if (change == Change::softcap) score.softcap = 30.0f;
    if (change == Change::alibi) {
      slopes = alibi_slopes<float>(H), d_slopes = Tensor<float, 1>(Shape{H});
      score.alibi_slopes = slopes, learned.d_alibi_slopes = d_slopes;
    }
    if (change == Change::relative) {
      table = random_tensor<float>(Shape{H, 257}, 5), d_table = Tensor<float, 2>(table.shape());
      score.relative_bias = table, learned.d_relative_bias = d_table;
    }
    if (change == Change::sinks) {
      sinks = random_tensor<float>(Shape{H}, 6), d_sinks = Tensor<float, 1>(Shape{H});
      score.sinks = sinks, learned.d_sinks = d_sinks;
    }
    if (change == Change::bias) {
      bias = random_tensor<float>(Shape{Index{1}, H, L, L}, 7);
      d_bias = Tensor<float, 4>(bias.shape());
      options.mask.add(Mask::bias(bias)), learned.d_biases[0] = d_bias;
    }
    if (change == Change::keep) {
      seen = Tensor<bool, 2>(Shape{L, L});
      for (Index n = 0; n < seen.size(); ++n) seen.data()[n] = n % 7 != 3;
      options.mask.add(Mask::keep(seen));
    }
    if (change == Change::dropout) options.dropout = {.rate = 0.1, .seed = 8};
    if (change == Change::window) options.mask.add(Mask::window(window));
    if (change == Change::fading) score.function = fading_function;
    if (change == Change::bent) score.function = bent_function, learned.d_function = d_function;
  }

  void run(const Context& context) {
    flash_attention_forward<float>(q, k, v, options, o, lse, context);
    flash_attention_backward<float>(d_o, {q, k, v}, o, lse, options, {dq, dk, dv, learned},
                                    context);
  }
  /// The readable path gives the same, where its weights are not too many to keep.
  bool right() const {
    if (L > 2048) return true;
    Tensor<float, 4> y(o.shape()), p({B, H, L, L}), dx(q.shape()), dk_kept(k.shape()),
        dv_kept(v.shape());
    attention_forward<float>(q, k, v, options, p, y);
    attention_backward<float>(d_o, {q, k, v}, p, options, {dx, dk_kept, dv_kept});
    return close_to(In<float, 4>(o), In<float, 4>(y), tolerance<float>) &&
           close_to(In<float, 4>(dq), In<float, 4>(dx), tolerance<float>) &&
           close_to(In<float, 4>(dk), In<float, 4>(dk_kept), tolerance<float>);
  }
};

template <Change change>
void add(Families& families, const std::string& name) {
  const auto make = [](const std::vector<Index>& sizes) {
    const auto problem = std::make_shared<Problem>(sizes, change);
    const Problem& p = *problem;
    Case one;
    one.run = [problem](const Context& context) { problem->run(context); };
    one.right = [problem] { return problem->right(); };
    const Index pairs =
        visible_pairs(p.L, p.L, p.L, true, change == Change::window ? window : Index{0});
    one.flops = static_cast<double>(14 * p.B * p.H * p.d * pairs);
    one.bytes = bytes_of(p.q, p.k, p.v, p.d_o, p.o, p.dq, p.dk, p.dv);
    one.tokens = static_cast<double>(p.B * p.L);
    return one;
  };
  std::vector<std::vector<Index>> shapes{{1, 2048, 128, 2, 2}, {1, 2048, 768, 12, 12}};
  if (change == Change::plain || change == Change::window) shapes.push_back({1, 16384, 128, 2, 2});
  families.push_back(
      {name_of<float>("scores/" + name), {"B", "L", "D", "H", "G"}, std::move(shapes), make});
}

}  // namespace

void add_scores(Families& families) {
  add<Change::plain>(families, "plain");
  add<Change::softcap>(families, "softcap");
  add<Change::alibi>(families, "alibi");
  add<Change::relative>(families, "relative_bias");
  add<Change::sinks>(families, "sinks");
  add<Change::bias>(families, "bias");
  add<Change::keep>(families, "keep");
  add<Change::dropout>(families, "dropout");
  add<Change::fading>(families, "function");
  add<Change::bent>(families, "learned_function");
  add<Change::window>(families, "window");
}

}  // namespace headwise::bench
