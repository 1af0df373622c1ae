// A query that has no part in the loss has none in a gradient, whatever number it is: gradients are
// held to the bit against those that a finite query in its place gives.
#include <algorithm>
#include <cmath>
#include <limits>

#include "headwise/ops/packed_attention.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/draw.hpp"
#include "support/mask_recipes.hpp"
#include "support/poison_reach.hpp"

namespace ops_idle_queries {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {{2, 2, 1, 7, 11, 3, 5},
                                   {2, 4, 2, 49, 67, 5, 3},
                                   {1, 2, 2, 97, 131, 17, 8},
                                   {1, 2, 1, 67, 1, 4, 9},
                                   {1, 2, 1, 7, 5, 3, 0}};

/// Every third query of x has no part in the loss: d_o = 0 there.
template <class T>
void idle_thirds(Tensor4<T>& d_o) {
  for_each_index(d_o.shape(), [&](const Shape<4>& i) {
    if (i[2] % 3 == 1) d_o(i) = T(0);
  });
}
template <class T>
void poison_thirds(Tensor4<T>& q, T poison) {
  for_each_index(q.shape(), [&](const Shape<4>& i) {
    if (i[2] % 3 == 1 && (i[1] + i[2] + i[3]) % 2 == 0) q(i) = poison;
  });
}

template <class T>
std::vector<T> numbers_that_poison() {
  std::vector<T> all = poisons<T>;
  all.push_back((std::numeric_limits<T>::max)());  // scores of infinity
  return all;
}

/// What changes scores, and the gradients of all that is real-valued in it, begun with 1.
struct Learned {
  Tensor1<float> slopes, sinks, d_slopes, d_sinks, d_scale;
  Tensor2<float> table, d_table;
  AttentionOptions<float> options;

  explicit Learned(Index H)
      : slopes(H), sinks(H), d_slopes(H), d_sinks(H), d_scale(1), table({H, 5}), d_table({H, 5}) {
    for (Index h = 0; h < H; ++h) slopes(h) = 0.1f, sinks(h) = 0.2f, table(h, 1) = 0.3f;
    for (Tensor1<float>* d : {&d_slopes, &d_sinks, &d_scale}) fill(Out<float, 1>(*d), 1);
    fill(Out<float, 2>(d_table), 1);
    options.mask = causal;
    options.score = {
        .softcap = 5.0f, .alibi_slopes = slopes, .relative_bias = table, .sinks = sinks};
    options.dropout = {.rate = 0.2, .seed = 7};
  }
  ScoreGradients<float> gradients() {
    return {.d_scale = d_scale,
            .d_alibi_slopes = d_slopes,
            .d_relative_bias = d_table,
            .d_sinks = d_sinks};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a query that has no part in the loss has none in a gradient, whatever it holds",
                   "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for (const Recipe<TestType>& recipe : mask_recipes<TestType>()) {
    for (const Sizes& sizes : shapes) {
      Case<TestType> x(sizes, 1300);
      recipe.apply(x);
      idle_thirds(x.d_o);
      const Outputs<TestType> finite = run(path, x);
      const Tensor4<TestType> q = x.q;
      for (const TestType poison : numbers_that_poison<TestType>()) {
        x.q = q;
        poison_thirds(x.q, poison);
        const Outputs<TestType> y = run(path, x);
        CAPTURE(recipe.name, sizes.format(), poison, path == Path::flash);
        CHECK(same_bits(y.dq, finite.dq));
        CHECK(same_bits(y.dk, finite.dk));
        CHECK(same_bits(y.dv, finite.dv));
      }
    }
  }
}

TEST_CASE("a query that has no part in the loss has none in gradients of what changes scores",
          "[ops]") {
  Case<float> x({2, 4, 2, 49, 67, 5, 3}, 1400);
  idle_thirds(x.d_o);
  const auto flash = [&](Learned& learned) {
    Outputs<float> y = run(Path::flash, x.q, x.k, x.v, x.d_o, learned.options, {}, {});
    flash_attention_backward(x.d_o, {x.q, x.k, x.v}, y.o, y.lse, learned.options,
                             {y.dq, y.dk, y.dv, learned.gradients()});
  };
  const auto kept = [&](Learned& learned) {
    Outputs<float> y = run(Path::materialized, x.q, x.k, x.v, x.d_o, learned.options, {}, {});
    attention_backward(x.d_o, {x.q, x.k, x.v}, y.weights, learned.options,
                       {y.dq, y.dk, y.dv, learned.gradients()});
  };
  const auto check = [&](const auto& backward) {
    const Tensor4<float> q = x.q;
    Learned expected(4);
    backward(expected);
    for (const float poison : numbers_that_poison<float>()) {
      poison_thirds(x.q, poison);
      Learned learned(4);
      backward(learned);
      CAPTURE(poison);
      CHECK(bitwise_equal(learned.d_slopes, expected.d_slopes));
      CHECK(bitwise_equal(learned.d_sinks, expected.d_sinks));
      CHECK(bitwise_equal(learned.d_scale, expected.d_scale));
      CHECK(bitwise_equal(learned.d_table, expected.d_table));
      x.q = q;
    }
  };
  check(flash);
  check(kept);
}

TEMPLATE_TEST_CASE(
    "a query that has no part in the loss has none where sequences are packed or tensors of 16 "
    "bits",
    "[ops]", float, BFloat16, Float16) {
  using U = TestType;
  const Index N = 40, H = 4, G = 2, d = 5, dv = 3;
  const std::vector<Index> starts{0, 17, 17, 40};
  const auto draw = [](const Shape<3>& shape, std::uint64_t seed) {
    return convert<U>(In<float, 3>(random_tensor<float>(shape, seed)));
  };
  auto q = draw({N, H, d}, 1), d_o = draw({N, H, dv}, 4);
  const auto k = draw({N, G, d}, 2), v = draw({N, G, dv}, 3);
  for (Index i = 1; i < N; i += 3) fill(select(d_o, i), U());
  const auto backward = [&] {
    Tensor3<U> o({N, H, dv}), dq(q.shape()), dk(k.shape()), dv_of(v.shape());
    Tensor3<float> lse({N, H, 2});
    const PackedSequences<U> x{q, k, v, starts, starts};
    packed_attention_forward(x, {.mask = causal}, o, lse);
    packed_attention_backward(d_o, x, o, lse, {.mask = causal}, {dq, dk, dv_of});
    return std::tuple{std::move(dq), std::move(dk), std::move(dv_of)};
  };
  const auto [dq, dk, dv_of] = backward();
  for (Index i = 1; i < N; i += 3) {
    fill(select(q, i), convert_float<U>(std::numeric_limits<float>::quiet_NaN()));
  }
  const auto [dq_poisoned, dk_poisoned, dv_poisoned] = backward();
  CHECK(bitwise_equal(dq_poisoned, dq));
  CHECK(bitwise_equal(dk_poisoned, dk));
  CHECK(bitwise_equal(dv_poisoned, dv_of));
}

// Where all scores of a query are infinite, or all of them -infinity, its result may be a number
// all the same: a softcap bounds them, a sink takes all weight, a function or a table leaves
// nothing.
TEMPLATE_TEST_CASE("a query whose infinite scores do not show has no part in a gradient either",
                   "[ops]", float, double) {
  using T = TestType;
  const auto function =
      score_function<T>([](const auto& s, const Position&) { return s * T(0.5); });
  const Path path = GENERATE(Path::materialized, Path::flash);
  const auto change = GENERATE(as<std::string>(), "none", "softcap", "sinks", "function", "table");
  for (const Sizes& sizes : shapes) {
    Case<T> x(sizes, 1600);
    idle_thirds(x.d_o);
    for (T& number : x.k) number = std::abs(number) + T(0.1);  // of one sign, so that scores are
    Tensor1<T> sinks(sizes.H), d_scale(1);
    fill(Out<T, 1>(sinks), T(0.3));
    Tensor2<T> table({sizes.H, 5});
    AttentionOptions<T> options;
    if (change == "softcap") options.score.softcap = T(3);
    if (change == "sinks") options.score.sinks = sinks;
    if (change == "function") options.score.function = function;
    if (change == "table") options.score.relative_bias = table;
    const auto backward = [&] {
      Outputs<T> y = run(path, x.q, x.k, x.v, x.d_o, options, {}, {});
      fill(Out<T, 1>(d_scale), T(0));
      const AttentionGradients<T> to{y.dq, y.dk, y.dv, {.d_scale = d_scale}};
      if (path == Path::flash) {
        flash_attention_backward(x.d_o, {x.q, x.k, x.v}, y.o, y.lse, options, to);
      } else {
        attention_backward(x.d_o, {x.q, x.k, x.v}, y.weights, options, to);
      }
      return y;
    };
    const Outputs<T> finite = backward();
    const T expected = d_scale(0);
    for (const T poison : {std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity(),
                           std::numeric_limits<T>::quiet_NaN(), (std::numeric_limits<T>::max)(),
                           std::numeric_limits<T>::lowest()}) {
      const Tensor4<T> q = x.q;
      for_each_index(q.shape(), [&](const Shape<4>& i) {
        if (i[2] % 3 == 1) x.q(i) = poison;
      });
      const Outputs<T> y = backward();
      x.q = q;
      CAPTURE(change, sizes.format(), poison, path == Path::flash);
      CHECK(same_bits(y.dq, finite.dq));
      CHECK(same_bits(y.dk, finite.dk));
      CHECK(same_bits(y.dv, finite.dv));
      CHECK(d_scale(0) == expected);
    }
  }
}

// What is done to scores may make no numbers of those of a query that holds nothing but numbers, or
// 0 in its place.
TEMPLATE_TEST_CASE(
    "a query that has no part in the loss has none in a gradient, whatever is done to its scores",
    "[ops]", float, double) {
  using T = TestType;
  constexpr T nan = std::numeric_limits<T>::quiet_NaN(),
              infinity = std::numeric_limits<T>::infinity();
  const auto odd = score_function<T>([](const auto& s, const Position& at) {
    return at.query % 3 == 1 ? s * std::numeric_limits<T>::quiet_NaN() : s;
  });
  const auto inverse = score_function<T>(
      [](const auto& s, const Position&) { return std::remove_cvref_t<decltype(s)>(T(1)) / s; });
  const Path path = GENERATE(Path::materialized, Path::flash);
  const bool is_causal = GENERATE(false, true);
  for (const Sizes& sizes : shapes) {
    Case<T> x(sizes, 1700);
    idle_thirds(x.d_o);
    for (T& number : x.k) number = std::abs(number) + T(0.1);  // no score is 0
    for (T& number : x.q) number = std::abs(number) + T(0.1);
    const Tensor4<T> q = x.q;
    Tensor4<T> bias({sizes.B, sizes.H, sizes.L, sizes.S}), d_bias(bias.shape());
    const auto backward = [&](const ScoreFunctionRef<T>& function, T of_idle, bool holds_nan) {
      AttentionOptions<T> options{.score = {.function = function}};
      if (is_causal) options.mask.add(causal);
      for_each_index(bias.shape(), [&](const Shape<4>& i) {
        bias(i) = i[2] % 3 == 1 ? of_idle : T(0.25) * static_cast<T>(i[3] % 3);
      });
      options.mask.add(Mask::bias(bias));
      x.q = q;
      if (holds_nan) poison_thirds(x.q, nan);
      Outputs<T> y = run(path, x.q, x.k, x.v, x.d_o, options, {}, {});
      fill(Out<T, 4>(d_bias), T(0));
      const AttentionGradients<T> to{y.dq, y.dk, y.dv, {.d_biases = {d_bias}}};
      if (path == Path::flash) {
        flash_attention_backward(x.d_o, {x.q, x.k, x.v}, y.o, y.lse, options, to);
      } else {
        attention_backward(x.d_o, {x.q, x.k, x.v}, y.weights, options, to);
      }
      return std::pair{std::move(y), d_bias};
    };
    const auto check = [&](const auto& given, const auto& expected) {
      CHECK(same_bits(given.first.dq, expected.first.dq));
      CHECK(same_bits(given.first.dk, expected.first.dk));
      CHECK(same_bits(given.first.dv, expected.first.dv));
      CHECK(same_bits(given.second, expected.second));
    };
    CAPTURE(sizes.format(), path == Path::flash, is_causal);
    const auto plain = backward({}, 0, false);
    check(backward({}, nan, false), plain);
    check(backward({}, infinity, false), plain);
    check(backward(odd, 0, false), plain);
    check(backward(inverse, 0, true), backward(inverse, 0, false));
  }
}

TEMPLATE_TEST_CASE(
    "a query without a part in the loss whose values sum to infinity has none either", "[ops]",
    float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for (const Sizes& sizes : shapes) {
    Case<TestType> x(sizes, 1800);
    for (TestType& number : x.v) number = (std::numeric_limits<TestType>::max)() / 2;
    fill(Out<TestType, 4>(x.d_o), TestType(0));
    const Outputs<TestType> y = run(path, x);
    CAPTURE(sizes.format(), path == Path::flash);
    for (const Tensor4<TestType>* d : {&y.dq, &y.dk, &y.dv}) {
      CHECK(std::all_of(d->begin(), d->end(), [](TestType n) { return n == 0; }));
    }
  }
}

TEST_CASE("a query that has a part in the loss shows what it holds", "[ops]") {
  const Path path = GENERATE(Path::materialized, Path::flash);
  Case<double> x({1, 2, 1, 7, 11, 3, 5}, 1500);
  x.q(0, 1, 2, 0) = std::numeric_limits<double>::quiet_NaN();
  const Outputs<double> y = run(path, x);
  for (const Tensor4<double>* d : {&y.dk, &y.dv}) {
    CHECK(std::any_of(d->begin(), d->end(), [](double n) { return !std::isfinite(n); }));
  }
}

}  // namespace ops_idle_queries
