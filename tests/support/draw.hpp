// Random numbers and tensors of them, drawn by a seed alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise_tests {

using namespace headwise;

/// Random numbers, the same on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : key_(philox_key(seed, 0x64726177u, 0)) {}

  double unit() {
    const auto words = philox({static_cast<std::uint32_t>(count_++), 0, 1, 0}, key_);
    return unit_interval(words[0], words[1]);
  }
  Index between(Index low, Index high) {
    return std::min(high, low + static_cast<Index>(unit() * static_cast<double>(high - low + 1)));
  }
  bool coin(double heads = 0.5) { return unit() <= heads; }
  double normal() { return philox_normal(key_, count_++); }

  template <class T, int R>
  Tensor<T, R> tensor(const Shape<R>& shape) {
    Tensor<T, R> x(shape);
    for (T& value : x) value = static_cast<T>(normal());
    return x;
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint64_t count_ = 0;
};

template <class T, int R>
Tensor<T, R> random_tensor(const Shape<R>& shape, std::uint64_t seed) {
  return Draw(seed).tensor<T>(shape);
}

}  // namespace headwise_tests
