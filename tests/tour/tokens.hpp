// Embeddings, cross-entropy, rotary positions, decoding and sampling, with NaN where a rule says
// what it may reach. Part of the tour (tour.hpp).
#pragma once

#include "headwise/nn/embedding.hpp"
#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/nn/sampling.hpp"
#include "headwise/ops/cross_entropy.hpp"
#include "headwise/ops/rotary.hpp"
#include "tour/attention.hpp"

namespace headwise_tests {
namespace {

template <class T>
void visit_embedding(const std::string& type, const Context& context, std::vector<Named>& results) {
  Tensor1<std::int32_t> tokens(40);
  for (Index n = 0; n < 40; ++n) tokens(n) = static_cast<std::int32_t>(n * n % 23);
  Embedding<T> embedding(23, 70, 0.5, 4);
  embedding.parameters().table(9, 9) = from_bits<T>(nan_bits);
  typename Embedding<T>::Cache cache;
  auto gradients = embedding.zero_gradients();
  auto h = embedding.forward(tokens, cache, context);
  const auto logits = embedding.logits(h, context);
  auto d_logits = noise<T>(logits.shape(), 31);
  for (Index n = 0; n < 40; ++n) {
    if (tokens(n) == 9) fill(select(d_logits, n), T(0));
  }
  keep(results, type + "embedding, y", h);
  keep(results, type + "tied head, logits", logits);
  const auto dh = embedding.logits_backward(d_logits, h, gradients, context);
  embedding.backward(dh, cache, gradients, context);
  keep(results, type + "tied head, dh", dh);
  keep(results, type + "embedding, dtable", gradients.table);
}

template <class T>
void visit_cross_entropy(const std::string& type, const Context& context,
                         std::vector<Named>& results) {
  for (const Index V : {3, 77}) {
    auto logits = noise<T>(Shape{Index{6}, V}, 32);
    Tensor1<std::int64_t> targets(Shape{6}, {0, -100, 2, 1, 0, 2});
    fill(select(logits, 1), from_bits<T>(nan_bits));
    logits(2, 0) = from_bits<T>(minus_infinity_bits);
    logits(3, 1) = T(40);
    for (const Index rows : {4, 5, 6}) {  // the fifth holds infinity, the sixth NaN
      const std::string name =
          type + "cross entropy of " + std::to_string(V) + ", " + std::to_string(rows) + " rows, ";
      if (rows == 5) logits(4, 2) = from_bits<T>(infinity_bits);
      if (rows == 6) logits(5, 1) = from_bits<T>(nan_bits);
      const In<T, 2> part = slice(logits, 0, 0, rows);
      const In<std::int64_t, 1> of = slice(targets, 0, 0, rows);
      Tensor1<T> lse(rows);
      Tensor2<T> d_logits(part.shape());
      const T loss = cross_entropy_forward(part, of, {}, lse, context);
      cross_entropy_backward(T(1.5), part, of, lse, {}, d_logits, context);
      keep(results, name + "loss", Tensor1<T>(Shape{1}, {loss}));
      keep(results, name + "lse", lse);
      keep(results, name + "d_logits", d_logits);
    }
  }
}

template <class T>
void visit_rotary(const std::string& type, const Context& context, std::vector<Named>& results) {
  auto x = noise<T>(Shape{2, 3, 5, 38}, 33);
  for (Index i = 0; i < 5; ++i) x(1, 2, i, 37) = from_bits<T>(nan_bits);  // behind the width
  for (const auto pairing : {RotaryPairing::halves, RotaryPairing::interleaved}) {
    const bool halves = pairing == RotaryPairing::halves;
    const std::string name = type + (halves ? "rotary, halves, " : "rotary, interleaved, ");
    const RotaryOptions options{.width = 34, .pairing = pairing, .offset = 1000};
    Tensor4<T> y(x.shape());
    RotaryTable<T> table(38, options);
    rotary_forward(x, options, y, context);
    keep(results, name + "y", y);
    rotary_backward(x, table.angles(1005), options, y, context);
    keep(results, name + "dx", y);
  }
}

template <class T>
void visit_decoding(const std::string& type, const Context& context, std::vector<Named>& results) {
  const MultiHeadAttention<T> attention({.d_model = 24,
                                         .num_heads = 4,
                                         .num_kv_heads = 2,
                                         .layer_norm = true,
                                         .qk_norm = true,
                                         .sinks = true,
                                         .alibi = true,
                                         .relative_reach = 2,
                                         .rotary = RotaryOptions{.theta = 100},
                                         .seed = 6});
  const auto x = noise<T>(Shape{2, 9, 24}, 34);
  auto cache = key_value_cache(attention, 2, 9);
  for (const Index n : {5, 1, 3}) {
    const Index begin = cache.length();
    keep(results, type + "decoding, y from " + std::to_string(begin),
         multi_head_attention_step(attention, slice(x, 1, begin, n), cache, context));
  }
  auto sliding = key_value_cache(attention, {.batch_size = 2, .window = 3, .first_keys = 1});
  const std::vector<std::vector<Index>> all_counts = {{3, 1}, {0, 2}, {2, 2}};
  for (const auto& counts : all_counts) {
    const Index begin = sliding.length();
    keep(results, type + "decoding of different lengths, y from " + std::to_string(begin),
         multi_head_attention_step(attention, slice(x, 1, 2, 3), counts, sliding, context));
  }
  auto logits = noise<T>(Shape{100}, 35);
  logits(3) = from_bits<T>(minus_infinity_bits);
  std::vector<double> sampled;
  for (std::uint64_t n = 0; n < 40; ++n) {
    const SamplingOptions options{.temperature = n % 4 == 0 ? 0.0 : 0.8,
                                  .top_k = n % 3 == 0 ? 70 : 0,
                                  .top_p = n % 2 == 0 ? 0.9 : 1.0,
                                  .step = n};
    sampled.push_back(static_cast<double>(sample_token(logits, options, context)));
  }
  results.push_back({type + "sampled tokens", sampled, true});
}

}  // namespace
}  // namespace headwise_tests
