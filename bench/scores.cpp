// What is done to scores, in the tiles of flash attention, forward and backward, with the gradients
// of what is learned: scores/plain is the same call with nothing done to them. Rotary positions and
// norms of queries and keys are passes before the call and behind its backward: timed with it.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support.hpp"

namespace headwise::bench {

namespace {

constexpr Index window = 256, first_keys = 4, document = 512, reach = 128;

constexpr auto fading = [](auto s, const Position& at) {
  return s - 0.01f * static_cast<float>(at.query - at.key);
};
constexpr auto bent = [](auto s, const Position&, const auto& w) { return s * (w[0] + 0.01f * s); };

/// Causal self-attention of one tensor each, with what one change views and learns.
struct Problem {
  Index B, L, H, G, d;
  Tensor<float, 4> q, k, v, d_o, o, lse, dq, dk, dv, bias, d_bias;
  Tensor<float, 1> d_scale, slopes, d_slopes, sinks, d_sinks, d_function{Shape{1}};
  Tensor<float, 2> table, d_table;
  Tensor<bool, 2> seen;
  Tensor<std::int32_t, 2> documents;
  decltype(score_function<float>(fading)) fading_function = score_function<float>(fading);
  decltype(score_function(std::array{1.0f}, bent)) bent_function =
      score_function(std::array{1.0f}, bent);
  AttentionOptions<float> options{.mask = causal};
  ScoreGradients<float> learned;
  std::int64_t pairs;  // that a head computes

  /// What becomes of queries and keys before they meet, and of their gradients.
  std::function<void(Problem&, const Context&)> before;
  std::function<void(Problem&, Out<float, 4> dq, Out<float, 4> dk, const Context&)> after;
  Tensor<float, 4> met_q, met_k;  // what meets: absent where it is q and k
  Tensor<float, 3> q_rstd, k_rstd;
  Tensor<float, 1> gamma, d_gamma;

  explicit Problem(const std::vector<Index>& sizes)
      : B(sizes.at(0)),
        L(sizes.at(1)),
        H(sizes.at(3)),
        G(sizes.at(4)),
        d(sizes.at(2) / H),
        pairs(visible_pairs(L, L, L, true, 0)) {
    const Shape<4> of_queries{B, H, L, d}, of_keys{B, G, L, d};
    q = random_tensor<float>(of_queries, 1), d_o = random_tensor<float>(of_queries, 2);
    k = random_tensor<float>(of_keys, 3), v = random_tensor<float>(of_keys, 4);
    for (auto* x : {&o, &dq}) *x = Tensor<float, 4>(of_queries);
    for (auto* x : {&dk, &dv}) *x = Tensor<float, 4>(of_keys);
    lse = Tensor<float, 4>(Shape{B, H, L, Index{2}});
  }

  In<float, 4> queries() const { return met_q.absent() ? q : met_q; }
  In<float, 4> keys() const { return met_k.absent() ? k : met_k; }

  void run(const Context& context) {
    if (before) before(*this, context);
    flash_attention_forward<float>(queries(), keys(), v, options, o, lse, context);
    flash_attention_backward<float>(d_o, {queries(), keys(), v}, o, lse, options,
                                    {dq, dk, dv, learned}, context);
    if (after) after(*this, dq, dk, context);
  }
  /// The readable path gives the same, where its weights are not too many to keep.
  bool right() {
    if (L > 2048) return true;
    Tensor<float, 4> y(o.shape()), p({B, H, L, L}), dx(q.shape()), dk_kept(k.shape()),
        dv_kept(v.shape());
    attention_forward<float>(queries(), keys(), v, options, p, y);
    attention_backward<float>(d_o, {queries(), keys(), v}, p, options, {dx, dk_kept, dv_kept});
    if (after) after(*this, dx, dk_kept, {});
    return close_to(In<float, 4>(o), In<float, 4>(y), tolerance<float>) &&
           close_to(In<float, 4>(dq), In<float, 4>(dx), tolerance<float>) &&
           close_to(In<float, 4>(dk), In<float, 4>(dk_kept), tolerance<float>);
  }
};

/// One thing that can be done to scores.
struct Change {
  std::string name;
  void (*give)(Problem& to);
};

void give_relative_bias(Problem& to) {
  to.table = random_tensor<float>(Shape{to.H, 2 * reach + 1}, 5);
  to.d_table = Tensor<float, 2>(to.table.shape());
  to.options.score.relative_bias = to.table, to.learned.d_relative_bias = to.d_table;
}

/// Learned, one for each head or for all.
void give_bias(Problem& to, Index heads) {
  to.bias = random_tensor<float>(Shape{Index{1}, heads, to.L, to.L}, 7);
  to.d_bias = Tensor<float, 4>(to.bias.shape());
  to.options.mask.add(Mask::bias(to.bias)), to.learned.d_biases[0] = to.d_bias;
}

void give_keep(Problem& to) {
  to.seen = Tensor<bool, 2>(Shape{to.L, to.L});
  for (Index n = 0; n < to.seen.size(); ++n) to.seen.data()[n] = n % 7 != 3;
  to.options.mask.add(Mask::keep(to.seen));
}

/// In place of `causal`: 0 on and below the diagonal, -infinity above, for all heads.
void give_causal_bias(Problem& to) {
  to.bias = Tensor<float, 4>(Shape{Index{1}, Index{1}, to.L, to.L});
  for (Index i = 0; i < to.L; ++i) {
    for (Index j = i + 1; j < to.L; ++j) {
      to.bias(0, 0, i, j) = -std::numeric_limits<float>::infinity();
    }
  }
  to.options.mask = Mask::bias(to.bias);
}

/// The last quarter of the keys, for all queries; no causality.
void give_padding_bias(Problem& to) {
  to.bias = Tensor<float, 4>(Shape{Index{1}, Index{1}, Index{1}, to.L});
  const Index length = 3 * to.L / 4;
  for (Index j = length; j < to.L; ++j) {
    to.bias(0, 0, 0, j) = -std::numeric_limits<float>::infinity();
  }
  to.options.mask = Mask::bias(to.bias);
  to.pairs = to.L * length;
}

void give_documents(Problem& to) {
  to.documents = Tensor<std::int32_t, 2>(Shape{to.B, to.L});
  for (Index n = 0; n < to.documents.size(); ++n) {
    to.documents.data()[n] = static_cast<std::int32_t>(n % to.L / document);
  }
  to.options.mask.add(Mask::documents(to.documents));
  const Index rest = to.L % document;
  to.pairs = to.L / document * visible_pairs(document, document, document, true, 0) +
             visible_pairs(rest, rest, rest, true, 0);
}

void give_rotary(Problem& to) {
  to.met_q = Tensor<float, 4>(to.q.shape()), to.met_k = Tensor<float, 4>(to.k.shape());
  const RotaryOptions whole_pairs{.width = to.d / 2 * 2};
  const auto table = std::make_shared<RotaryTable<float>>(to.d, whole_pairs);
  table->grow(to.L);
  to.before = [table, whole_pairs](Problem& p, const Context& context) {
    rotary_forward<float>(p.q, table->angles(), whole_pairs, p.met_q, context);
    rotary_forward<float>(p.k, table->angles(), whole_pairs, p.met_k, context);
  };
  to.after = [table, whole_pairs](Problem&, Out<float, 4> dq, Out<float, 4> dk,
                                  const Context& context) {
    rotary_backward<float>(dq, table->angles(), whole_pairs, dq, context);
    rotary_backward<float>(dk, table->angles(), whole_pairs, dk, context);
  };
}

void give_norms(Problem& to) {
  to.met_q = Tensor<float, 4>(to.q.shape()), to.met_k = Tensor<float, 4>(to.k.shape());
  to.q_rstd = Tensor<float, 3>(Shape{to.B, to.H, to.L});
  to.k_rstd = Tensor<float, 3>(Shape{to.B, to.G, to.L});
  to.gamma = random_tensor<float>(Shape{to.d}, 9), to.d_gamma = Tensor<float, 1>(Shape{to.d});
  to.before = [](Problem& p, const Context& context) {
    rms_norm_forward<float>(p.q, p.gamma, 1e-6f, p.met_q, p.q_rstd, context);
    rms_norm_forward<float>(p.k, p.gamma, 1e-6f, p.met_k, p.k_rstd, context);
  };
  to.after = [](Problem& p, Out<float, 4> dq, Out<float, 4> dk, const Context& context) {
    rms_norm_backward<float>(dq, p.q, p.gamma, p.q_rstd, dq, p.d_gamma, context);
    rms_norm_backward<float>(dk, p.k, p.gamma, p.k_rstd, dk, p.d_gamma, context);
  };
}

void give_window(Problem& to, Index keeps) {
  to.options.mask.add(Mask::window(window).keeping_first(keeps));
  to.pairs = visible_pairs(to.L, to.L, to.L, true, window, keeps);
}

const std::vector<Change>& changes() {
  static const std::vector<Change> all{
      {"plain", [](Problem&) {}},
      {"scale",
       [](Problem& to) {
         to.d_scale = Tensor<float, 1>(Shape{1});
         to.options.scale = 0.2f, to.learned.d_scale = to.d_scale;
       }},
      {"softcap", [](Problem& to) { to.options.score.softcap = 30.0f; }},
      {"alibi",
       [](Problem& to) {
         to.slopes = alibi_slopes<float>(to.H), to.d_slopes = Tensor<float, 1>(Shape{to.H});
         to.options.score.alibi_slopes = to.slopes, to.learned.d_alibi_slopes = to.d_slopes;
       }},
      {"relative_bias", give_relative_bias},
      {"sinks",
       [](Problem& to) {
         to.sinks = random_tensor<float>(Shape{to.H}, 6);
         to.d_sinks = Tensor<float, 1>(Shape{to.H});
         to.options.score.sinks = to.sinks, to.learned.d_sinks = to.d_sinks;
       }},
      {"bias", [](Problem& to) { give_bias(to, to.H); }},
      {"shared_bias", [](Problem& to) { give_bias(to, 1); }},
      {"causal_bias", give_causal_bias},
      {"padding_bias", give_padding_bias},
      {"keep", give_keep},
      {"dropout", [](Problem& to) { to.options.dropout = {.rate = 0.1, .seed = 8}; }},
      {"function", [](Problem& to) { to.options.score.function = to.fading_function; }},
      {"learned_function",
       [](Problem& to) {
         to.options.score.function = to.bent_function, to.learned.d_function = to.d_function;
       }},
      {"rotary", give_rotary},
      {"qk_norm", give_norms},
      {"documents", give_documents},
      {"window", [](Problem& to) { give_window(to, 0); }},
      {"window_and_first_keys", [](Problem& to) { give_window(to, first_keys); }},
  };
  return all;
}

Case case_of(const Change& change, const std::vector<Index>& sizes) {
  const auto problem = std::make_shared<Problem>(sizes);
  Problem& p = *problem;
  change.give(p);
  Case one;
  one.run = [problem](const Context& context) { problem->run(context); };
  one.right = [problem] { return problem->right(); };
  one.flops = static_cast<double>(14 * p.B * p.H * p.d * p.pairs);
  one.bytes = bytes_of(p.q, p.k, p.v, p.d_o, p.o, p.dq, p.dk, p.dv);
  one.tokens = static_cast<double>(p.B * p.L);
  return one;
}

}  // namespace

void add_scores(Families& families) {
  for (const Change& change : changes()) {
    std::vector<std::vector<Index>> shapes{{1, 2048, 128, 2, 2}, {1, 2048, 768, 12, 12}};
    const bool cut_out = change.name.starts_with("window");
    if (change.name == "plain" || cut_out) shapes.push_back({1, 16384, 128, 2, 2});
    families.push_back(
        {name_of<float>("scores/" + change.name),
         {"B", "L", "D", "H", "G"},
         std::move(shapes),
         [change](const std::vector<Index>& sizes) { return case_of(change, sizes); }});
  }
}

}  // namespace headwise::bench
