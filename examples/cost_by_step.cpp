// What each step of the derivation costs, forward and backward, on either path: FLOPs as the
// tallies count them, and the time of a step by itself. Inside attention (4a to 4e) a step's FLOPs
// are what the tally lacks without it: without queries' width, without values', without bias,
// without dropout. docs/generate_proof reads these lines.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>

#include "headwise/headwise.hpp"

using namespace headwise;

namespace example {

constexpr Index B = 2, H = 8, G = 4, L = 256, D = 256, d = 32;
constexpr Index width = H * d + 2 * G * d;  // of the projections

struct Cost {
  std::int64_t flops = 0;
  double microseconds = 0;  // the best of a few runs
};

template <class Call>
Cost cost_of(Call&& call, int runs = 3) {
  using Clock = std::chrono::steady_clock;
  Cost cost{0, 1e300};
  for (int run = 0; run < runs; ++run) {
    FlopTally tally;
    const auto begin = Clock::now();
    call(Context{.flops = &tally});
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    cost = {tally.useful, std::min(cost.microseconds, time.count())};
  }
  return cost;
}

/// The numbers of an op: normal, and the same on every call.
template <int R>
Tensor<float, R> numbers(const Shape<R>& shape) {
  Tensor<float, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = static_cast<float>(philox_normal({5, 5}, static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// What of attention takes part.
struct Part {
  Index d = example::d, dv = example::d;
  bool bias = true, dropout = true;
  int runs = 1;  // more where the time counts
};

Cost attention_cost(Path path, bool backward, const Part& part) {
  const auto q = numbers<4>({B, H, L, part.d}), k = numbers<4>({B, G, L, part.d});
  const auto v = numbers<4>({B, G, L, part.dv}), d_o = numbers<4>({B, H, L, part.dv});
  const Tensor2<float> bias({L, L});
  AttentionOptions<float> options{.mask = causal};
  if (part.bias) options.mask.add(Mask::bias(bias));
  if (part.dropout) options.dropout = {.rate = 0.1, .seed = 1, .step = 1};
  Tensor4<float> o({B, H, L, part.dv}), dq(q.shape()), dk(k.shape()), dv(v.shape());
  if (path == Path::materialized) {
    Tensor4<float> weights({B, H, L, L});
    const auto forward = [&](const Context& c) {
      attention_forward(q, k, v, options, weights, o, c);
    };
    if (!backward) return cost_of(forward, part.runs);
    forward({});
    return cost_of(
        [&](const Context& c) {
          attention_backward(d_o, {q, k, v}, weights, options, {dq, dk, dv}, c);
        },
        part.runs);
  }
  Tensor4<float> lse({B, H, L, 2});
  const auto forward = [&](const Context& c) {
    flash_attention_forward(q, k, v, options, o, lse, c);
  };
  if (!backward) return cost_of(forward, part.runs);
  forward({});
  return cost_of(
      [&](const Context& c) {
        flash_attention_backward(d_o, {q, k, v}, o, lse, options, {dq, dk, dv}, c);
      },
      part.runs);
}

void print(bool backward, const std::string& step, const std::string& path, const Cost& cost) {
  std::cout << (backward ? "backward " : "forward ") << step << ' ' << path << ' ' << cost.flops
            << ' ' << static_cast<std::int64_t>(cost.microseconds) << '\n';
}

void print_attention(bool backward, Path path) {
  const std::string name = path == Path::flash ? "flash" : "materialized";
  const Cost all = attention_cost(path, backward, {.runs = 3});
  std::int64_t rest = all.flops;
  const auto step = [&](const char* number, const Part& without) {
    const std::int64_t flops = all.flops - attention_cost(path, backward, without).flops;
    rest -= flops;
    print(backward, number, name, {flops, 0});
  };
  step("4a", {.d = 0});
  step("4b", {.bias = false});
  step("4d", {.dropout = false});
  step("4e", {.dv = 0});
  print(backward, "4c", name, {rest, 0});
  print(backward, "4", name, all);
}

void print_all() {
  const auto x = numbers<2>({B * L, D}), dy = numbers<2>({B * L, D});
  const auto gamma = numbers<1>({D}), b_qkv = numbers<1>({width}), b_o = numbers<1>({D});
  const auto w_qkv = numbers<2>({D, width}), w_o = numbers<2>({H * d, D});
  const auto d_qkv = numbers<2>({B * L, width});
  Tensor2<float> y({B * L, D}), qkv({B * L, width}), dw_qkv(w_qkv.shape()), dw_o(w_o.shape());
  Tensor1<float> mean(B * L), rstd(B * L), dgamma(D), dbeta(D), db_qkv(width), db_o(D);
  const Dropout dropout{.rate = 0.1, .seed = 1, .step = 1};

  print(false, "1", "both", cost_of([&](const Context& c) {
          layer_norm_forward(x, {gamma, gamma}, 1e-5f, y, {mean, rstd}, c);
        }));
  print(false, "2", "both",
        cost_of([&](const Context& c) { linear_forward(x, w_qkv, b_qkv, qkv, c); }));
  for (const Path path : {Path::materialized, Path::flash}) print_attention(false, path);
  print(false, "6", "both", cost_of([&](const Context& c) { linear_forward(x, w_o, b_o, y, c); }));
  print(false, "7", "both", cost_of([&](const Context& c) { dropout_forward(x, dropout, y, c); }));

  print(true, "7", "both", cost_of([&](const Context& c) { dropout_backward(dy, dropout, y, c); }));
  print(true, "6", "both",
        cost_of([&](const Context& c) { linear_backward(dy, x, w_o, y, dw_o, db_o, c); }));
  for (const Path path : {Path::materialized, Path::flash}) print_attention(true, path);
  print(true, "2", "both",
        cost_of([&](const Context& c) { linear_backward(d_qkv, x, w_qkv, y, dw_qkv, db_qkv, c); }));
  print(true, "1", "both", cost_of([&](const Context& c) {
          layer_norm_backward(dy, x, gamma, {mean, rstd}, y, {dgamma, dbeta}, c);
        }));
}

}  // namespace example

int main() { example::print_all(); }
