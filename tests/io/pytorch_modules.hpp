// Modules and files of PyTorch's weights for the tests of both: numbers in every parameter, and
// which of them differ in a bit.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "headwise/io/pytorch.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;
using Options = MultiHeadAttentionOptions;

inline SafetensorsFile data_file(const std::string& name) {
  return SafetensorsFile::read(std::string(HEADWISE_TEST_DATA "/") + name + ".safetensors");
}

inline SafetensorsFile reread(const SafetensorsWriter& writer) {
  return SafetensorsFile::parse(writer.bytes());
}

/// Other numbers in every parameter, biases too.
template <class T>
MultiHeadAttention<T> scrambled(const Options& options, int start) {
  MultiHeadAttention<T> module(options);
  int n = start;
  module.parameters().for_each([&](const std::string&, auto view) {
    for_each_index(view.shape(), [&](const auto& at) {
      n = (n * 733 + 17) % 99991;
      view(at) = T(n % 2 == 0 ? n : -n) / T(4093);
    });
  });
  return module;
}

/// Every parameter's shape and bits.
template <class Module>
std::map<std::string, std::string> contents(const Module& module) {
  std::map<std::string, std::string> all;
  module.parameters().for_each([&](const std::string& name, const auto& view) {
    std::string& text = all[name] = view.shape().format();
    for_each_index(view.shape(), [&](const auto& at) {
      text.append(reinterpret_cast<const char*>(&view(at)), sizeof view(at));
    });
  });
  return all;
}

/// The names of the parameters that differ in a bit; empty if none does.
template <class Module>
std::string difference(const Module& a, const Module& b) {
  std::string names;
  const auto left = contents(a), right = contents(b);
  if (left.size() != right.size()) names = "one has more parameters ";
  for (const auto& [name, content] : left) {
    if (!right.contains(name) || right.at(name) != content) names += name + " ";
  }
  return names;
}

/// in_proj_weight [3 D, D], out_proj.weight [D, D] and both biases, each element its number.
inline SafetensorsWriter square_state(Index D, const std::string& prefix = "") {
  SafetensorsWriter writer;
  double n = 0;
  const auto add = [&](const char* name, auto tensor) {
    for (double& x : tensor) x = ++n;
    writer.add(prefix + name, tensor);
  };
  add("in_proj_weight", Tensor2<double>(Shape{3 * D, D}));
  add("in_proj_bias", Tensor1<double>(Shape{3 * D}));
  add("out_proj.weight", Tensor2<double>(Shape{D, D}));
  add("out_proj.bias", Tensor1<double>(Shape{D}));
  return writer;
}

inline const Options biased{
    .d_model = 4, .num_heads = 2, .q_bias = true, .k_bias = true, .v_bias = true, .o_bias = true};

inline Options with(const std::function<void(Options&)>& change) {
  Options options = biased;
  change(options);
  return options;
}

}  // namespace headwise_tests
