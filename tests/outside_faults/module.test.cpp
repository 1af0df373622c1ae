// A module while memory runs out anywhere: not only in its context's memory resource, of which
// nn/multi_head_attention_state.test.cpp has the like, but at any operator new of the program.
#include <cstring>
#include <optional>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "outside_faults/allocations.hpp"
#include "support/module_call.hpp"

namespace outside_faults_module {

using namespace headwise_tests;

namespace {

using Module = MultiHeadAttention<double>;
using Cache = MultiHeadAttentionCache<double>;
using Gradients = MultiHeadAttentionGradients<double>;
using Bits = std::vector<double>;

template <int R>
void append(Bits& bits, const In<double, R>& x) {
  for_each_index(x.shape(), [&](const Shape<R>& at) { bits.push_back(x(at)); });
}

Bits bits_of(const Cache& c) {
  Bits bits = {c.filled ? 1.0 : 0.0};
  for (const Tensor3<double>* x : {&c.query_copy, &c.key_copy, &c.value_copy, &c.x_norm, &c.qkv,
                                   &c.q, &c.k, &c.v, &c.context}) {
    append<3>(bits, *x);
  }
  append<1>(bits, c.mean), append<1>(bits, c.rstd);
  append<4>(bits, c.weights), append<4>(bits, c.lse);
  return bits;
}

Bits bits_of(const Gradients& gradients) {
  Bits bits;
  gradients.for_each([&](const std::string&, auto view) { append(bits, view); });
  return bits;
}

bool same(const Bits& a, const Bits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

Tensor3<double> numbers(Index B, Index L, Index D) {
  Tensor3<double> x(Shape{B, L, D});
  for (Index n = 0; n < x.size(); ++n) x.data()[n] = 0.25 * static_cast<double>(n % 17 - 8);
  return x;
}

const auto nothing_to_change = [] { return true; };

}  // namespace

TEST_CASE("a module that is made while memory runs out leaves nothing behind", "[outside]") {
  MultiHeadAttentionOptions options{.d_model = 6, .num_heads = 2, .q_bias = true};
  options.layer_norm = true;
  CHECK(fail_each_allocation([&] { Module module(options); }, nothing_to_change) > 4);
  options.kdim = 5;
  CHECK(fail_each_allocation([&] { Module module(options); }, nothing_to_change) > 6);
  const Module module(options);
  CHECK(fail_each_allocation([&] { (void)module.zero_gradients(); }, nothing_to_change) > 6);
  CHECK(fail_each_allocation([&] { const Module copy(module); }, nothing_to_change) > 6);
  options.num_heads = 4;
  const auto refused = [&] {
    try {
      Module none(options);
    } catch (const ArgumentError&) {
    }
  };
  CHECK(fail_each_allocation(refused, nothing_to_change) > 0);
}

TEST_CASE("forward and backward that run out of memory leave everything as it was", "[outside]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const bool with_pool = GENERATE(false, true);
  const Module module(MultiHeadAttentionOptions{
      .d_model = 6, .num_heads = 2, .q_bias = true, .v_bias = true, .layer_norm = true});
  const auto x = numbers(2, 5, 6);
  const auto dy = numbers(2, 5, 6);
  ThreadPool pool(3);
  Context context{.memory = std::pmr::new_delete_resource()};  // every time anew
  if (with_pool) context.executor = pool;
  auto call = call_of<double>(path, {causal});
  call.weight_dropout = {.rate = 0.5}, call.output_dropout = {.rate = 0.5};

  Cache cache;
  (void)module.forward(x, call, cache, context);
  const Bits filled = bits_of(cache);
  Gradients gradients = module.zero_gradients();
  (void)module.backward(dy, cache, gradients, context);
  const Bits once = bits_of(gradients);

  CHECK(fail_each_allocation(
            [&] { (void)module.backward(dy, cache, gradients, context); },
            [&] { return same(bits_of(gradients), once) && same(bits_of(cache), filled); }) > 7);
  CHECK_FALSE(same(bits_of(gradients), once));

  const auto other = numbers(2, 4, 6);
  CHECK(fail_each_allocation([&] { (void)module.forward(other, call, cache, context); },
                             [&] { return same(bits_of(cache), filled); }) > 5);
  CHECK_FALSE(same(bits_of(cache), filled));
  CHECK(fail_each_allocation([&] { (void)module.forward(other, call, context); },
                             nothing_to_change) > 5);
}

TEST_CASE("after a first call with the same shapes nothing is asked of the system", "[outside]") {
  if (!detail::recycles()) return;
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Index threads = GENERATE(1, 3);
  const MultiHeadAttention<float> module(MultiHeadAttentionOptions{
      .d_model = 64, .num_heads = 4, .q_bias = true, .v_bias = true, .layer_norm = true});
  const Tensor3<float> x(Shape{2, 150, 64}), dy(x.shape());
  auto call = call_of<float>(path, {causal});
  call.weight_dropout = {.rate = 0.5}, call.output_dropout = {.rate = 0.5};
  ThreadPool pool(threads);
  const Context context{.executor = pool};
  auto gradients = module.zero_gradients();
  MultiHeadAttentionCache<float> cache;
  for (int step = 0; step < 5; ++step) {
    reset_allocations();
    const auto y = module.forward(x, call, cache, context);
    const auto dx = module.backward(dy, cache, gradients, context);
    const long count = allocations().count;
    CAPTURE(step, threads);
    if (step >= 2) CHECK(count == 0);  // the second fills a cache beside the first's
  }
}

TEST_CASE("a call that is refused while memory runs out changes nothing", "[outside]") {
  const Module module(6, 2);
  const auto x = numbers(2, 5, 6);
  const auto wrong = numbers(2, 5, 7);
  Cache cache;
  (void)module.forward(x, {}, cache);
  Gradients gradients = module.zero_gradients();
  const Bits filled = bits_of(cache), none = bits_of(gradients);
  const auto refused = [&](auto&& f) {
    return [&, f] {
      try {
        f();
        FAIL("was not refused");
      } catch (const ShapeError&) {
      }
    };
  };
  const auto unchanged = [&] {
    return same(bits_of(cache), filled) && same(bits_of(gradients), none);
  };
  CHECK(fail_each_allocation(refused([&] { (void)module.forward(wrong, {}, cache); }), unchanged) >
        2);
  CHECK(fail_each_allocation(refused([&] { (void)module.backward(wrong, cache, gradients); }),
                             unchanged) > 2);
}

TEST_CASE("a thread pool that is made while memory runs out ends the threads that it has",
          "[outside]") {
  CHECK(fail_each_allocation([] { const ThreadPool pool(4); }, nothing_to_change) >= 4);
}

}  // namespace outside_faults_module
