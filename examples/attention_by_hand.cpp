// Attention written out with three small matrices, beside the library's own.
#include <cmath>
#include <iostream>

#include "headwise/headwise.hpp"

using namespace headwise;

int main() {
  const Tensor2<double> q({2, 2}, {1, 0, 0, 1});        // two queries
  const Tensor2<double> k({3, 2}, {1, 0, 0, 1, 1, 1});  // three keys
  const Tensor2<double> v({3, 2}, {1, 2, 3, 4, 5, 6});  // what each of them has to say

  // How well each query matches each key, as weights that sum to 1, then the mixture of values.
  const EigenMatrix<double> scores = eigen_map(q) * eigen_map(k).transpose() / std::sqrt(2.0);
  Tensor2<double> weights({2, 3});
  softmax_forward(from_eigen(scores), weights);
  const EigenMatrix<double> context = eigen_map(weights) * eigen_map(v);
  std::cout << "weights\n" << weights << "\ncontext\n" << context << "\n";

  // The same in one call: [batch, heads, length, width] with one batch element and one head.
  const auto head = [](const Tensor2<double>& m) {
    return In<double, 4>(m.data(), {1, 1, m.extent(0), m.extent(1)});
  };
  Tensor4<double> p({1, 1, 2, 3}), o({1, 1, 2, 2});
  attention_forward(head(q), head(k), head(v), {}, p, o);
  const bool equal = (eigen_map(select(select(o, 0), 0)) - context).norm() < 1e-14;
  std::cout << "attention_forward\n" << o << (equal ? "\nthe same\n" : "\nNOT the same\n");
  return equal ? 0 : 1;
}
