// Biases of pairs in backward: one whose rows are dense is added, and its gradient summed, by whole
// vectors on the way, any other in passes of its own. Both are one function, to the bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "headwise/ops/flash_attention.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace ops_bias_rows {

using namespace headwise_tests;

namespace {

/// The gradients of attention with this bias, which holds `before` as its own; `apart`: its rows
/// and those of its gradient have a gap behind each number.
template <class T>
struct Gradients {
  Tensor4<T> dq, dk, dv, d_bias;

  Gradients(Case<T> x, const Tensor4<T>& bias, const Tensor4<T>& before, bool apart,
            const Context& context)
      : dq(x.q.shape()), dk(x.k.shape()), dv(x.v.shape()), d_bias(contiguous(before)) {
    const Shape<4> shape = bias.shape();
    const Shape<4> wide{shape[0], shape[1], shape[2], 2 * shape[3]};
    Tensor4<T> values(wide), sums(wide);
    const Shape<4> steps{wide[1] * wide[2] * wide[3], wide[2] * wide[3], wide[3], 2};
    const In<T, 4> spread(values.data(), shape, steps);
    const InOut<T, 4> gradient(sums.data(), shape, steps);
    for_each_index(shape, [&](const Shape<4>& at) {
      values(at[0], at[1], at[2], 2 * at[3]) = bias(at);
      gradient(at) = before(at);
    });
    x.options.mask.add(Mask::bias(apart ? spread : In<T, 4>(bias)));
    Tensor4<T> o(x.d_o.shape()), lse({x.sizes.B, x.sizes.H, x.sizes.L, 2});
    flash_attention_forward(x.q, x.k, x.v, x.options, o, lse, context);
    ScoreGradients<T> to;
    to.d_biases[0] = apart ? gradient : InOut<T, 4>(d_bias);
    flash_attention_backward(x.d_o, {x.q, x.k, x.v}, o, lse, x.options, {dq, dk, dv, to}, context);
    if (apart) copy(In<T, 4>(gradient), Out<T, 4>(d_bias));
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a bias whose rows are dense has the bits of one whose numbers lie apart",
                   "[ops]", float, double) {
  using T = TestType;
  constexpr Index keys = TileSizes::keys;
  ThreadPool pool(2);
  const T scale = GENERATE(T(0.25), T(0.7));
  for (const Index S : {Index{48}, Index{keys + 67}, Index{2 * keys}}) {
    for (const int kind : {0, 1, 2, 3}) {
      Case<T> x(Sizes{1, 2, 1, 141, S, 5, 3}, 900);
      x.options.scale = scale;
      if (kind == 1) x.causal();
      if (kind == 2) x.options.dropout = {.rate = 0.3, .seed = 4};
      if (kind == 3) x.window(70);
      for (Index c = 0; c < 3; ++c) x.d_o(0, 1, 17, c) = 0;  // a query that has no part in the loss
      auto bias = x.numbers.template tensor<T>(Shape{Index{1}, Index{2}, Index{141}, S});
      for (const bool hides : {false, true}) {
        for_each_index(bias.shape(), [&](const Shape<4>& at) {
          const bool some = (at[2] * 5 + at[3] * 3 + at[1]) % 31 == 0;
          const bool all = at[2] == 40 || at[3] == 20;  // of a query, and of a key
          if (hides && (some || all)) bias(at) = -std::numeric_limits<T>::infinity();
        });
        if (hides) x.k(0, 0, 20, 1) = x.v(0, 0, 20, 2) = std::numeric_limits<T>::quiet_NaN();
        const auto before = x.numbers.template tensor<T>(bias.shape());
        const Gradients<T> dense(x, bias, before, false, {.executor = pool});
        const Gradients<T> apart(x, bias, before, true, {.executor = pool});
        CAPTURE(S, kind, hides, scale);
        CHECK(same_bits(dense.dq, apart.dq));
        CHECK(same_bits(dense.dk, apart.dk));
        CHECK(same_bits(dense.dv, apart.dv));
        CHECK(same_bits(dense.d_bias, apart.d_bias));
        for (const auto* d : {&dense.dq, &dense.dk, &dense.dv, &dense.d_bias}) {
          CHECK(std::all_of(d->begin(), d->end(), [](T value) { return std::isfinite(value); }));
        }
      }
    }
  }
}

}  // namespace ops_bias_rows
