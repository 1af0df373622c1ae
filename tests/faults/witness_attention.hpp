// Plain loops of attention in long double, and what the checks of the witness compare with them.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "headwise/nn/multi_head_attention.hpp"

namespace {

using namespace headwise;
using Real = long double;
using Numbers = std::vector<Real>;
using Rule = std::function<bool(Index b, Index h, Index i, Index j)>;
using Value = std::function<Real(Index b, Index h, Index i, Index j)>;

int failures = 0;

void check(bool right, const std::string& what) {
  if (right) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

std::mt19937_64 bits(1);
Real number() { return static_cast<Real>(bits() >> 11) * 0x1.0p-52L - 1; }

template <class T, int R>
Tensor<T, R> random_tensor(const Shape<R>& shape) {
  Tensor<T, R> x(shape);
  for (T& value : x) value = static_cast<T>(number());
  return x;
}
template <class T, int R>
Numbers numbers_of(const In<T, R>& x) {
  Numbers y;
  for_each_index(x.shape(), [&](const Shape<R>& at) { y.push_back(static_cast<Real>(x(at))); });
  return y;
}
template <class T, int R>
Numbers numbers_of(const Tensor<T, R>& x) {
  return numbers_of(In<T, R>(x));
}
Real& at(Numbers& x, Index n) { return x[static_cast<std::size_t>(n)]; }
Real at(const Numbers& x, Index n) { return x[static_cast<std::size_t>(n)]; }
Real dot(const Numbers& x, const Numbers& y) {
  Real sum = 0;
  for (std::size_t n = 0; n < x.size(); ++n) sum += x[n] * y[n];
  return sum;
}

void check_close(const Numbers& got, const Numbers& expected, Real tolerance,
                 const std::string& what) {
  check(got.size() == expected.size(), what + ": number of elements");
  for (std::size_t n = 0; n < got.size() && n < expected.size(); ++n) {
    const Real error = std::abs(got[n] - expected[n]);
    if (error <= tolerance * (1 + std::abs(expected[n]))) continue;
    check(false, what + ": element " + std::to_string(n) + " is " + std::to_string(got[n]) +
                     ", expected " + std::to_string(expected[n]));
    return;
  }
}

/// <gradient, u> against the slope of `loss` at x along a random u. The error of a central
/// difference in long double is about 1e-12 here.
void check_slope(const std::function<Real(const Numbers&)>& loss, const Numbers& x,
                 const Numbers& gradient, const std::string& what) {
  constexpr Real h = 1e-5L;
  Numbers u, up = x, down = x;
  for (std::size_t n = 0; n < x.size(); ++n) {
    u.push_back(number());
    up[n] += h * u[n];
    down[n] -= h * u[n];
  }
  const Real slope = (loss(up) - loss(down)) / (2 * h);
  check_close({dot(gradient, u)}, {slope}, 1e-8L, "gradient of " + what);
}

// ---- attention, by its definition -------------------------------------------------------------

struct Rules {
  Rule visible = [](Index, Index, Index, Index) { return true; };
  Value bias = [](Index, Index, Index, Index) { return Real{0}; };
  Value factor = [](Index, Index, Index, Index) { return Real{1}; };
};

/// q [B, H, L, d], k [B, G, S, d], v [B, G, S, dv]: the context [B, H, L, dv].
Numbers attend(const AttentionSizes& n, const Numbers& q, const Numbers& k, const Numbers& v,
               Real scale, const Rules& rules) {
  Numbers o(static_cast<std::size_t>(n.B * n.H * n.L * n.dv));
  for (Index row = 0; row < n.B * n.H * n.L; ++row) {
    const Index i = row % n.L, h = row / n.L % n.H, b = row / n.L / n.H;
    const Index first = (b * n.G + h / (n.H / n.G)) * n.S;
    Numbers s(static_cast<std::size_t>(n.S));
    Real greatest = -std::numeric_limits<Real>::infinity(), sum = 0;
    for (Index j = 0; j < n.S; ++j) {
      if (!rules.visible(b, h, i, j)) continue;
      for (Index c = 0; c < n.d; ++c)
        at(s, j) += at(q, row * n.d + c) * at(k, (first + j) * n.d + c);
      at(s, j) = scale * at(s, j) + rules.bias(b, h, i, j);
      greatest = std::max(greatest, at(s, j));
    }
    for (Index j = 0; j < n.S; ++j) {
      if (rules.visible(b, h, i, j)) sum += std::exp(at(s, j) - greatest);
    }
    for (Index j = 0; j < n.S; ++j) {
      if (!rules.visible(b, h, i, j)) continue;
      const Real p = std::exp(at(s, j) - greatest) / sum * rules.factor(b, h, i, j);
      for (Index c = 0; c < n.dv; ++c) at(o, row * n.dv + c) += p * at(v, (first + j) * n.dv + c);
    }
  }
  return o;
}

Value factor_of(const Dropout& dropout) {
  const DropoutMask mask(dropout, DropoutStream::weights);
  const Real rate = dropout.rate;
  return [mask, rate](Index b, Index h, Index i, Index j) {
    return mask.kept(b, h, i, j) ? 1 / (1 - rate) : Real{0};
  };
}

struct Results {
  Tensor4<double> o, dq, dk, dv;
};

Results run(Path path, const AttentionInputs<double>& in, In<double, 4> d_o,
            const AttentionOptions<double>& options, const Context& context = {}) {
  const Index B = in.q.extent(0), H = in.q.extent(1), L = in.q.extent(2), S = in.k.extent(2);
  Results y{Tensor4<double>(d_o.shape()), Tensor4<double>(in.q.shape()),
            Tensor4<double>(in.k.shape()), Tensor4<double>(in.v.shape())};
  for (Tensor4<double>* x : {&y.o, &y.dq, &y.dk, &y.dv}) fill(Out<double, 4>(*x), 777.0);
  if (path == Path::materialized) {
    Tensor4<double> weights(Shape{B, H, L, S});
    attention_forward(in.q, in.k, in.v, options, weights, y.o, context);
    attention_backward(d_o, in, weights, options, {y.dq, y.dk, y.dv}, context);
  } else {
    Tensor4<double> lse(Shape{B, H, L, Index{2}});
    flash_attention_forward(in.q, in.k, in.v, options, y.o, lse, context);
    flash_attention_backward(d_o, in, y.o, lse, options, {y.dq, y.dk, y.dv}, context);
  }
  return y;
}

std::string name_of(Path path) { return path == Path::flash ? " (flash)" : " (weights kept)"; }

void check_attention(const AttentionSizes& n, const AttentionOptions<double>& options,
                     const Rules& rules, const std::string& name) {
  const auto q = random_tensor<double>(Shape{n.B, n.H, n.L, n.d});
  const auto k = random_tensor<double>(Shape{n.B, n.G, n.S, n.d});
  const auto v = random_tensor<double>(Shape{n.B, n.G, n.S, n.dv});
  const auto d_o = random_tensor<double>(Shape{n.B, n.H, n.L, n.dv});
  const Numbers Q = numbers_of(q), K = numbers_of(k), V = numbers_of(v), dO = numbers_of(d_o);
  const Real scale = 1 / std::sqrt(static_cast<Real>(n.d));
  const Numbers o = attend(n, Q, K, V, scale, rules);
  for (const Path path : {Path::materialized, Path::flash}) {
    const Results got = run(path, {q, k, v}, d_o, options);
    const std::string where = name + name_of(path);
    check_close(numbers_of(got.o), o, 1e-12L, "o, " + where);
    check_slope([&](const Numbers& x) { return dot(dO, attend(n, x, K, V, scale, rules)); }, Q,
                numbers_of(got.dq), "q, " + where);
    check_slope([&](const Numbers& x) { return dot(dO, attend(n, Q, x, V, scale, rules)); }, K,
                numbers_of(got.dk), "k, " + where);
    check_slope([&](const Numbers& x) { return dot(dO, attend(n, Q, K, x, scale, rules)); }, V,
                numbers_of(got.dv), "v, " + where);
  }
}

}  // namespace
