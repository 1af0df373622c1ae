// All numbers of a module's parameters or gradients, in the order in which they are walked.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "headwise/tensor/view_ops.hpp"
#include "support/draw.hpp"

namespace headwise_tests {

template <class T, class Parameters>
std::vector<T> values_of(const Parameters& parameters) {
  std::vector<T> values;
  parameters.for_each([&](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) { values.push_back(view(at)); });
  });
  return values;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
template <class Parameters>
std::string names_of(const Parameters& parameters, const std::string& prefix = "") {
  std::string names;
  parameters.for_each([&](const std::string& name, auto) { names += name + " "; }, prefix);
  return names;
}
/// Numbers of deviation 1/2 for all of them, biases and gains too.
template <class Parameters>
void draw_all(Parameters& parameters, std::uint64_t seed) {
  Draw draw(seed);
  parameters.for_each([&](const std::string&, auto view) {
    using T = typename decltype(view)::value_type;
    for_each_index(view.shape(),
                   [&](const auto& at) { view(at) = static_cast<T>(0.5 * draw.normal()); });
  });
}
/// check.input for each parameter and its gradient of the same name.
template <class Check, class Parameters, class Gradients>
void check_inputs(Check& check, Parameters& parameters, const Gradients& gradients) {
  parameters.for_each([&](const std::string& name, auto value) {
    constexpr int rank = decltype(value)::rank;
    gradients.for_each([&](const std::string& other, auto gradient) {
      if constexpr (rank == decltype(gradient)::rank) {
        if (name == other) check.input(name, value, gradient);
      }
    });
  });
}

}  // namespace headwise_tests
