// A call of MultiHeadAttention on a path, with a mask or without.
#pragma once

#include "headwise/nn/multi_head_attention_options.hpp"

namespace headwise_tests {

using namespace headwise;

template <class T>
MultiHeadAttentionCall<T> call_of(Path path, const AttentionMask<T>& mask = {}) {
  MultiHeadAttentionCall<T> call;
  call.path = path;
  call.mask = mask;
  return call;
}

}  // namespace headwise_tests
