// What stands at a language model's two ends and between its heads: embeddings, cross-entropy,
// rotary positions. They wait for memory, or for e^x.
#include <cmath>
#include <memory>
#include <utility>

#include "support.hpp"

namespace headwise::bench {

namespace {

/// N tokens, spread over the vocabulary.
Tensor1<std::int32_t> spread_tokens(Index N, Index V) {
  Tensor1<std::int32_t> tokens(N);
  for (Index n = 0; n < N; ++n) tokens(n) = static_cast<std::int32_t>(n * 7919 % V);
  return tokens;
}

template <class T>
struct Ends {
  Tensor1<std::int32_t> tokens;  // [N]
  Tensor2<T> a, b, c;            // logits and their gradient [N, V], or table [V, D], y and dtable
  Tensor1<T> lse;                // [N]
  T loss = T(0);
};

template <class T, bool with_backward>
Case cross_entropy(const std::vector<Index>& values) {
  const Index N = values.at(0), V = values.at(1);
  const auto ends =
      std::make_shared<Ends<T>>(Ends<T>{spread_tokens(N, V),
                                        random_tensor<T>(Shape{N, V}, 1),
                                        Tensor2<T>(with_backward ? Shape{N, V} : Shape{0, 0}),
                                        {},
                                        Tensor1<T>(N)});
  Case one;
  one.run = [ends](const Context& context) {
    Ends<T>& e = *ends;
    const In<T, 2> logits = e.a;
    const In<std::int32_t, 1> targets = e.tokens;
    e.loss = cross_entropy_forward(logits, targets, {}, e.lse, context);
    if constexpr (with_backward) {
      cross_entropy_backward(T(1), logits, targets, e.lse, {}, e.b, context);
    }
  };
  one.right = [ends, N, V] {
    const Ends<T>& e = *ends;
    for (const Index n : {Index{0}, N - 1}) {
      double sum = 0, back = 0;
      for (Index v = 0; v < V; ++v) {
        sum += std::exp(static_cast<double>(e.a(n, v)));
        if (with_backward) back += static_cast<double>(e.b(n, v));
      }
      if (std::abs(std::log(sum) - static_cast<double>(e.lse(n))) > 1e-4) return false;
      if (std::abs(back) > 1e-5) return false;
    }
    return e.loss > T(0) || V == 1;
  };
  one.flops = static_cast<double>(N * (3 * V + 5) + (with_backward ? N * (4 * V + 2) : 0));
  one.bytes = bytes_of(ends->a) + (with_backward ? bytes_of(ends->a, ends->b) : 0);
  return one;
}

template <class T>
Case embedding(const std::vector<Index>& values) {
  const Index N = values.at(0), V = values.at(1), D = values.at(2);
  const auto ends = std::make_shared<Ends<T>>(Ends<T>{spread_tokens(N, V),
                                                      random_tensor<T>(Shape{V, D}, 1),
                                                      Tensor2<T>(Shape{N, D}),
                                                      Tensor2<T>(Shape{V, D}),
                                                      {}});
  Case one;
  one.run = [ends](const Context& context) {
    Ends<T>& e = *ends;
    const In<std::int32_t, 1> tokens = e.tokens;
    embedding_forward(tokens, In<T, 2>(e.a), e.b, context);
    embedding_backward(In<T, 2>(e.b), tokens, e.c, context);
  };
  // The gradient of a row that was gathered and added again and again is a multiple of that row.
  one.right = [ends, D] {
    const Ends<T>& e = *ends;
    const auto row = static_cast<Index>(e.tokens(0));
    const double times = static_cast<double>(e.c(row, 0)) / static_cast<double>(e.a(row, 0));
    for (Index j = 0; j < D; ++j) {
      const double want = times * static_cast<double>(e.a(row, j));
      if (e.b(0, j) != e.a(row, j)) return false;
      if (std::abs(static_cast<double>(e.c(row, j)) - want) > 1e-3 * std::abs(want)) return false;
    }
    return times > 0.5;
  };
  one.flops = static_cast<double>(N * D);
  one.bytes = 5 * bytes_of(ends->b);
  return one;
}

template <class T, RotaryPairing pairing>
Case rotary(const std::vector<Index>& values) {
  const Index B = values.at(0), L = values.at(1), H = values.at(2), d = values.at(3);
  struct Turned {
    Tensor3<T> x, y;  // [B, L, H d]
    RotaryTable<T> table;
  };
  const auto turned = std::make_shared<Turned>(Turned{random_tensor<T>(Shape{B, L, H * d}, 1),
                                                      Tensor3<T>(Shape{B, L, H * d}),
                                                      RotaryTable<T>(d, {.pairing = pairing})});
  turned->table.grow(L);
  Case one;
  one.run = [turned, H](const Context& context) {
    rotary_forward(In<T, 4>(split_heads(turned->x, H)), turned->table.angles(),
                   {.pairing = pairing}, split_heads(turned->y, H), context);
  };
  one.right = [turned] {  // lengths stay
    double before = 0, after = 0;
    for (Index n = 0; n < turned->x.size(); ++n) {
      before += std::pow(static_cast<double>(turned->x.data()[n]), 2);
      after += std::pow(static_cast<double>(turned->y.data()[n]), 2);
    }
    return std::abs(after - before) < 1e-5 * before;
  };
  one.flops = static_cast<double>(3 * B * L * H * d);
  one.bytes = bytes_of(turned->x, turned->y);
  return one;
}

template <class T>
void add(Families& families) {
  std::vector<std::vector<Index>> logits, tables, heads;
  for (const auto& [N, V] : logits_shapes()) logits.push_back({N, V});
  for (const auto& [N, V, D] : table_shapes()) tables.push_back({N, V, D});
  for (const BenchShape& s : shapes()) {
    if (s.purpose == "standard") heads.push_back({s.B, s.L, s.H, s.D / s.H});
  }
  const auto family = [&](const char* name, std::vector<std::string> arguments,
                          const std::vector<std::vector<Index>>& values,
                          Case (*make)(const std::vector<Index>&)) {
    families.push_back({name_of<T>(name), std::move(arguments), values, make});
  };
  family("cross_entropy/forward", {"N", "V"}, logits, cross_entropy<T, false>);
  family("cross_entropy/forward_backward", {"N", "V"}, logits, cross_entropy<T, true>);
  family("embedding/forward_backward", {"N", "V", "D"}, tables, embedding<T>);
  family("rotary/halves", {"B", "L", "H", "d"}, heads, rotary<T, RotaryPairing::halves>);
  family("rotary/interleaved", {"B", "L", "H", "d"}, heads, rotary<T, RotaryPairing::interleaved>);
}

}  // namespace

void add_tokens(Families& families) {
  add<float>(families);
  add<double>(families);
}

}  // namespace headwise::bench
