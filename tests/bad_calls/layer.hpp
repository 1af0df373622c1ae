// What optimisers and checkpoints are called with.
#pragma once

#include "support/refusal_rules.hpp"

namespace headwise_tests {

/// A linear layer of 3 to 2 and its gradients.
template <class T = double>
struct Layer {
  Linear<T> linear{3, 2};
  LinearParameters<T> gradients = linear.zero_gradients();
  ParameterList<T> list;
  Layer() { collect(list, "", linear.parameters(), gradients); }
};

}  // namespace headwise_tests
