// What the tests of cross-entropy call: numbers, targets, and both directions at once.
#pragma once

#include "headwise/ops/cross_entropy.hpp"
#include "headwise/tensor/philox.hpp"

namespace headwise_tests {

using namespace headwise;

using Targets = Tensor1<std::int64_t>;
inline constexpr std::int64_t ignored = -100;

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed, double scale = 1) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(scale * philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

/// A target for each row, row 2 of every 5 ignored.
inline Targets some_targets(Index N, Index V) {
  Targets targets(N);
  for (Index n = 0; n < N; ++n) targets(n) = n % 5 == 2 ? ignored : (7 * n + 3) % V;
  return targets;
}

template <class T>
struct Result {
  T loss;
  Tensor1<T> lse;
  Tensor2<T> d_logits;
};

template <class T, class I>
Result<T> run(In<T, 2> logits, In<I, 1> targets, const CrossEntropyOptions& options = {},
              T d_loss = T(1), const Context& context = {}) {
  Result<T> result{T(0), Tensor1<T>(logits.extent(0)), Tensor2<T>(logits.shape())};
  result.loss = cross_entropy_forward(logits, targets, options, result.lse, context);
  cross_entropy_backward(d_loss, logits, targets, result.lse, options, result.d_logits, context);
  return result;
}
template <class T>
Result<T> run(const Tensor2<T>& logits, const Targets& targets,
              const CrossEntropyOptions& options = {}) {
  return run<T, std::int64_t>(In<T, 2>(logits), targets, options);
}

}  // namespace headwise_tests
