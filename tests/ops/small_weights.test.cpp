// Weights that attention counts as 0: those that would make denormal products of values or
// flows of usual size, which processors take many times as long for.
#include <cmath>
#include <numbers>

#include "headwise/ops/attention.hpp"
#include "headwise/ops/flash_attention.hpp"
#include "support/catch.hpp"

namespace ops_small_weights {

using namespace headwise;

/// Outputs of one query that sees two keys: one of score 0 and value 0, and another.
template <class T>
struct Outputs {
  T kept, flash, weight;
};
template <class T>
Outputs<T> outputs(T score, T value) {
  Tensor<T, 4> q({1, 1, 1, 1}), k({1, 1, 2, 1}), v(k.shape()), p({1, 1, 1, 2}), o(q.shape()),
      flash(q.shape()), lse({1, 1, 1, 2});
  q(0, 0, 0, 0) = T(1);
  k(0, 0, 1, 0) = score;
  v(0, 0, 1, 0) = value;
  attention_forward<T>(q, k, v, {}, p, o);
  flash_attention_forward<T>(q, k, v, {}, flash, lse);
  return {o(0, 0, 0, 0), flash(0, 0, 0, 0), p(0, 0, 0, 1)};
}

TEMPLATE_TEST_CASE("a weight below 2^-64 of the greatest, 2^-512 in double, counts as 0", "[ops]",
                   float, double) {
  using T = TestType;
  const T least = sizeof(T) == 4 ? -64 : -512, unit = std::numbers::ln2_v<T>;
  const T large = std::exp2(-least - 4), near = 256 * std::numeric_limits<T>::epsilon();
  const auto above = outputs<T>((least + 1) * unit, large);
  CHECK(std::abs(above.kept - std::exp2(T(-3))) <= near);
  CHECK(std::abs(above.flash - std::exp2(T(-3))) <= near);
  CHECK(above.weight > 0);
  const auto below = outputs<T>((least - 1) * unit, large);
  CHECK(below.kept == 0);
  CHECK(below.flash == 0);
  CHECK(below.weight == 0);
}

}  // namespace ops_small_weights
