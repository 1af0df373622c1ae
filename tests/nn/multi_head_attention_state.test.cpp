// What MultiHeadAttention keeps between calls: caches, gradients, and what a failed call leaves.
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/failing_memory.hpp"
#include "support/laid_out.hpp"

namespace nn_multi_head_attention_state {

using namespace headwise_tests;

namespace {

using Module = MultiHeadAttention<double>;
using Cache = MultiHeadAttentionCache<double>;
using Call = MultiHeadAttentionCall<double>;
using Gradients = MultiHeadAttentionGradients<double>;
using Bytes = std::vector<double>;

Call call_of(Path path) {
  Call call;
  call.path = path;
  return call;
}

template <int R>
void append(Bytes& bytes, const In<double, R>& x) {
  bytes.push_back(static_cast<double>(x.size()));
  for_each_index(x.shape(), [&](const Shape<R>& at) { bytes.push_back(x(at)); });
}

Bytes bytes_of(const Gradients& gradients) {
  Bytes bytes;
  gradients.for_each([&](const std::string&, auto view) { append(bytes, view); });
  return bytes;
}
Bytes bytes_of(const Cache& c) {
  Bytes bytes = {c.filled ? 1.0 : 0.0, c.self_attention ? 1.0 : 0.0};
  for (const Tensor3<double>* x :
       {&c.query_copy, &c.key_copy, &c.value_copy, &c.x_norm, &c.qkv, &c.q, &c.k, &c.v, &c.q_normed,
        &c.k_normed, &c.q_rstd, &c.k_rstd, &c.context}) {
    append<3>(bytes, *x);
  }
  append<1>(bytes, c.mean), append<1>(bytes, c.rstd), append<4>(bytes, c.weights);
  append<4>(bytes, c.lse);
  for (const In<double, 3>* x : {&c.query, &c.key, &c.value}) append(bytes, *x);
  return bytes;
}
bool same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

/// While it lives, memory that a call takes from anywhere but its context is an error.
struct NoDefaultMemory {
  std::pmr::memory_resource* before =
      std::pmr::set_default_resource(std::pmr::null_memory_resource());
  ~NoDefaultMemory() { std::pmr::set_default_resource(before); }
};

}  // namespace

TEST_CASE("each gradient is found by the name under which it is walked over", "[nn]") {
  const Module module({.d_model = 12,
                       .num_heads = 3,
                       .q_bias = true,
                       .k_bias = true,
                       .v_bias = true,
                       .layer_norm = true,
                       .qk_norm = true,
                       .sinks = true,
                       .alibi = true,
                       .relative_reach = 2});
  const Gradients gradients = module.zero_gradients();
  const std::map<std::string, const double*> by_name = {
      {"W_Q", gradients.grad_W_Q().data()},
      {"W_K", gradients.grad_W_K().data()},
      {"W_V", gradients.grad_W_V().data()},
      {"W_O", gradients.grad_W_O().data()},
      {"b_Q", gradients.grad_b_Q().data()},
      {"b_K", gradients.grad_b_K().data()},
      {"b_V", gradients.grad_b_V().data()},
      {"b_O", gradients.grad_b_O().data()},
      {"gamma", gradients.grad_gamma().data()},
      {"beta", gradients.grad_beta().data()},
      {"gamma_Q", gradients.grad_gamma_Q().data()},
      {"gamma_K", gradients.grad_gamma_K().data()},
      {"sinks", gradients.grad_sinks().data()},
      {"alibi_slopes", gradients.grad_alibi_slopes().data()},
      {"relative_bias", gradients.grad_relative_bias().data()}};
  std::map<std::string, const double*> walked;
  gradients.for_each([&](const std::string& name, auto view) { walked[name] = view.data(); });
  CHECK(walked == by_name);
}

TEST_CASE("many forward calls may be pending, their backwards in any order", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Module module(8, 2);
  std::vector<Tensor3<double>> inputs, alone;
  std::vector<Cache> caches(5);
  for (std::size_t n = 0; n < caches.size(); ++n) {
    inputs.push_back(random_tensor<double>(Shape{2, static_cast<Index>(n) + 1, 8}, n));
    Cache cache;
    Gradients gradients = module.zero_gradients();
    (void)module.forward(inputs[n], call_of(path), cache);
    alone.push_back(module.backward(inputs[n], cache, gradients));
  }
  for (std::size_t n = 0; n < 5; ++n) (void)module.forward(inputs[n], call_of(path), caches[n]);
  for (const std::size_t n : std::array<std::size_t, 5>{3, 0, 4, 1, 2}) {
    Gradients gradients = module.zero_gradients();
    CHECK(bitwise_equal(module.backward(inputs[n], caches[n], gradients), alone[n]));
  }
}

TEST_CASE("average_heads is the mean of the cached weights over the heads", "[nn]") {
  const Module module({.d_model = 12, .num_heads = 4, .num_kv_heads = 2, .seed = 1});
  const auto x = random_tensor<double>(Shape{2, 6, 12}, 13);
  Call call = call_of(Path::materialized);
  call.mask = {causal};
  Cache cache;
  (void)module.forward(x, call, cache);
  const Tensor3<double> mean = average_heads(cache.weights);
  REQUIRE(mean.shape() == Shape{2, 6, 6});
  for_each_index(mean.shape(), [&](const Shape<3>& at) {
    double sum = 0;
    for (Index h = 0; h < 4; ++h) sum += cache.weights(at[0], h, at[1], at[2]);
    CHECK(mean(at) == Approx(sum / 4).margin(1e-16));
  });
}

TEST_CASE("threads share a module", "[nn]") {
  const Module module(8, 2);
  const auto x = random_tensor<double>(Shape{2, 70, 8}, 3);
  const auto step = [&](Tensor3<double>& dx, Bytes& bytes) {
    Cache cache;
    Gradients gradients = module.zero_gradients();
    (void)module.forward(x, {}, cache);
    dx = module.backward(x, cache, gradients);
    bytes = bytes_of(gradients);
  };
  std::vector<Tensor3<double>> dx(4);
  std::vector<Bytes> gradients(4);
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < 4; ++n) threads.emplace_back([&, n] { step(dx[n], gradients[n]); });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t n = 1; n < 4; ++n) {
    CHECK(bitwise_equal(dx[n], dx[0]));
    CHECK(same(gradients[n], gradients[0]));
  }
}

TEST_CASE("backward adds to the gradients, zero sets them back", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Module module(MultiHeadAttentionOptions{.d_model = 8,
                                                .num_heads = 2,
                                                .q_bias = true,
                                                .k_bias = true,
                                                .v_bias = true,
                                                .layer_norm = true,
                                                .qk_norm = true,
                                                .rotary = RotaryOptions{}});
  const auto x = random_tensor<double>(Shape{2, 5, 8}, 4);
  Cache cache;
  Gradients gradients = module.zero_gradients();
  (void)module.forward(x, call_of(path), cache);
  (void)module.backward(x, cache, gradients);
  Bytes once = bytes_of(gradients);
  (void)module.backward(x, cache, gradients);
  const Bytes twice = bytes_of(gradients);
  Index names = 0;
  gradients.for_each([&](const std::string&, auto) { ++names; });
  CHECK(names == 12);
  Gradients sum = module.zero_gradients();
  sum.add(gradients);
  CHECK(same(bytes_of(sum), twice));
  gradients.zero();
  CHECK(same(bytes_of(gradients), bytes_of(module.zero_gradients())));
  sum.add(sum);
  (void)module.backward(x, cache, gradients);
  CHECK(same(bytes_of(gradients), once));
  gradients.add(gradients);
  CHECK(same(bytes_of(gradients), twice));
}

TEST_CASE("a call that runs out of memory leaves cache and gradients as they were, to the bit",
          "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool self = GENERATE(true, false);
  const bool placed = GENERATE(true, false);
  MultiHeadAttentionOptions options = {.d_model = 6,
                                       .num_heads = 2,
                                       .d_head = 4,
                                       .q_bias = true,
                                       .v_bias = true,
                                       .layer_norm = true,
                                       .qk_norm = placed};
  if (placed) options.rotary = RotaryOptions{.width = 2};
  if (!self) options.kdim = 4, options.vdim = 5;
  const Module module(options);
  // Rows at two distances, so that copies are made.
  const LaidOut<double, 3> x(random_tensor<double>(Shape{2, 3, 6}, 5), Layout::in_longer_sequence);
  const LaidOut<double, 3> k(random_tensor<double>(Shape{2, 4, options.kdim}, 6),
                             Layout::in_longer_sequence);
  const LaidOut<double, 3> v(random_tensor<double>(Shape{2, 4, options.vdim}, 7),
                             Layout::in_longer_sequence);
  Call call = call_of(path);
  call.weight_dropout = {.rate = 0.5}, call.output_dropout = {.rate = 0.5};
  const auto forward = [&](Cache& cache, const Context& context) {
    return self ? module.forward(x.view, call, cache, context)
                : module.forward(x.view, k.view, v.view, call, cache, context);
  };
  const auto backward = [&](const Cache& cache, Gradients& gradients, const Context& context) {
    if (self) {
      (void)module.backward(x.view, cache, gradients, context);
    } else {
      (void)module.backward_cross(x.view, cache, gradients, context);
    }
  };
  Cache cache;
  (void)forward(cache, {});
  Gradients once = module.zero_gradients();
  backward(cache, once, {});

  Gradients gradients = module.zero_gradients();
  gradients.add(once);
  const Bytes before = bytes_of(cache);
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              const NoDefaultMemory none;
              backward(cache, gradients, {.memory = memory});
            },
            [&] {
              return same(bytes_of(gradients), bytes_of(once)) && same(bytes_of(cache), before);
            }) > 7);
  gradients.for_each([](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) { view(at) /= 2; });
  });
  CHECK(same(bytes_of(gradients), bytes_of(once)));

  call.path = path == Path::flash ? Path::materialized : Path::flash;
  Cache expected;
  (void)forward(expected, {});
  Bytes refilled;
  CHECK(fail_in_turn(
            [&](std::pmr::memory_resource* memory) {
              {
                const NoDefaultMemory none;
                (void)forward(cache, {.memory = memory});
              }
              refilled = bytes_of(cache);
              cache = {};  // before its memory goes
            },
            [&] { return same(bytes_of(cache), before); }) > 7);
  CHECK(same(refilled, bytes_of(expected)));
}

}  // namespace nn_multi_head_attention_state
