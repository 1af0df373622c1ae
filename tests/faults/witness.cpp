// What catches a planted fault where the test programs would be slow to build: attention and the
// whole module against plain loops in long double, gradients against differences of those loops,
// tallies against counting pair by pair. It takes containers, masks' values and dropout's draws
// from the library, no arithmetic.
//
// usage: witness [check ...]: runs the checks named, or all; exits with 1 if one fails.
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
  for (int repeat = 0; repeat < 2; ++repeat) {
    Numbers u, up = x, down = x;
    for (std::size_t n = 0; n < x.size(); ++n) {
      u.push_back(number());
      up[n] += h * u[n];
      down[n] -= h * u[n];
    }
    const Real slope = (loss(up) - loss(down)) / (2 * h);
    check_close({dot(gradient, u)}, {slope}, 1e-8L, "gradient of " + what);
  }
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

/// Sizes one above and one below a tile of 48 queries and 64 keys, L != S, G < H.
constexpr AttentionSizes one_more{1, 2, 1, 49, 65, 5, 3}, one_less{1, 1, 1, 95, 63, 3, 5},
    several{2, 2, 2, 70, 130, 4, 4};

void plain() {
  check_attention(one_more, {}, {}, "no mask");
  check_attention(one_less, {}, {}, "no mask, S < L");
  check_attention(several, {}, {}, "no mask, three blocks of keys");
}

void masks() {
  const auto diagonal = [](const AttentionSizes& n, Index i) { return i + n.S - n.L; };
  for (const AttentionSizes& n : {one_more, one_less}) {
    Rules rules;
    rules.visible = [=](Index, Index, Index i, Index j) { return j <= diagonal(n, i); };
    check_attention(n, {.mask = causal}, rules, "causal");
  }
  {
    Rules rules;
    rules.visible = [=](Index, Index, Index i, Index j) {
      return std::abs(j - diagonal(several, i)) < 9;
    };
    check_attention(several, {.mask = Mask::window(9)}, rules, "window");
  }
  {
    const Index lengths[] = {65, 0};
    Rules rules;
    rules.visible = [&](Index b, Index, Index, Index j) { return j < lengths[b]; };
    check_attention(several, {.mask = Mask::key_lengths(lengths)}, rules, "key lengths");
  }
  {
    const auto n = several;
    const auto bias = random_tensor<double>(Shape{1, n.H, n.L, n.S});
    Tensor<bool, 4> keep(Shape{n.B, 1, n.L, n.S});
    for (bool& bit : keep) bit = number() < 0;
    for (Index j = 0; j < n.S; ++j) keep(0, 0, 55, j) = false;
    Rules rules;
    rules.visible = [&](Index b, Index, Index i, Index j) { return keep(b, Index{0}, i, j); };
    rules.bias = [&](Index, Index h, Index i, Index j) { return Real{bias(Index{0}, h, i, j)}; };
    check_attention(n, {.mask = {Mask::keep(keep), Mask::bias(bias)}}, rules, "keep and bias");
  }
}

void dropout() {
  const Dropout dropout{.rate = 0.3, .seed = 5, .step = 2};
  Rules rules;
  rules.factor = factor_of(dropout);
  check_attention(one_more, {.dropout = dropout}, rules, "dropout");
}

/// The second half of the keys is hidden from the first half of the queries and holds NaN.
void nan() {
  constexpr Index L = 8, S = 70, hidden = 40;
  auto q = random_tensor<double>(Shape{1, 1, L, 3}), k = random_tensor<double>(Shape{1, 1, S, 3});
  auto v = random_tensor<double>(Shape{1, 1, S, 3});
  auto d_o = random_tensor<double>(Shape{1, 1, L, 3});
  Tensor<bool, 4> keep(Shape{1, 1, L, S});
  for_each_index(keep.shape(), [&](const Shape<4>& n) { keep(n) = n[2] >= 4 || n[3] < hidden; });
  for (const Path path : {Path::materialized, Path::flash}) {
    const Results clean = run(path, {q, k, v}, d_o, {.mask = Mask::keep(keep)});
    auto bad_k = k, bad_v = v;
    for (Index j = hidden; j < S; ++j) {
      for (Index c = 0; c < 3; ++c) bad_k(0, 0, j, c) = bad_v(0, 0, j, c) = std::nan("");
    }
    const Results got = run(path, {q, bad_k, bad_v}, d_o, {.mask = Mask::keep(keep)});
    const auto rows = [](const Tensor4<double>& x, Index count) {
      return numbers_of(slice(x, 2, 0, count));
    };
    check_close(rows(got.o, 4), rows(clean.o, 4), 0, "o beside hidden NaN" + name_of(path));
    check_close(rows(got.dq, 4), rows(clean.dq, 4), 0, "dq beside hidden NaN" + name_of(path));
    check(std::isnan(got.o(0, 0, 5, 0)), "a NaN that is seen shows" + name_of(path));
    // A query of NaN that sees only the first keys leaves the others' gradients alone.
    auto bad_q = q, bad_d = d_o;
    for (Index c = 0; c < 3; ++c) bad_q(0, 0, 1, c) = bad_d(0, 0, 2, c) = std::nan("");
    const Results other = run(path, {bad_q, k, v}, bad_d, {.mask = Mask::keep(keep)});
    const auto behind = [](const Tensor4<double>& x) {
      return numbers_of(slice(x, 2, hidden, S - hidden));
    };
    check_close(behind(other.dk), behind(clean.dk), 0, "dk behind NaN" + name_of(path));
    check_close(behind(other.dv), behind(clean.dv), 0, "dv behind NaN" + name_of(path));
  }
}

/// Rows of a layer norm whose gradient is 0 throughout: whatever they hold reaches nothing.
void idle_rows() {
  const auto x = random_tensor<double>(Shape{3, 4}), gamma_row = random_tensor<double>(Shape{1, 4});
  auto dy = random_tensor<double>(Shape{3, 4});
  for (Index n = 0; n < 4; ++n) dy(1, n) = 0;
  const auto gradients_of = [&](const Tensor<double, 2>& input) {
    const In<double, 1> gamma = select(gamma_row, 0);
    Tensor<double, 2> y(Shape{3, 4}), dx(Shape{3, 4});
    Tensor<double, 1> mean(Shape{3}), rstd(Shape{3}), dgamma(Shape{4}), dbeta(Shape{4});
    layer_norm_forward(In<double, 2>(input), {gamma, {}}, 1e-5, y, {mean, rstd});
    layer_norm_backward(In<double, 2>(dy), input, gamma, {mean, rstd}, dx, {dgamma, dbeta});
    Numbers all = numbers_of(dx);
    for (const Real value : numbers_of(dgamma)) all.push_back(value);
    for (const Real value : numbers_of(dbeta)) all.push_back(value);
    return all;
  };
  auto poisoned = x;
  poisoned(1, 2) = std::nan("");
  check_close(gradients_of(poisoned), gradients_of(x), 0, "layer norm beside an idle row of NaN");
}

/// A query of a sliding window has the same bits alone and among others.
void same_bits() {
  constexpr Index S = 130, window = 50;
  const auto q = random_tensor<double>(Shape{1, 1, S, 4});
  const auto k = random_tensor<double>(Shape{1, 1, S, 4});
  const auto v = random_tensor<double>(Shape{1, 1, S, 4});
  const AttentionOptions<double> options = {.mask = {causal, Mask::window(window)}};
  Tensor4<double> whole(q.shape()), alone(Shape{1, 1, 1, 4});
  flash_attention_forward(In<double, 4>(q), k, v, options, whole, {});
  bool same = true;
  for (const Index i : {70, 90, 129}) {
    flash_attention_forward(In<double, 4>(slice(q, 2, i, 1)), slice(k, 2, 0, i + 1),
                            slice(v, 2, 0, i + 1), options, alone, {});
    same = same && std::memcmp(alone.data(), &whole(0, 0, i, 0), 4 * sizeof(double)) == 0;
  }
  check(same, "a query alone has other bits than among others");
}

void tallies() {
  const AttentionSizes n = one_more;
  const auto q = random_tensor<double>(Shape{n.B, n.H, n.L, n.d});
  const auto k = random_tensor<double>(Shape{n.B, n.G, n.S, n.d});
  const auto v = random_tensor<double>(Shape{n.B, n.G, n.S, n.dv});
  const auto d_o = random_tensor<double>(Shape{n.B, n.H, n.L, n.dv});
  std::int64_t pairs = 0;
  for (Index i = 0; i < n.L; ++i) {
    for (Index j = 0; j < n.S; ++j) pairs += n.H * (j <= i + n.S - n.L);
  }
  for (const Path path : {Path::materialized, Path::flash}) {
    FlopTally tally;
    run(path, {q, k, v}, d_o, {.mask = causal}, {.flops = &tally});
    const std::int64_t forward = pairs * (2 * n.d + 2 * n.dv + 5);
    const std::int64_t backward = path == Path::flash
                                      ? pairs * (6 * n.d + 4 * n.dv + 7) + 2 * n.dv * n.H * n.L
                                      : pairs * (4 * n.d + 4 * n.dv + 5);
    check(tally.useful == forward + backward, "useful FLOPs" + name_of(path));
    check(tally.executed >= tally.useful, "executed FLOPs below useful ones" + name_of(path));
  }
}

// ---- the module, by its definition --------------------------------------------------------------

using Named = std::map<std::string, Numbers>;

/// x [N, I] w [I, O] + b, where there is a b.
Numbers project(const Numbers& x, Index I, const Numbers& w, const Named& p, const char* bias) {
  const Index N = static_cast<Index>(x.size()) / I, O = static_cast<Index>(w.size()) / I;
  Numbers y(static_cast<std::size_t>(N * O));
  const auto b = p.find(bias);
  for (Index n = 0; n < N; ++n) {
    for (Index o = 0; o < O; ++o) {
      Real sum = b == p.end() ? 0 : at(b->second, o);
      for (Index i = 0; i < I; ++i) sum += at(x, n * I + i) * at(w, i * O + o);
      at(y, n * O + o) = sum;
    }
  }
  return y;
}

/// [B, L, H d] to [B, H, L, d], or back.
Numbers exchange(const Numbers& x, Index B, Index L, Index H, bool back = false) {
  Numbers y(x.size());
  const Index d = static_cast<Index>(x.size()) / (B * L * H);
  for (Index b = 0; b < B; ++b) {
    for (Index l = 0; l < L; ++l) {
      for (Index h = 0; h < H; ++h) {
        for (Index c = 0; c < d; ++c) {
          const Index row = ((b * L + l) * H + h) * d + c, head = ((b * H + h) * L + l) * d + c;
          at(y, back ? row : head) = at(x, back ? head : row);
        }
      }
    }
  }
  return y;
}

/// The module's output from parameters and inputs "query", "key", "value" (self: query alone).
Numbers module_output(const MultiHeadAttentionOptions& o, const AttentionSizes& n, bool self,
                      const Named& p, const MultiHeadAttentionCall<double>& call,
                      const Rules& rules) {
  Numbers x = p.at("query");
  const Index D = o.d_model;
  if (o.layer_norm) {
    for (Index row = 0; row < n.B * n.L; ++row) {
      Real mean = 0, variance = 0;
      for (Index c = 0; c < D; ++c) mean += at(x, row * D + c) / D;
      for (Index c = 0; c < D; ++c) variance += std::pow(at(x, row * D + c) - mean, 2.0L) / D;
      for (Index c = 0; c < D; ++c) {
        Real& value = at(x, row * D + c);
        value = (value - mean) / std::sqrt(variance + static_cast<Real>(o.layer_norm_epsilon)) *
                    at(p.at("gamma"), c) +
                at(p.at("beta"), c);
      }
    }
  }
  const Numbers q = project(x, D, p.at("W_Q"), p, "b_Q");
  const Numbers k = project(self ? x : p.at("key"), o.kdim, p.at("W_K"), p, "b_K");
  const Numbers v = project(self ? x : p.at("value"), o.vdim, p.at("W_V"), p, "b_V");
  const Numbers heads =
      attend(n, exchange(q, n.B, n.L, n.H), exchange(k, n.B, n.S, n.G), exchange(v, n.B, n.S, n.G),
             1 / std::sqrt(static_cast<Real>(n.d)), rules);
  Numbers y = project(exchange(heads, n.B, n.L, n.H, true), n.H * n.dv, p.at("W_O"), p, "b_O");
  if (call.output_dropout.active()) {
    const DropoutMask mask(call.output_dropout, DropoutStream::output);
    const Real rate = call.output_dropout.rate;
    for (Index at_y = 0; at_y < n.B * n.L * D; ++at_y) {
      at(y, at_y) *= mask.kept(0, 0, at_y / D, at_y % D) ? 1 / (1 - rate) : Real{0};
    }
  }
  return y;
}

void check_module(const MultiHeadAttentionOptions& options, bool self, bool with_dropout) {
  MultiHeadAttention<double> module(options);
  const auto& o = module.options();
  Named p;
  module.parameters().for_each([&](const std::string& name, auto view) {
    for_each_index(view.shape(), [&](const auto& n) { view(n) = static_cast<double>(number()); });
    p[name] = numbers_of(In<double, decltype(view)::rank>(view));
  });
  const Index B = 2, L = 5, S = self ? L : 7;
  const AttentionSizes n{B, o.num_heads, o.num_kv_heads, L, S, o.d_head, o.d_value};
  const auto query = random_tensor<double>(Shape{B, L, o.d_model});
  const auto key = random_tensor<double>(Shape{B, S, o.kdim});
  const auto value = random_tensor<double>(Shape{B, S, o.vdim});
  const auto dy = random_tensor<double>(Shape{B, L, o.d_model});
  p["query"] = numbers_of(query);
  if (!self) p["key"] = numbers_of(key), p["value"] = numbers_of(value);
  MultiHeadAttentionCall<double> call = {.mask = causal};
  Rules rules;
  rules.visible = [=](Index, Index, Index i, Index j) { return j <= i + S - L; };
  if (with_dropout) {
    call.weight_dropout = {.rate = 0.4, .seed = 3, .step = 1};
    call.output_dropout = {.rate = 0.3, .seed = 4, .step = 1};
    rules.factor = factor_of(call.weight_dropout);
  }
  for (const Path path : {Path::materialized, Path::flash}) {
    call.path = path;
    const std::string where = std::string(self ? "self" : "cross") + name_of(path);
    MultiHeadAttentionCache<double> cache;
    auto gradients = module.zero_gradients();
    Named g;
    Tensor<double, 3> y;
    if (self) {
      y = module.forward(query, call, cache);
      g["query"] = numbers_of(module.backward(dy, cache, gradients));
    } else {
      y = module.forward(query, key, value, call, cache);
      const auto inputs = module.backward_cross(dy, cache, gradients);
      g["query"] = numbers_of(inputs.query);
      g["key"] = numbers_of(inputs.key);
      g["value"] = numbers_of(inputs.value);
    }
    std::as_const(gradients).for_each([&](const std::string& name, auto view) {
      g[name.substr(5)] = numbers_of(In<double, decltype(view)::rank>(view));
    });
    check_close(numbers_of(y), module_output(o, n, self, p, call, rules), 1e-11L, "y, " + where);
    for (const auto& [name, values] : p) {
      const auto loss = [&, &name = name](const Numbers& x) {
        Named moved = p;
        moved[name] = x;
        return dot(numbers_of(dy), module_output(o, n, self, moved, call, rules));
      };
      check_slope(loss, values, g[name], name + ", " + where);
    }
  }
}

void module() {
  const MultiHeadAttentionOptions all = {.d_model = 6,
                                         .num_heads = 4,
                                         .num_kv_heads = 2,
                                         .d_head = 3,
                                         .d_value = 2,
                                         .q_bias = true,
                                         .k_bias = true,
                                         .v_bias = true,
                                         .layer_norm = true};
  check_module(all, true, true);
  MultiHeadAttentionOptions cross = all;
  cross.kdim = 5, cross.vdim = 4;
  check_module(cross, false, false);
}

struct Check {
  const char* name;
  void (*run)();
};
constexpr Check checks[] = {{"plain", plain},     {"masks", masks},         {"dropout", dropout},
                            {"nan", nan},         {"idle_rows", idle_rows}, {"bits", same_bits},
                            {"tallies", tallies}, {"module", module}};

}  // namespace

int main(int argc, char** argv) {
  int done = 0;
  for (const Check& one : checks) {
    bool wanted = argc == 1;
    for (int n = 1; n < argc; ++n) wanted = wanted || std::strcmp(argv[n], one.name) == 0;
    if (!wanted) continue;
    ++done;
    const int before = failures;
    try {
      one.run();
    } catch (const std::exception& error) {
      check(false, std::string(one.name) + " threw " + error.what());
    }
    std::printf("%s: %s\n", one.name, failures == before ? "passed" : "failed");
  }
  if (done != (argc == 1 ? static_cast<int>(std::size(checks)) : argc - 1)) {
    std::printf("a check of that name does not exist\n");
    return 2;
  }
  if (failures == 0) std::printf("All checks passed\n");
  return failures == 0 ? 0 : 1;
}
