// Tensors of floats in 16 bits, and back, number by number.
#pragma once

#include "headwise/tensor/float16.hpp"
#include "headwise/tensor/tensor.hpp"

namespace headwise_tests {

using namespace headwise;

/// x rounded to U, or the numbers of x as floats.
template <class To, class From, int R>
Tensor<To, R> converted(const Tensor<From, R>& x) {
  Tensor<To, R> y(x.shape());
  for (Index n = 0; n < x.size(); ++n) y.data()[n] = convert_float<To>(x.data()[n]);
  return y;
}

}  // namespace headwise_tests
