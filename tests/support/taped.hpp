// What tests of the tape share: random tensors, and the check of a taped function's gradients
// against finite differences of its values.
#pragma once

#include <cstring>
#include <functional>
#include <memory_resource>
#include <string>
#include <tuple>
#include <type_traits>

#include "headwise/autograd/tape.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/testing/close_to.hpp"
#include "headwise/testing/gradient_check.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed, double offset = 0) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(offset + philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// Memory that holds NaN wherever it is given out: what is read before it is written shows.
class UnwrittenMemory : public std::pmr::memory_resource {
 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* const memory = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    std::memset(memory, 0xFF, bytes);
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

/// dy [...] of a y = f(variables...) against differences: f is called on tapes of its own, with
/// inputs as variables that have a gradient, and with constants. What f is has been forgotten here:
/// this is compiled once for all functions of the same ranks.
template <class T, int S, int... R>
GradientReport check_taped(const std::function<Variable<T, S>(const Variable<T, R>&...)>& f,
                           Tensor<T, R>&... inputs) {
  UnwrittenMemory memory;
  Tape<T> tape({.memory = &memory});
  const auto variables = std::make_tuple(tape.input(In<T, R>(inputs))...);
  const auto y = std::apply(f, variables);
  const auto dy = normal<T>(y.shape(), 99);
  tape.backward(y, In<T, S>(dy));
  GradientCheck<T> check({.tolerance = 1e-11, .stencil = Stencil::five_point});
  const auto add = [&](const Variable<T, R>&... variable) {
    int number = 0;
    (check.input("x" + std::to_string(number++), Out<T, R>(inputs), tape.gradient(variable)), ...);
  };
  std::apply(add, variables);
  return check.run([&] {
    Tape<T> other;
    const auto value = f(other.constant(In<T, R>(inputs))...);
    return weighted_sum(dy, value.value());
  });
}
template <class F, class T, int... R>
GradientReport check_taped(const F& f, Tensor<T, R>&... inputs) {
  using Y = std::invoke_result_t<const F&, const Variable<T, R>&...>;
  return check_taped(std::function<Y(const Variable<T, R>&...)>(std::cref(f)), inputs...);
}

}  // namespace headwise_tests
