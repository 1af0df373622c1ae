// Why scores are divided by sqrt(d): the dot product of random vectors spreads like sqrt(d), and a
// softmax of widely spread scores is almost one-hot, with almost no gradient.
#include <cmath>
#include <cstdio>
#include <vector>

#include "headwise/headwise.hpp"

using namespace headwise;

int main() {
  constexpr Index samples = 2000;
  bool right = true;
  std::printf("     d   std(q.k)   sqrt(d)   std(q.k / sqrt(d))   largest weight of 8 keys\n");
  std::printf("                                                   raw        scaled\n");
  for (const Index d : {8, 64, 512, 2048}) {
    std::uint64_t n = 0;
    const auto key = philox_key(static_cast<std::uint64_t>(d));
    Tensor2<double> dots({samples / 8, 8});
    double squares = 0;
    for (double& dot : dots) {
      for (Index t = 0; t < d; ++t, n += 2)
        dot += philox_normal(key, n) * philox_normal(key, n + 1);
      squares += dot * dot / samples;
    }
    const double spread = std::sqrt(squares), root = std::sqrt(static_cast<double>(d));
    const auto mean_greatest_weight = [&](double factor) {
      Tensor2<double> weights = dots;
      for (double& w : weights) w *= factor;
      softmax_forward(In<double, 2>(weights), weights);
      double sum = 0;
      for (Index i = 0; i < weights.extent(0); ++i) {
        sum += *std::max_element(&weights(i, 0), &weights(i, 0) + 8);
      }
      return sum / static_cast<double>(weights.extent(0));
    };
    std::printf("%6td %10.2f %9.2f %20.3f %11.3f %11.3f\n", d, spread, root, spread / root,
                mean_greatest_weight(1.0), mean_greatest_weight(1.0 / root));
    right = right && std::abs(spread / root - 1) < 0.05;
  }
  return right ? 0 : 1;
}
