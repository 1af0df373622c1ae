// Attention on both paths under every kind of mask, with dead rows, with what is hidden poisoned by
// NaN and infinity, with dropout and shared key heads. Part of the tour (tour.hpp): each including
// file has its own copy, compiled by its own flags. No NaN is written as an expression, for a
// compiler that is told that there are none may make anything of it.
#pragma once

#include <algorithm>
#include <cstring>

#include "headwise/kernels/mask_function.hpp"
#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "support/tile_sizes.hpp"
#include "tour/named.hpp"

namespace headwise_tests {
namespace {

using namespace headwise;

template <class T>
T from_bits(std::uint64_t of_double) {
  double x;
  std::memcpy(&x, &of_double, sizeof x);
  return static_cast<T>(x);
}
constexpr std::uint64_t nan_bits = 0x7FF8000000000000u, infinity_bits = 0x7FF0000000000000u,
                        minus_infinity_bits = 0xFFF0000000000000u;

template <class T, int R>
void keep(std::vector<Named>& results, const std::string& name, const Tensor<T, R>& x) {
  results.push_back({name, {x.begin(), x.end()}});
}

template <class T, int R>
Tensor<T, R> noise(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> x(shape);
  std::uint64_t n = 0;
  for (T& value : x) value = T(philox_normal(philox_key(seed), n++));
  return x;
}

/// The sizes of a case; the last key of every head is poisoned where the masks hide it.
struct TourCase {
  std::string name;
  AttentionSizes n = {1, 2, 2, 9, 7, 6, 6};
  bool poison = false;
};

template <class T>
void visit_attention(const TourCase& c, const AttentionOptions<T>& options, const Context& context,
                     std::vector<Named>& results) {
  const auto [B, H, G, L, S, d, dv] = c.n;
  const auto q = noise<T>(Shape{B, H, L, d}, 1), d_o = noise<T>(Shape{B, H, L, dv}, 2);
  auto k = noise<T>(Shape{B, G, S, d}, 3), v = noise<T>(Shape{B, G, S, dv}, 4);
  for (Index n = 0; c.poison && n < B * G; ++n) {
    for (Index e = 0; e < d; ++e) k(n / G, n % G, S - 1, e) = from_bits<T>(nan_bits);
    for (Index e = 0; e < dv; ++e) {
      v(n / G, n % G, S - 1, e) = from_bits<T>(e % 2 == 0 ? nan_bits : infinity_bits);
    }
  }
  Tensor4<T> o(d_o.shape()), weights({B, H, L, S}), lse({B, H, L, 2});
  Tensor4<T> dq(q.shape()), dk(k.shape()), d_v(v.shape());
  const auto keep_all = [&](const std::string& name) {
    keep(results, name + "o", o);
    keep(results, name + "dq", dq);
    keep(results, name + "dk", dk);
    keep(results, name + "dv", d_v);
  };
  attention_forward(q, k, v, options, weights, o, context);
  attention_backward(d_o, {q, k, v}, weights, options, {dq, dk, d_v}, context);
  keep(results, c.name + ", kept, weights", weights);
  keep_all(c.name + ", kept, ");
  flash_attention_forward(q, k, v, options, o, lse, context);
  flash_attention_backward(d_o, {q, k, v}, o, lse, options, {dq, dk, d_v}, context);
  keep(results, c.name + ", flash, lse", lse);
  keep_all(c.name + ", flash, ");
}

template <class T>
void visit_biases(const std::string& type, const Context& context, std::vector<Named>& results) {
  Tensor2<T> infinite({9, 7}), large({9, 7}), not_a_number({9, 7});
  for (Index i = 0; i < 9; ++i) {
    infinite(i, 6) = from_bits<T>(minus_infinity_bits);
    large(i, i % 7) = T(-1e9);
  }
  for (Index j = 0; j < 7; ++j) infinite(4, j) = from_bits<T>(minus_infinity_bits);
  for (Index j = 0; j < 7; ++j) large(5, j) = T(-1e9);
  not_a_number(2, 3) = from_bits<T>(nan_bits);
  const auto per_head = noise<T>(Shape{1, 2, 9, 7}, 5);
  const auto visit = [&](const std::string& name, const AttentionMask<T>& mask, bool poison) {
    visit_attention<T>({.name = type + name, .poison = poison}, {.mask = mask}, context, results);
  };
  visit("bias a head", Mask::bias(per_head), false);
  visit("bias of -inf, poisoned", Mask::bias(infinite), true);
  visit("bias of -1e9", Mask::bias(large), false);
  visit("bias of NaN", Mask::bias(not_a_number), false);
  visit("two biases", {Mask::bias(large), Mask::bias(per_head)}, false);
}

template <class T>
void visit_pair_masks(const std::string& type, const Context& context,
                      std::vector<Named>& results) {
  Tensor<bool, 4> pairs({1, 2, 9, 7});
  Tensor2<bool> square({9, 7}), keys({1, 7});
  for (Index n = 0; n < pairs.size(); ++n) pairs.data()[n] = n % 7 != 6 && n % 5 != 0;
  for (Index n = 0; n < square.size(); ++n) square.data()[n] = n / 7 == 3 || n % 7 == 6;
  keys(0, 2) = keys(0, 6) = true;
  const std::vector<Index> lengths = {6};
  const auto sparse =
      mask_function([](const Position& at) { return (at.query + at.key + at.head) % 3 != 0; },
                    [](const Position& at) {
                      return KeyRange{at.query - 4, std::min<Index>(at.query, 6)};
                    });
  const auto visit = [&](const std::string& name, const AttentionMask<T>& mask, bool poison) {
    visit_attention<T>({.name = type + name, .poison = poison}, {.mask = mask}, context, results);
  };
  visit("plain", {}, false);
  visit("plain, a NaN that is seen", {}, true);
  visit("causal with dead rows", causal, false);
  visit("causal, poisoned", causal, true);
  visit("lengths, poisoned", Mask::key_lengths(lengths), true);
  visit("window", {causal, Mask::window(3)}, true);
  visit("keep, poisoned", Mask::keep(pairs), true);
  visit("drop with a dead row, poisoned", Mask::drop(square), true);
  visit("keep keys", {Mask::keep_keys(keys), causal}, false);
  visit("drop keys, poisoned", Mask::drop_keys(keys), true);
  visit("mask function with dead rows, poisoned", Mask::function(sparse), true);
}

/// More than a vector of queries, more than a block of queries and of keys, and the smallest there
/// is.
template <class T>
void visit_sizes(const std::string& type, const Context& context, std::vector<Named>& results) {
  const AttentionSizes grouped{2, 4, 2, 50, 70, 5, 3}, cross{1, 1, 1, 3, 130, 8, 4},
      blocks{1, 2, 1, TileSizes::queries + 3, TileSizes::keys + 7, 5, 3};
  visit_attention<T>({.name = type + "grouped", .n = grouped}, {}, context, results);
  visit_attention<T>({.name = type + "grouped, causal, poisoned", .n = grouped, .poison = true},
                     {.mask = causal}, context, results);
  visit_attention<T>({.name = type + "grouped, window", .n = grouped},
                     {.mask = {causal, Mask::window(11)}}, context, results);
  visit_attention<T>({.name = type + "scaled", .n = cross}, {.scale = T(-0.7)}, context, results);
  visit_attention<T>({.name = type + "one", .n = {1, 1, 1, 1, 1, 1, 1}}, {}, context, results);
  visit_attention<T>({.name = type + "no keys", .n = {1, 2, 1, 3, 0, 4, 4}}, {}, context, results);
  visit_attention<T>({.name = type + "blocks, causal, poisoned", .n = blocks, .poison = true},
                     {.mask = causal}, context, results);
  for (const double rate : {0.3, 1.0}) {
    visit_attention<T>({.name = type + "dropout " + std::to_string(rate), .n = grouped},
                       {.mask = causal, .dropout = {rate, 1, 2}}, context, results);
  }
}

}  // namespace
}  // namespace headwise_tests
