// One query against a cache of keys and values, which is to read them once: where they lie head by
// head, as KeyValueCache has them, and token by token, as a projection writes them; also in 16
// bits.
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

/// Of keys and values that are stored as U.
template <class T, class U = T>
struct Problem {
  Index B, S, D, H, G, d;
  bool by_head;
  Tensor<T, 4> q, o;          // [B, H, 1, d]
  Tensor<U, 3> keys, values;  // B G S d elements each

  Problem(const std::vector<Index>& sizes, bool heads_apart)
      : B(sizes.at(0)),
        S(sizes.at(1)),
        D(sizes.at(2)),
        H(sizes.at(3)),
        G(sizes.at(4)),
        d(D / H),
        by_head(heads_apart),
        q(random_tensor<T>(Shape{B, H, Index{1}, d}, 1)),
        o(q.shape()),
        keys(cache_tensor(2)),
        values(cache_tensor(3)) {}

  /// In memory as KeyValueCache takes it.
  Tensor<U, 3> cache_tensor(std::uint64_t seed) const {
    const auto numbers = random_tensor<T>(Shape{B, S, G * d}, seed);
    auto cache = Tensor<U, 3>::uninitialized(numbers.shape(), default_memory());
    for (Index n = 0; n < cache.size(); ++n) cache.data()[n] = convert_float<U>(numbers.data()[n]);
    return cache;
  }

  template <class V>
  In<V, 4> heads(const Tensor<V, 3>& x) const {
    if (by_head) return {x.data(), Shape{B, G, S, d}};
    return split_heads(In<V, 3>(x), G);
  }
  void run(const Context& context) {
    flash_attention_forward(q, heads(keys), heads(values), {.mask = causal}, o, {}, context);
  }
  bool right() const {
    Tensor<T, 4> y(o.shape()), p({B, H, 1, S});
    const auto k = converted<T>(keys), v = converted<T>(values);
    attention_forward<T>(q, heads(k), heads(v), {.mask = causal}, p, y);
    return bool(close_to(In<T, 4>(o), In<T, 4>(y), tolerance<T>));
  }
};

template <class T, bool by_head, class U>
Case decode(const std::vector<Index>& sizes) {
  const auto problem = std::make_shared<Problem<T, U>>(sizes, by_head);
  const Problem<T, U>& p = *problem;
  Case one;
  one.run = [problem](const Context& context) { problem->run(context); };
  one.right = [problem] { return problem->right(); };
  one.flops = static_cast<double>(4 * p.B * p.S * p.D);
  one.bytes = bytes_of(p.keys, p.values, p.q, p.o);
  one.tokens = static_cast<double>(p.B);
  return one;
}

template <class T, bool by_head, class U = T>
void add(Families& families, const std::string& family) {
  std::vector<std::vector<Index>> values;
  for (const DecodeShape& s : decode_shapes()) values.push_back({s.B, s.S, s.D, s.H, s.G});
  families.push_back(
      {name_of<T>(family), {"B", "S", "D", "H", "G"}, values, decode<T, by_head, U>});
}

}  // namespace

void add_decode(Families& families) {
  add<float, true>(families, "decode/by_head");
  add<float, false>(families, "decode/by_token");
  add<double, true>(families, "decode/by_head");
  add<float, true, BFloat16>(families, "decode/bf16");
  add<float, true, Float16>(families, "decode/fp16");
}

}  // namespace headwise::bench
