// The module by products of bf16, beside that of double: errors relative to the root mean square of
// each result, which are those of the rounding and hardly depend on what multiplies.
#include "headwise/ops/bf16_products.hpp"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "headwise/nn/multi_head_attention_step.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "headwise/testing/close_to.hpp"
#include "nn/transformer_decoder_case.hpp"
#include "support/bf16_units.hpp"
#include "support/catch.hpp"
#include "support/draw.hpp"
#include "support/module_call.hpp"
#include "support/parameter_values.hpp"

namespace nn_bf16_products {

using namespace headwise_tests;

namespace {

const MultiHeadAttentionOptions options = {.d_model = 64,
                                           .num_heads = 4,
                                           .num_kv_heads = 2,
                                           .d_head = 24,
                                           .d_value = 17,
                                           .q_bias = true,
                                           .v_bias = true,
                                           .layer_norm = true,
                                           .seed = 7};

/// Results by name, in double.
using Results = std::map<std::string, std::vector<double>>;

/// Forward by one context and backward by another, causal.
template <class T>
Results results_of(const MultiHeadAttention<T>& module, Path path, const Tensor3<double>& x,
                   const Tensor3<double>& dy, const Context& forward, const Context& backward) {
  const auto x_of_T = convert<T>(In<double, 3>(x)), dy_of_T = convert<T>(In<double, 3>(dy));
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  Results results;
  const auto add = [&](const std::string& name, const auto& view) {
    for_each_index(view.shape(),
                   [&](const auto& at) { results[name].push_back(static_cast<double>(view(at))); });
  };
  add("y", module.forward(x_of_T, call_of<T>(path, {causal}), cache, forward));
  add("dx", module.backward(dy_of_T, cache, gradients, backward));
  gradients.for_each([&](const std::string& name, auto view) { add(name, view); });
  return results;
}

/// The greatest root mean square, over all results, of the difference relative to that of b.
double difference(const Results& a, const Results& b) {
  double greatest = 0;
  for (const auto& [name, of_b] : b) {
    const std::vector<double>& of_a = a.at(name);
    double error = 0, size = 0;
    for (std::size_t n = 0; n < of_b.size(); ++n) {
      error += (of_a.at(n) - of_b[n]) * (of_a.at(n) - of_b[n]);
      size += of_b[n] * of_b[n];
    }
    const double relative = size == 0 ? std::sqrt(error) : std::sqrt(error / size);
    if (!(relative <= greatest)) greatest = relative;
  }
  return greatest;
}

struct Drawn {
  MultiHeadAttention<double> exact{options};
  MultiHeadAttention<float> module = convert<float>(exact);
  Tensor3<double> x = random_tensor<double>(Shape{2, 150, 64}, 1);
  Tensor3<double> dy = random_tensor<double>(Shape{2, 150, 64}, 2);
};

// A number of bf16 is off by 2^-8 of itself at most, by 0.0017 in the root mean square, and some
// roundings stand behind one another: 0.0066 at most was measured, of y 0.0024. Units differ in the
// order of sums alone, which moves few numbers to another one of bf16: by 0.00007.
constexpr double bound = 0.013;
constexpr double of_units = 1.0 / 40;

}  // namespace

TEST_CASE("the module by bf16 is that of double to the rounding, and all units nearly agree",
          "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Drawn of;
  const Results exact = results_of(of.exact, path, of.x, of.dy, {}, {});
  Results first;
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    const Results results = results_of(of.module, path, of.x, of.dy, context, context);
    const double error = difference(results, exact);
    CAPTURE(name_of(unit), error);
    CHECK(error <= bound);
    CHECK(error >= 0.001);  // else nothing was rounded
    if (first.empty()) first = results;
    CHECK(difference(results, first) <= error * of_units);
    // What double computes is not rounded at all.
    CHECK(results_of(of.exact, path, of.x, of.dy, context, context) == exact);
  }
}

TEST_CASE("a cache that bf16 filled serves backward without, and the other way round", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Drawn of;
  const Results exact = results_of(of.exact, path, of.x, of.dy, {}, {});
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    const double before = difference(results_of(of.module, path, of.x, of.dy, context, {}), exact);
    const double behind = difference(results_of(of.module, path, of.x, of.dy, {}, context), exact);
    CAPTURE(name_of(unit), before, behind);
    CHECK(before <= bound);
    CHECK(behind <= bound);
  }
}

TEST_CASE("a trace changes no bit of a module by bf16, and holds what it computed", "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const Drawn of;
  const auto x = convert<float>(In<double, 3>(of.x));
  const auto call = call_of<float>(path, {causal});
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Products products = bf16_products(unit);
    Trace trace;
    const auto y = of.module.forward(x, call, {.products = products});
    const auto traced = of.module.forward(x, call, {.trace = &trace, .products = products});
    CHECK(bitwise_equal(traced, y));
    CHECK(bitwise_equal(trace.view<3>("A_out"), In<double, 3>(convert<double>(In<float, 3>(y)))));
    Trace exact;
    (void)of.exact.forward(of.x, call_of<double>(path, {causal}), {.trace = &exact});
    for (const char* name : {"Q", "K", "V", "AS", "AO_heads"}) {
      const auto got = trace.view<4>(name);
      double error = 0, size = 0;
      for_each_index(got.shape(), [&](const Shape<4>& at) {
        const double expected = exact.view<4>(name)(at);
        error += (got(at) - expected) * (got(at) - expected), size += expected * expected;
      });
      CAPTURE(name_of(unit), name, std::sqrt(error / size));
      CHECK(error <= bound * bound * size);
    }
  }
}

TEST_CASE("every product of a trace and of a tied head is by bf16, if the call's are", "[nn]") {
  const auto h = random_tensor<float>(Shape{7, 40}, 1),
             table = random_tensor<float>(Shape{33, 40}, 2),
             d_logits = random_tensor<float>(Shape{7, 33}, 3);
  MultiHeadAttention<float> module({.d_model = 64, .num_heads = 4, .seed = 7});
  const auto x = convert<float>(In<double, 3>(Drawn().x));
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    Tensor2<float> dtable(table.shape()), dw({40, 33}), exact(table.shape());
    tied_head_backward(d_logits, h, table, {}, dtable, context);
    linear_backward(d_logits, h, transpose(table, 0, 1), {}, dw, {}, context);
    tied_head_backward(d_logits, h, table, {}, exact);
    CHECK(bitwise_equal(In<float, 2>(dtable), In<float, 2>(transpose(dw, 0, 1))));
    CHECK(!bitwise_equal(dtable, exact));

    Trace kept, formed;
    (void)module.forward(x, call_of<float>(Path::materialized, {causal}),
                         {.trace = &kept, .products = context.products});
    (void)module.forward(x, call_of<float>(Path::flash, {causal}),
                         {.trace = &formed, .products = context.products});
    CHECK(bitwise_equal(kept.view<3>("AO_lin"), kept.view<3>("A_out")));  // there is no b_O
    CHECK(bitwise_equal(formed.view<4>("AS"), kept.view<4>("AS")));
    CHECK(bitwise_equal(formed.view<4>("A"), kept.view<4>("A")));
  }
}

TEST_CASE("step by step over a cache, of float or of bf16, come the bits of the whole by bf16",
          "[nn]") {
  MultiHeadAttention<float> module(
      {.d_model = 64, .num_heads = 4, .num_kv_heads = 2, .rotary = RotaryOptions{}});
  draw_all(module.parameters(), 3);
  const Index B = 2, L = 83;
  const auto x = random_tensor<float>(Shape{B, L, Index{64}}, 4);
  ThreadPool pool(3);
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.executor = pool, .products = bf16_products(unit)};
    const auto whole = module.forward(x, call_of<float>(Path::flash, {causal}), context);
    for (const StoredAs stored : {StoredAs::same, StoredAs::bf16}) {  // rounded once, or twice
      for (Index most : {1, 5, 40}) {
        KeyValueCache<float> cache({.batch_size = B,
                                    .num_kv_heads = 2,
                                    .capacity = L,
                                    .d_head = 16,
                                    .d_value = 16,
                                    .stored_as = stored});
        Tensor3<float> y(x.shape());
        for (Index i = 0; i < L; i += most) {
          const Index n = std::min(most, L - i);
          copy(In<float, 3>(multi_head_attention_step(module, slice(x, 1, i, n), cache, context)),
               slice(y, 1, i, n));
        }
        CAPTURE(name_of(unit), static_cast<int>(stored), most);
        CHECK(bitwise_equal(y, whole));
      }
    }
  }
}

TEST_CASE("a decoder by bf16 has the same logits token by token and at once", "[nn]") {
  const auto decoder = drawn<float>(with(true, NormKind::rms_norm, 48));
  const auto tokens = some_tokens(2, 37);
  auto exact_state = decoder.state(2, 37);
  const auto exact = decoder.step(tokens, exact_state);
  for (const Bf16Unit unit : supported_bf16_units()) {
    const Context context{.products = bf16_products(unit)};
    auto whole = decoder.state(2, 37), state = decoder.state(2, 37);
    const auto at_once = decoder.step(tokens, whole, context);
    auto logits = decoder.step(slice(tokens, 1, 0, 1), state, context);
    for (Index i = 1; i < 37; ++i) logits = decoder.step(slice(tokens, 1, i, 1), state, context);
    CAPTURE(name_of(unit));
    CHECK(bitwise_equal(logits, at_once));
    CHECK_FALSE(bitwise_equal(at_once, exact).ok);
  }
}

}  // namespace nn_bf16_products
