// Attention with masks, dead rows and values that are not finite, run where this is included. It is
// included twice: by a file that is compiled with -ffast-math, and by one that is not.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "headwise/ops/layer_norm.hpp"

namespace headwise_tests {

/// A result, by name. No arithmetic is done on it before it is compared.
struct Named {
  std::string name;
  std::vector<double> values;
};

std::vector<Named> run_with_fast_math();
std::vector<Named> run_without();

namespace {  // each of the two files has its own

template <class T>
T from_bits(std::uint64_t of_double) {
  double x;
  std::memcpy(&x, &of_double, sizeof x);
  return static_cast<T>(x);
}
constexpr std::uint64_t nan_bits = 0x7FF8000000000000u, infinity_bits = 0x7FF0000000000000u,
                        minus_infinity_bits = 0xFFF0000000000000u;

template <class T, int R>
void keep(std::vector<Named>& results, const std::string& name, const headwise::Tensor<T, R>& x) {
  results.push_back({name, {x.begin(), x.end()}});
}

template <class T>
void run_case(const std::string& name, const headwise::AttentionOptions<T>& options, bool poison,
              std::vector<Named>& results) {
  using namespace headwise;
  const Index B = 1, H = 2, L = 9, S = 7, d = 6;
  Tensor4<T> q({B, H, L, d}), k({B, H, S, d}), v({B, H, S, d}), d_o({B, H, L, d});
  std::uint64_t n = 0;
  for (auto* x : {&q, &k, &v, &d_o}) {
    for (T& value : *x) value = T(philox_normal(philox_key(3), n++));
  }
  if (poison) {  // the last keys, which the masks of these cases hide from most or all
    for (Index h = 0; h < H; ++h) {
      for (Index c = 0; c < d; ++c) {
        k(0, h, S - 1, c) = from_bits<T>(nan_bits);
        v(0, h, S - 1, c) = from_bits<T>(c % 2 == 0 ? nan_bits : infinity_bits);
      }
    }
  }
  Tensor4<T> o(q.shape()), weights({B, H, L, S}), lse({B, H, L, 2});
  Tensor4<T> dq(q.shape()), dk(k.shape()), dv(v.shape());
  attention_forward(q, k, v, options, weights, o);
  attention_backward(d_o, {q, k, v}, weights, options, {dq, dk, dv});
  for (const auto& [part, x] :
       {std::pair{"weights", &weights}, {"o", &o}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}}) {
    keep(results, name + ", kept, " + part, *x);
  }
  flash_attention_forward(q, k, v, options, o, lse);
  flash_attention_backward(d_o, {q, k, v}, o, lse, options, {dq, dk, dv});
  for (const auto& [part, x] :
       {std::pair{"lse", &lse}, {"o", &o}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}}) {
    keep(results, name + ", flash, " + part, *x);
  }
}

template <class T>
std::vector<Named> run_cases(const std::string& type) {
  using namespace headwise;
  std::vector<Named> results;
  Tensor2<T> bias({9, 7}), infinite({9, 7}), large({9, 7}), not_a_number({9, 7});
  for (Index i = 0; i < 9; ++i) {
    infinite(i, 6) = from_bits<T>(minus_infinity_bits);
    large(i, i % 7) = T(-1e9);
  }
  for (Index j = 0; j < 7; ++j) infinite(4, j) = from_bits<T>(minus_infinity_bits);
  for (Index j = 0; j < 7; ++j) large(5, j) = T(-1e9);
  not_a_number(2, 3) = from_bits<T>(nan_bits);
  const std::vector<Index> lengths = {6};
  run_case<T>(type + " plain", {}, false, results);
  run_case<T>(type + " causal with dead rows", {.mask = {causal}}, false, results);
  run_case<T>(type + " causal, poisoned", {.mask = {causal}}, true, results);
  run_case<T>(type + " lengths, poisoned", {.mask = {Mask::key_lengths(lengths)}}, true, results);
  run_case<T>(type + " bias of -inf, poisoned", {.mask = {Mask::bias(infinite)}}, true, results);
  run_case<T>(type + " bias of -1e9", {.mask = {Mask::bias(large)}}, false, results);
  run_case<T>(type + " bias of NaN", {.mask = {Mask::bias(not_a_number)}}, false, results);
  run_case<T>(type + " dropout", {.mask = {causal}, .dropout = {0.3, 1, 2}}, false, results);

  Tensor2<T> x({3, 5}), dy({3, 5}), y({3, 5}), dx({3, 5});
  Tensor1<T> mean(3), rstd(3), dgamma(5), dbeta(5);
  for (Index i = 0; i < x.size(); ++i) {
    x.data()[i] = T(philox_normal({5, 6}, static_cast<std::uint64_t>(i)));
    dy.data()[i] = T(philox_normal({5, 7}, static_cast<std::uint64_t>(i)));
  }
  for (Index j = 0; j < 5; ++j) x(1, j) = from_bits<T>(nan_bits);
  layer_norm_forward(x, {}, T(1e-5), y, {mean, rstd});
  layer_norm_backward(dy, x, {}, {mean, rstd}, dx, {dgamma, dbeta});
  keep(results, type + " layer_norm of NaN, y", y);
  keep(results, type + " layer_norm of NaN, dx", dx);
  keep(results, type + " layer_norm of NaN, dgamma", dgamma);
  return results;
}

inline std::vector<Named> run_all() {
  std::vector<Named> results = run_cases<float>("float");
  for (Named& result : run_cases<double>("double")) results.push_back(std::move(result));
  return results;
}

}  // namespace

}  // namespace headwise_tests
