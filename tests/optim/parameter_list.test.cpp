// What a ParameterList collects from modules.
#include "optim/optimizer_problem.hpp"

namespace optim_parameter_list {

using namespace headwise_tests;

namespace {

std::vector<std::string> described(const ParameterList<float>& list) {
  std::vector<std::string> all;
  for (const auto& p : list) all.push_back(p.name + " " + format_extents(p.extents()));
  return all;
}

}  // namespace

TEST_CASE("parameters of modules are collected by name, each with its own gradient", "[optim]") {
  MultiHeadAttention<float> attention({.d_model = 8, .num_heads = 2, .q_bias = true});
  Linear<float> linear(8, 3);
  LayerNorm<float> norm(8);
  auto attention_gradients = attention.zero_gradients();
  auto linear_gradients = linear.zero_gradients();
  auto norm_gradients = norm.zero_gradients();
  ParameterList<float> list;
  collect(list, "attention.", attention.parameters(), attention_gradients);
  collect(list, "head.", linear.parameters(), linear_gradients);
  collect(list, "", norm.parameters(), norm_gradients);
  CHECK(described(list) == std::vector<std::string>{"attention.W_Q [8, 8]", "attention.W_K [8, 8]",
                                                    "attention.W_V [8, 8]", "attention.W_O [8, 8]",
                                                    "attention.b_Q [8]", "attention.b_O [8]",
                                                    "head.W [8, 3]", "head.b [3]", "gamma [8]",
                                                    "beta [8]"});
  CHECK(described(list.matrices()).size() == 5);
  CHECK(described(list.vectors()) == std::vector<std::string>{"attention.b_Q [8]",
                                                              "attention.b_O [8]", "head.b [3]",
                                                              "gamma [8]", "beta [8]"});
  CHECK(list.elements() == 4 * 64 + 16 + 27 + 16);
  CHECK(list[1].view.data() == attention.parameters().W_K().data());
  CHECK(list[1].gradient.data() == attention_gradients.W_K().data());
  CHECK(list[6].gradient.data() == linear_gradients.w.data());
}

TEST_CASE("a module that is stepped along its gradient comes nearer to what is wanted", "[optim]") {
  MultiHeadAttention<double> attention({.d_model = 8, .num_heads = 2});
  auto gradients = attention.zero_gradients();
  ParameterList<double> list;
  collect(list, "", attention.parameters(), gradients);
  AdamW<double> optimizer(list, {.learning_rate = 0.01});
  Tensor3<double> x({1, 5, 8});
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = philox_normal(philox_key(1), static_cast<std::uint64_t>(n));
  }
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    MultiHeadAttention<double>::Cache cache;
    Tensor3<double> dy = attention.forward(x, {.mask = causal}, cache);
    double loss = 0;
    for (double& y : dy) {
      y -= 0.5;
      loss += y * y / 2;
    }
    losses.push_back(loss);
    zero_gradients(list);
    attention.backward(dy, cache, gradients);
    clip_grad_norm(list, 1.0);
    optimizer.step();
  }
  CHECK(losses.back() < 0.5 * losses.front());
}

TEST_CASE("what is added to a list in vain leaves it as it was", "[optim]") {
  Linear<float> linear(4, 3), other(4, 2);
  auto gradients = linear.zero_gradients(), others = other.zero_gradients();
  ParameterList<float> list;
  collect(list, "a.", linear.parameters(), gradients);
  CHECK_THROWS_AS(collect(list, "b.", linear.parameters(), others), ShapeError);
  CHECK_THROWS_AS(collect(list, "a.", other.parameters(), others), ArgumentError);
  CHECK(list.size() == 2);
  CHECK(list.elements() == 15);
  CHECK(list.tasks().size() == 2);
  CHECK_THROWS_AS(collect(list, "a.", other.parameters()), ArgumentError);
  CHECK(list.size() == 2);
}

TEST_CASE("parameters may be collected without gradients", "[optim]") {
  Linear<float> linear(4, 3);
  auto gradients = linear.zero_gradients();
  ParameterList<float> list, with_gradients;
  collect(list, "a.", linear.parameters());
  collect(with_gradients, "a.", linear.parameters(), gradients);
  CHECK(described(list) == described(with_gradients));
  for (std::size_t n = 0; n < list.size(); ++n) {
    CHECK(list[n].view.data() == with_gradients[n].view.data());
    CHECK(list[n].gradient.absent());
  }
  CHECK(list.elements() == 15);
  CHECK(list.matrices().size() == 1);
  const ParameterList<float> moved = std::move(list);
  CHECK(moved.elements() == 15);
  CHECK(list.elements() == 0);  // NOLINT: of what was moved from
}

}  // namespace optim_parameter_list
