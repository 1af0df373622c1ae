// The module by products of numbers in pieces of bf16, beside those of double and of float.
#include "headwise/ops/split_products.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "headwise/nn/multi_head_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/module_call.hpp"
#include "support/other_products.hpp"
#include "support/parameter_values.hpp"

namespace nn_split_products {

using namespace headwise_tests;

namespace {

/// y, dx and every gradient, one behind the other.
using Results = std::vector<std::vector<double>>;

template <class T>
Results results_of(const MultiHeadAttention<T>& module, Path path, const Tensor3<double>& x,
                   const Tensor3<double>& dy, const Context& context) {
  const auto x_of_T = convert<T>(In<double, 3>(x)), dy_of_T = convert<T>(In<double, 3>(dy));
  MultiHeadAttentionCache<T> cache;
  auto gradients = module.zero_gradients();
  Results results;
  const auto add = [&](const auto& view) {
    results.emplace_back();
    for_each_index(view.shape(), [&](const auto& at) {
      results.back().push_back(static_cast<double>(view(at)));
    });
  };
  add(module.forward(x_of_T, call_of<T>(path, {causal}), cache, context));
  add(module.backward(dy_of_T, cache, gradients, context));
  gradients.for_each([&](const std::string&, auto view) { add(view); });
  return results;
}

/// The greatest root mean square, over all results, of the difference relative to that of b.
double difference(const Results& a, const Results& b) {
  double greatest = 0;
  for (std::size_t r = 0; r < b.size(); ++r) {
    double error = 0, size = 0;
    for (std::size_t n = 0; n < b[r].size(); ++n) {
      error += (a[r][n] - b[r][n]) * (a[r][n] - b[r][n]);
      size += b[r][n] * b[r][n];
    }
    greatest = std::max(greatest, size == 0 ? std::sqrt(error) : std::sqrt(error / size));
  }
  return greatest;
}

}  // namespace

TEST_CASE("the module by three pieces is as near to double as by floats, by two 2^-15 away",
          "[nn]") {
  const Path path = GENERATE(Path::flash, Path::materialized);
  const MultiHeadAttention<double> exact({.d_model = 200,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .d_head = 24,
                                          .d_value = 17,
                                          .q_bias = true,
                                          .v_bias = true,
                                          .layer_norm = true,
                                          .seed = 7});
  const auto module = convert<float>(exact);
  const auto x = random_tensor<double>(Shape{2, 150, 200}, 1),
             dy = random_tensor<double>(Shape{2, 150, 200}, 2);
  const Results expected = results_of(exact, path, x, dy, {});
  const double of_floats = difference(results_of(module, path, x, dy, {}), expected);
  for (const auto& [name, products] : supported_split_products()) {
    const double error =
        difference(results_of(module, path, x, dy, {.products = products}), expected);
    CAPTURE(name, error, of_floats);
    CHECK(error <= (name == "two pieces" ? 0x1p-15 : 1.1 * of_floats));
    if (name == "two pieces") CHECK(error > 4 * of_floats);  // else there were three
    // What double computes has no pieces.
    CHECK(results_of(exact, path, x, dy, {.products = products}) == expected);
  }
}

TEST_CASE("where there is no AMX, or none is asked for, products in pieces are those of float",
          "[nn]") {
  const bool splits = bf16_unit() == Bf16Unit::amx;
  CHECK(split_products().of_float() == !splits);
  CHECK(split_products<2>().of_float() == !splits);
}

}  // namespace nn_split_products
