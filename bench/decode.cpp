// One query against the keys and values of the tokens before, which is to read them once: of a
// KeyValueCache, also in 16 bits, with something done to scores and with keys masked, and rows of
// keys that lie head by head, or token by token, as a projection writes them.
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

/// Where keys and values lie.
enum class Layout { cache, by_head, by_token };

/// What is done to scores, or hidden, of which the problem has the tensors: `keep` hides each
/// seventh key, `bias` has a number for each.
enum class Change { none, softcap, alibi, relative_bias, sinks, keep, bias };

/// Of keys and values that are stored as U.
template <class T, class U = T>
struct Problem {
  Index B, S, D, H, G, d;
  Layout layout;
  Tensor<T, 4> q, o;          // [B, H, 1, d]
  Tensor<T, 3> keys, values;  // B G S d elements each; without a cache
  KeyValueCache<T> held;      // with one
  Tensor<T, 1> each;          // [H], of what each head has
  Tensor<T, 2> table;         // [H, 257]
  Tensor<bool, 2> seen;       // [1, S]
  Tensor<T, 4> bias;          // [1, 1, 1, S]
  AttentionOptions<T> options{.mask = causal};

  Problem(const std::vector<Index>& sizes, Layout where, Change change)
      : B(sizes.at(0)),
        S(sizes.at(1)),
        D(sizes.at(2)),
        H(sizes.at(3)),
        G(sizes.at(4)),
        d(D / H),
        layout(where),
        q(random_tensor<T>(Shape{B, H, Index{1}, d}, 1)),
        o(q.shape()),
        keys(numbers(2)),
        values(numbers(3)),
        held({.batch_size = B,
              .num_kv_heads = G,
              .capacity = layout == Layout::cache ? S : 0,
              .d_head = d,
              .stored_as = detail::stored_as<U>}),
        each(alibi_slopes<T>(H)),
        table(random_tensor<T>(Shape{H, Index{257}}, 4)),
        seen({1, S}),
        bias(random_tensor<T>(Shape{Index{1}, Index{1}, Index{1}, S}, 5)) {
    for (Index j = 0; j < S; ++j) seen(0, j) = j % 7 != 3;
    if (change == Change::keep) options.mask.add(Mask::keep_keys(seen));
    if (change == Change::bias) options.mask.add(Mask::bias(bias));
    ScoreOptions<T>& score = options.score;
    if (change == Change::softcap) score.softcap = T(20);
    if (change == Change::alibi) score.alibi_slopes = each;
    if (change == Change::relative_bias) score.relative_bias = table;
    if (change == Change::sinks) score.sinks = each;
    if (layout != Layout::cache) return;
    held.append(heads(keys), heads(values));
    keys = values = {};
  }

  /// In memory as KeyValueCache takes it.
  Tensor<T, 3> numbers(std::uint64_t seed) const {
    const auto drawn = random_tensor<T>(Shape{B, S, G * d}, seed);
    auto placed = Tensor<T, 3>::uninitialized(drawn.shape(), default_memory());
    copy(In<T, 3>(drawn), placed);
    return placed;
  }
  In<T, 4> heads(const Tensor<T, 3>& x) const {
    if (layout == Layout::by_token) return split_heads(In<T, 3>(x), G);
    return {x.data(), Shape{B, G, S, d}};
  }
  /// f(keys, values).
  template <class F>
  void with_keys(const F& f) const {
    if (layout == Layout::cache) {
      f(held.template k<U>(), held.template v<U>());
    } else {
      f(heads(keys), heads(values));
    }
  }
  void run(const Context& context) {
    with_keys([&](const auto& k, const auto& v) {
      flash_attention_forward(q, k, v, options, o, {}, context);
    });
  }
  bool right() const {
    Tensor<T, 4> y(o.shape()), p({B, H, 1, S});
    Tensor<T, 4> k(Shape{B, G, S, d}), v(k.shape());
    with_keys([&](const auto& some_k, const auto& some_v) {
      for_each_index(k.shape(), [&](const Shape<4>& at) {
        k(at) = convert_float<T>(some_k(at[0], at[1], at[2], at[3]));
        v(at) = convert_float<T>(some_v(at));
      });
    });
    attention_forward<T>(q, k, v, options, p, y);
    return bool(close_to(In<T, 4>(o), In<T, 4>(y), tolerance<T>));
  }
};

template <class T, Layout layout, class U, Change change>
Case decode(const std::vector<Index>& sizes) {
  const auto problem = std::make_shared<Problem<T, U>>(sizes, layout, change);
  const Problem<T, U>& p = *problem;
  Case one;
  one.run = [problem](const Context& context) { problem->run(context); };
  one.right = [problem] { return problem->right(); };
  one.flops = static_cast<double>(4 * p.B * p.S * p.D);
  one.bytes = static_cast<double>(2 * p.B * p.S * p.G * p.d) * sizeof(U) + bytes_of(p.q, p.o);
  one.tokens = static_cast<double>(p.B);
  return one;
}

template <class T, Layout layout, class U = T, Change change = Change::none>
void add(Families& families, const std::string& family) {
  std::vector<std::vector<Index>> values;
  for (const DecodeShape& s : decode_shapes()) values.push_back({s.B, s.S, s.D, s.H, s.G});
  families.push_back(
      {name_of<T>(family), {"B", "S", "D", "H", "G"}, values, decode<T, layout, U, change>});
}

}  // namespace

void add_decode(Families& families) {
  add<float, Layout::cache>(families, "decode/cache");
  add<float, Layout::by_head>(families, "decode/by_head");
  add<float, Layout::by_token>(families, "decode/by_token");
  add<double, Layout::cache>(families, "decode/cache");
  add<double, Layout::by_head>(families, "decode/by_head");
  add<float, Layout::cache, BFloat16>(families, "decode/bf16");
  add<float, Layout::cache, Float16>(families, "decode/fp16");
  add<float, Layout::cache, float, Change::softcap>(families, "decode/softcap");
  add<float, Layout::cache, float, Change::alibi>(families, "decode/alibi");
  add<float, Layout::cache, float, Change::relative_bias>(families, "decode/relative_bias");
  add<float, Layout::cache, float, Change::sinks>(families, "decode/sinks");
  add<float, Layout::cache, float, Change::keep>(families, "decode/keep");
  add<float, Layout::cache, float, Change::bias>(families, "decode/bias");
}

}  // namespace headwise::bench
