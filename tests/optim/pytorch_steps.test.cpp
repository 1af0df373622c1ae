// Steps of AdamW and Sgd beside those of torch.optim, written by
// tests/data/generate_optimizer_steps.py.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "headwise/headwise.hpp"
#include "support/catch.hpp"

namespace optim_pytorch_steps {

using namespace headwise;
using nlohmann::json;

namespace {

json document() {
  std::ifstream stream(std::string(HEADWISE_TEST_DATA) + "/optimizer_steps.json");
  REQUIRE(stream);
  return json::parse(stream);
}

/// A matrix [3, 7] and a vector [7], the matrix in the middle columns of something wider.
template <class T>
struct Pair {
  Tensor<T, 2> wide{Shape{3, 12}}, wide_gradient{Shape{3, 7}};
  Tensor<T, 1> b{Shape{7}}, b_gradient{Shape{7}};
  TensorView<T, 2> w = slice(wide, 1, 2, 7);
  ParameterList<T> list;

  explicit Pair(const json& start) {
    list.add("w", w, wide_gradient);
    list.add("b", b, b_gradient);
    set(start, w, b);
  }
  static void set(const json& from, const TensorView<T, 2>& matrix, InOut<T, 1> vector) {
    Index n = 0;
    for (const double x : from.at("w")) matrix(n / 7, n % 7) = T(x), ++n;
    n = 0;
    for (const double x : from.at("b")) vector(n++) = T(x);
  }
  void set_gradients(const json& from) { set(from, as_view(wide_gradient), b_gradient); }

  /// The largest distance to what PyTorch has, relative to the largest of its values.
  double error(const json& expected) const {
    double worst = 0, most = 0;
    Index n = 0;
    for (const double x : expected.at("w")) {
      worst = std::max(worst, std::abs(static_cast<double>(w(n / 7, n % 7)) - x)), ++n;
      most = std::max(most, std::abs(x));
    }
    n = 0;
    for (const double x : expected.at("b")) {
      worst = std::max(worst, std::abs(static_cast<double>(b(n++)) - x));
      most = std::max(most, std::abs(x));
    }
    return worst / most;
  }
};

AdamWOptions adamw_options(AdamWOptions o, const json& from) {
  o.learning_rate = from.value("lr", o.learning_rate);
  if (from.contains("betas")) {
    o.beta1 = from["betas"][0];
    o.beta2 = from["betas"][1];
  }
  o.epsilon = from.value("eps", o.epsilon);
  o.weight_decay = from.value("weight_decay", o.weight_decay);
  return o;
}

SgdOptions sgd_options(SgdOptions o, const json& from) {
  o.learning_rate = from.value("lr", o.learning_rate);
  o.momentum = from.value("momentum", o.momentum);
  o.dampening = from.value("dampening", o.dampening);
  o.nesterov = from.value("nesterov", o.nesterov);
  o.weight_decay = from.value("weight_decay", o.weight_decay);
  return o;
}

/// The worst error over all steps, of values and of norms.
template <class T, class Optimizer>
double worst_error(const json& all, const json& one, Pair<T>& pair, Optimizer& optimizer) {
  double worst = 0;
  for (std::size_t step = 0; step < one.at("steps").size(); ++step) {
    const json& expected = one["steps"][step];
    pair.set_gradients(all["gradients"][step]);
    if (one.contains("rates")) optimizer.set_learning_rate(one["rates"][step]);
    if (one.contains("max_norm")) {
      const auto norm = static_cast<double>(clip_grad_norm(pair.list, one["max_norm"]));
      const double theirs = expected.at("norm");
      worst = std::max(worst, std::abs(norm - theirs) / theirs);
    }
    optimizer.step();
    worst = std::max(worst, pair.error(expected));
  }
  return worst;
}

template <class T>
double error_of(const json& all, const json& one) {
  Pair<T> pair(all["start"]);
  if (one["optimizer"] == "AdamW") {
    const AdamWOptions o = adamw_options({}, one["options"]);
    AdamW<T> optimizer;
    optimizer.add_group(pair.list.matrices(), adamw_options(o, one["matrix"]));
    optimizer.add_group(pair.list.vectors(), adamw_options(o, one["vector"]));
    return worst_error(all, one, pair, optimizer);
  }
  REQUIRE(one["optimizer"] == "SGD");
  const SgdOptions o = sgd_options({}, one["options"]);
  Sgd<T> optimizer;
  optimizer.add_group(pair.list.matrices(), sgd_options(o, one["matrix"]));
  optimizer.add_group(pair.list.vectors(), sgd_options(o, one["vector"]));
  return worst_error(all, one, pair, optimizer);
}

}  // namespace

TEST_CASE("every step of AdamW and Sgd is that of PyTorch, in double, float and long double",
          "[optim]") {
  const json all = document();
  CHECK(all["made_by"].get<std::string>().starts_with("torch 2.6"));
  REQUIRE(all["cases"].size() == 14);
  for (const auto& [name, one] : all["cases"].items()) {
    CAPTURE(name);
    REQUIRE(one["steps"].size() == 8);
    // Some units in the last place over 8 steps: some products of PyTorch's are fused with a sum.
    CHECK(error_of<double>(all, one) < 2e-15);
    CHECK(error_of<long double>(all, one) < 2e-15);
    CHECK(error_of<float>(all, one) < 1e-6);
  }
}

TEST_CASE("a step that differs from PyTorch by a little is found", "[optim]") {
  json all = document();
  for (auto& [name, one] : all["cases"].items()) {
    CAPTURE(name);
    json later = one, other = one;
    double& element = later["steps"][7]["b"][3].get_ref<double&>();
    element += 1e-11;
    CHECK(error_of<double>(all, later) > 1e-13);
    other["options"]["lr"] = 1.001 * one["options"].value("lr", 1e-3);
    if (!one.contains("rates")) CHECK(error_of<double>(all, other) > 1e-9);
  }
}

}  // namespace optim_pytorch_steps
