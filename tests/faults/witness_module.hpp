// The module against plain loops in long double: output, and every gradient against differences.
#pragma once

#include "witness_attention.hpp"

namespace {

using Named = std::map<std::string, Numbers>;

/// x [N, K] w [K, O] + b, where there is a b.
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
      g[name] = numbers_of(In<double, decltype(view)::rank>(view));
    });
    check_close(numbers_of(y), module_output(o, n, self, p, call, rules), 1e-11L, "y, " + where);
    for (const auto& parameter : p) {
      const std::string& name = parameter.first;
      const auto loss = [&](const Numbers& x) {
        Named moved = p;
        moved[name] = x;
        return dot(numbers_of(dy), module_output(o, n, self, moved, call, rules));
      };
      check_slope(loss, parameter.second, g[name], name + ", " + where);
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

}  // namespace
