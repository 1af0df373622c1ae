// A score function as a user writes it, with two parameters that are learned, told apart by batch
// element, head, query and key.
#pragma once

#include <array>
#include <cmath>

#include "headwise/kernels/score_function.hpp"

namespace headwise_tests {

using namespace headwise;

/// (w0 + b / 8) s + w1 cos(s) + (h + 1) (i - j) / 64; its constants are exact in every type.
struct BentScore {
  static float share(const Position& at) { return static_cast<float>(at.batch) / 8; }
  static float bias(const Position& at) {
    return static_cast<float>((at.head + 1) * (at.query - at.key)) / 64;
  }

  template <class S>
  S operator()(const S& s, const Position& at, const std::array<S, 2>& w) const {
    using std::cos;
    return (w[0] + S(share(at))) * s + w[1] * cos(s) + S(bias(at));
  }
};

template <class T>
using BentFunction = ScoreFunction<T, 2, BentScore>;

}  // namespace headwise_tests
