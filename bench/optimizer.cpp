// A step of AdamW and the norm of gradients: what they read and write once, and nothing else.
#include <cmath>
#include <memory>

#include "support.hpp"

namespace headwise::bench {

namespace {

template <class T>
struct Trained {
  Tensor<T, 1> value, gradient;  // [N]
  ParameterList<T> list;
  AdamW<T> optimizer;

  explicit Trained(Index N)
      : value(random_tensor<T>(Shape<1>(N), 1)), gradient(random_tensor<T>(Shape<1>(N), 2)) {
    list.add("x", value, gradient);
    optimizer.add_group(list, {.weight_decay = 0.1});
  }
  Trained(const Trained&) = delete;
};

template <class T>
Case adamw(const std::vector<Index>& values) {
  const auto all = std::make_shared<Trained<T>>(values.at(0));
  Case one;
  one.run = [all](const Context& context) { all->optimizer.step(context); };
  // A gradient that stays gives steps of the learning rate against its sign, whatever its size.
  one.right = [all] {
    const auto before = all->value;
    all->optimizer.step();
    for (const Index n : {Index{0}, all->value.size() - 1}) {
      const double moved = static_cast<double>(all->value(n)) - static_cast<double>(before(n));
      const double decay = 1e-4 * static_cast<double>(before(n));
      const double sign = all->gradient(n) < T(0) ? -1 : 1;
      if (std::abs(moved + decay + 1e-3 * sign) > 1e-5) return false;
    }
    return true;
  };
  one.flops = 15 * static_cast<double>(values.at(0));
  // p, m and v are read and written, g is read.
  one.bytes = 7 * static_cast<double>(values.at(0)) * sizeof(T);
  return one;
}

template <class T>
Case norm(const std::vector<Index>& values) {
  const auto all = std::make_shared<Trained<T>>(values.at(0));
  const auto result = std::make_shared<double>(0);
  Case one;
  one.run = [all, result](const Context& context) {
    *result = static_cast<double>(gradient_norm(all->list, context));
  };
  one.right = [all, result] {
    double sum = 0;
    for (const T g : all->gradient) sum += static_cast<double>(g) * static_cast<double>(g);
    return std::abs(*result - std::sqrt(sum)) < 1e-10 * *result;
  };
  one.flops = 2 * static_cast<double>(values.at(0));
  one.bytes = static_cast<double>(values.at(0)) * sizeof(T);
  return one;
}

template <class T>
void add(Families& families) {
  const std::vector<std::vector<Index>> sizes = {{65536}, {813056}, {16777216}};
  families.push_back({name_of<T>("adamw"), {"N"}, sizes, adamw<T>});
  families.push_back({name_of<T>("gradient_norm"), {"N"}, sizes, norm<T>});
}

}  // namespace

void add_optimizer(Families& families) {
  add<float>(families);
  add<double>(families);
}

}  // namespace headwise::bench
