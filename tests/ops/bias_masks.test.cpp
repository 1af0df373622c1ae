// Biases that stand for masks, 0 here and -infinity there: they have the bits of a keep mask of the
// same pairs, and what they hide whole is not multiplied.
#include <array>
#include <limits>
#include <vector>

#include "headwise/runtime/tally.hpp"
#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"

namespace ops_bias_masks {

using namespace headwise_tests;

namespace {

constexpr Sizes sizes{1, 2, 1, 2 * TileSizes::queries + 13, 2 * TileSizes::keys + 67, 5, 3};
constexpr Index past = sizes.S - sizes.L;

/// Pairs that masks leave, as users write them into a bias.
struct Pattern {
  const char* name;
  bool of_keys;  // the same for all queries: [1, 1, 1, S]
  bool (*sees)(Index i, Index j);
};
const Pattern patterns[] = {
    {"triangle", false, [](Index i, Index j) { return j <= i + past; }},
    {"band", false, [](Index i, Index j) { return j <= i + past && j > i + past - 70; }},
    {"later keys", false, [](Index i, Index j) { return j > i + past; }},
    {"blocks", false,
     [](Index i, Index j) { return (i / TileSizes::queries + j / TileSizes::keys) % 3 == 0; }},
    {"nothing", false, [](Index, Index) { return false; }},
    {"padding behind", true, [](Index, Index j) { return j < TileSizes::keys + 5; }},
    {"padding before", true, [](Index, Index j) { return j >= TileSizes::keys + 5; }},
    {"all", true, [](Index, Index) { return true; }},
};

/// 0 where the pattern sees, -infinity elsewhere: rows of their own or one for all queries, numbers
/// side by side or `apart`.
template <class T>
class BiasOf {
 public:
  BiasOf(const Pattern& pattern, bool of_keys, Index apart)
      : of_keys_(of_keys), apart_(apart), numbers_({of_keys ? 1 : sizes.L, apart * sizes.S}) {
    fill(Out<T, 2>(numbers_), T(3));
    for (Index i = 0; i < numbers_.extent(0); ++i) {
      for (Index j = 0; j < sizes.S; ++j) {
        numbers_(i, apart * j) = pattern.sees(i, j) ? T(0) : -std::numeric_limits<T>::infinity();
      }
    }
  }
  In<T, 4> view() const {
    const Index row = apart_ * sizes.S;
    return {numbers_.data(), {1, 1, of_keys_ ? 1 : sizes.L, sizes.S}, {row, row, row, apart_}};
  }

 private:
  bool of_keys_;
  Index apart_;
  Tensor<T, 2> numbers_;
};

/// What stands beside the bias.
template <class T>
struct Other {
  const char* name;
  void (*add)(Case<T>&);
};
template <class T>
const std::vector<Other<T>>& others() {
  static const std::vector<Other<T>> all = {
      {"nothing", [](Case<T>&) {}},
      {"causal", [](Case<T>& x) { x.causal(); }},
      {"dropout", [](Case<T>& x) { x.dropout(0.3); }},
      {"another bias",
       [](Case<T>& x) {
         x.bias(Shape{1, 2, sizes.L, sizes.S}, 0.1, T(0));
       }},
      {"softcap, distances, sinks", [](Case<T>& x) { x.softcap(3), x.alibi(), x.sinks(); }},
      {"a function", [](Case<T>& x) { x.bend(); }},
  };
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("a bias of 0 and -infinity has the bits of a keep mask of its pairs", "[ops]",
                   float, double) {
  using T = TestType;
  ThreadPool pool(2);
  const BiasOf<T> zeros({"all", false, [](Index, Index) { return true; }}, false, 1);
  for (const Pattern& pattern : patterns) {
    Tensor<bool, 4> keep({1, 1, sizes.L, sizes.S});
    for_each_index(keep.shape(),
                   [&](const Shape<4>& at) { keep(at) = pattern.sees(at[2], at[3]); });
    for (const Other<T>& other : others<T>()) {
      Case<T> expected(sizes, 7);
      other.add(expected);
      const Case<T> beside = expected;
      expected.options.mask.add(Mask::keep(keep));
      expected.options.mask.add(Mask::bias(zeros.view()));
      const auto right = run(Path::flash, expected, {.executor = pool});
      for (const Index apart : {1, 2}) {
        for (const bool of_keys : {false, true}) {
          if (of_keys && !pattern.of_keys) continue;
          const BiasOf<T> bias(pattern, of_keys, apart);
          Case<T> x = beside;
          x.options.mask.add(Mask::bias(bias.view()));
          if (pattern.of_keys && !pattern.sees(0, 0)) {  // where nobody sees, NaN may stand
            x.k(0, 0, 1, 2) = x.v(0, 0, 3, 1) = std::numeric_limits<T>::quiet_NaN();
          }
          CAPTURE(pattern.name, other.name, apart, of_keys);
          CHECK(bit_difference(run(Path::flash, x, {.executor = pool}), right) == "");
        }
      }
    }
  }
}

TEST_CASE("tiles that a bias hides whole are not multiplied, forward or backward", "[ops]") {
  const auto executed = [](const Pattern& pattern, bool of_keys) {
    const BiasOf<float> bias(pattern, of_keys, 1);
    Case<float> x(sizes, 7);
    x.options.mask.add(Mask::bias(bias.view()));
    FlopTally forward, backward;
    (void)run<float>(Path::flash, x.q, x.k, x.v, x.d_o, x.options, {.flops = &forward},
                     {.flops = &backward});
    return std::array{forward.executed.load(), backward.executed.load()};
  };
  const auto all = executed(patterns[7], false), shared = executed(patterns[7], true);
  for (const Pattern& pattern : patterns) {
    std::int64_t seen = 0;
    for (Index i = 0; i < sizes.L; ++i) {
      for (Index j = 0; j < sizes.S; ++j) seen += pattern.sees(i, j) ? 1 : 0;
    }
    if (2 * seen > sizes.L * sizes.S) continue;
    const auto some = executed(pattern, false);
    CAPTURE(pattern.name);
    for (std::size_t n = 0; n < 2; ++n) CHECK(some[n] < all[n] * 9 / 10);
  }
  CHECK(shared[0] < all[0]);  // 0 is not added either
  CHECK(shared[1] == all[1]);
}

TEST_CASE("a bias of 0 is added before a function that tells -0 from 0", "[ops]") {
  const auto sign = score_function<float>([](auto s, const Position&) { return tanh(1 / s); });
  Case<float> x(sizes, 7);
  for_each_index(x.q.shape(), [&](const Shape<4>& at) {
    if (at[2] % 2 == 0) x.q(at) = 0;
  });
  x.options.scale = -0.5f;  // of which 0 makes -0
  x.options.score.function = sign;
  const auto sums_of = [&](bool of_keys) {
    const BiasOf<float> bias(patterns[7], of_keys, 1);
    Case<float> biased = x;
    biased.options.mask.add(Mask::bias(bias.view()));
    Tensor4<float> o(x.d_o.shape()), lse({1, sizes.H, sizes.L, 2});
    flash_attention_forward(x.q, x.k, x.v, biased.options, o, lse);
    return lse;
  };
  CHECK(same_bits(sums_of(true), sums_of(false)));
}

TEST_CASE("what a bias hides adds nothing to its gradient", "[ops]") {
  for (const Pattern& pattern : patterns) {
    const BiasOf<double> bias(pattern, false, 1);
    Case<double> x(sizes, 7);
    x.options.mask.add(Mask::bias(bias.view()));
    Tensor4<double> o(x.d_o.shape()), lse({1, sizes.H, sizes.L, 2});
    Tensor4<double> dq(x.q.shape()), dk(x.k.shape()), dv(x.v.shape());
    flash_attention_forward(x.q, x.k, x.v, x.options, o, lse);
    Tensor4<double> d_bias({1, 1, sizes.L, sizes.S});
    fill(Out<double, 4>(d_bias), 1.0);
    ScoreGradients<double> to;
    to.d_biases[0] = d_bias;
    flash_attention_backward(x.d_o, {x.q, x.k, x.v}, o, lse, x.options, {dq, dk, dv, to});
    Index seen = 0, changed = 0, changed_behind = 0;
    for_each_index(d_bias.shape(), [&](const Shape<4>& at) {
      const bool sees = pattern.sees(at[2], at[3]), same = d_bias(at) == 1.0;
      seen += sees, changed += sees && !same, changed_behind += !sees && !same;
    });
    CAPTURE(pattern.name);
    CHECK(changed_behind == 0);
    CHECK(changed >= seen - 1);  // of a query that sees one key alone it is 0
  }
}

}  // namespace ops_bias_masks
