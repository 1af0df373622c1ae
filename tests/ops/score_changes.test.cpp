// What changes scores, softcap, biases by distance, sinks, against the oracle on both paths: the
// output, the gradients of queries, keys and values, and those of what is learned.
#include <cmath>
#include <limits>

#include "headwise/runtime/thread_pool.hpp"
#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/score_tensors.hpp"

namespace ops_score_changes {

using namespace headwise_tests;

namespace {

// As for masks: 1, primes, next to vectors and panels, more than one block of queries and of keys.
const std::vector<Sizes> shapes = {
    {1, 1, 1, 1, 1, 1, 1},    {3, 4, 2, 7, 5, 3, 2},     {2, 3, 1, 11, 13, 5, 7},
    {3, 2, 2, 1, 67, 4, 9},   {2, 2, 1, 47, 65, 8, 17},  {2, 2, 2, 49, 63, 17, 8},
    {1, 1, 1, 131, 67, 5, 3}, {1, 2, 2, 50, 193, 3, 16}, beyond_tiles,
};

template <class T>
std::vector<Recipe<T>> score_recipes() {
  using C = Case<T>&;
  constexpr T hidden = -std::numeric_limits<T>::infinity();
  return {
      {"softcap", [](C c) { c.softcap(1.5); }},
      {"softcap that hardly caps", [](C c) { c.softcap(50); }},
      {"alibi", [](C c) { c.alibi(); }},
      {"relative bias", [](C c) { c.relative(9, false); }},
      {"relative bias of reach 0, shared", [](C c) { c.relative(0, true); }},
      {"relative bias beyond all distances", [](C c) { c.relative(500, false); }},
      {"sinks", [](C c) { c.sinks(); }},
      {"causal softcap", [](C c) { c.causal(), c.softcap(2); }},
      {"causal alibi, sinks", [](C c) { c.causal(), c.alibi(), c.sinks(); }},
      {"window, relative bias, lengths",
       [](C c) { c.window(17), c.relative(20, true), c.key_lengths(); }},
      {"learned bias [B, H, L, S], causal",
       [](C c) {
         c.bias(Shape{c.sizes.B, c.sizes.H, c.sizes.L, c.sizes.S}), c.causal();
       }},
      {"learned bias [1, 1, L, S]",
       [](C c) {
         c.bias(Shape{1, 1, c.sizes.L, c.sizes.S});
       }},
      {"learned biases [B, 1, 1, S] and [1, H, L, 1], sinks",
       [](C c) {
         c.bias(Shape{c.sizes.B, 1, 1, c.sizes.S}), c.bias(Shape{1, c.sizes.H, c.sizes.L, 1});
         c.sinks();
       }},
      {"learned bias [1, 1, L, 1], sinks",
       [](C c) {
         c.bias(Shape{1, 1, c.sizes.L, 1}), c.sinks();
       }},
      {"learned biases [1, H, 1, 1] and [B, H, 1, 1]",
       [](C c) {
         c.bias(Shape{1, c.sizes.H, 1, 1}), c.bias(Shape{c.sizes.B, c.sizes.H, 1, 1});
       }},
      {"four learned biases, each of a shape of its own, causal",
       [](C c) {
         c.causal(), c.bias(Shape{c.sizes.B, c.sizes.H, c.sizes.L, c.sizes.S});
         c.bias(Shape{1, c.sizes.H, c.sizes.L, 1}), c.bias(Shape{c.sizes.B, 1, 1, c.sizes.S});
         c.bias(Shape{1, c.sizes.H, c.sizes.L, c.sizes.S});
       }},
      {"all at once",
       [=](C c) {
         c.causal(), c.window(61), c.key_lengths(), c.square(true), c.scale(-0.3), c.softcap(3);
         c.alibi(), c.relative(7, false), c.sinks(), c.dropout(0.3);
         c.bias(Shape{1, c.sizes.H, c.sizes.L, c.sizes.S}, 0.2, hidden);
       }},
  };
}

/// The gradients of all that a case has, each beginning with 1: they are added to.
template <class T>
struct Learned : ScoreTensors<T> {
  explicit Learned(const AttentionOptions<T>& options) {
    const ScoreOptions<T>& score = options.score;
    this->scale = Tensor<T, 1>(Shape{1});
    if (!score.alibi_slopes.absent()) this->slopes = Tensor<T, 1>(score.alibi_slopes.shape());
    if (!score.sinks.absent()) this->sinks = Tensor<T, 1>(score.sinks.shape());
    const auto& values = score.relative_bias;
    if (!values.absent()) this->table = Tensor<T, 2>(values.shape());
    for (const auto& bias : options.mask.biases()) this->biases.emplace_back(bias.values.shape());
    this->for_each([](const char*, auto& x) { std::fill(x.begin(), x.end(), T(1)); });
  }
};

/// What the definitions give for them, less the 1 that they begin with: sums over the flows of the
/// oracle.
struct ExpectedLearned {
  Field scale{1}, slopes, sinks, table;
  std::vector<Field> biases;

  template <class T>
  ExpectedLearned(const Case<T>& x, const OracleResult& y) : slopes(x.sizes.H), sinks(x.sizes.H) {
    const Index B = x.sizes.B, H = x.sizes.H, L = x.sizes.L, S = x.sizes.S;
    const auto& values = x.options.score.relative_bias;
    const Index width = values.extent(1), reach = (width - 1) / 2;
    table = Field(values.size());
    for (const auto& bias : x.options.mask.biases()) biases.emplace_back(bias.values.size());
    for_each_index(Shape{B, H, L, S}, [&](const Shape<4>& at) {
      const Index h = at[1], n = ((at[0] * H + h) * L + at[2]) * S + at[3];
      const auto add = [&](Field& to, Index m, Real factor) {
        to.add(m, y.flow[n] * factor, std::abs(factor) * y.flow.sums[static_cast<std::size_t>(n)]);
      };
      const auto u = static_cast<std::size_t>(n);
      scale.add(0, y.scaled_flow[n] * y.products[n], y.scaled_flow.sums[u] * y.products.sums[u]);
      const Index distance = at[3] - at[2] - (S - L);
      add(slopes, h, -static_cast<Real>(std::abs(distance)));
      if (width > 0) {
        const Index entry = std::max(-reach, std::min(reach, distance)) + reach;
        add(table, (values.extent(0) == 1 ? 0 : h) * width + entry, 1);
      }
      std::size_t number = 0;
      for (const auto& bias : x.options.mask.biases()) {
        const Shape<4>& shape = bias.values.shape();
        Index m = 0;
        for (int r = 0; r < 4; ++r) m = m * shape[r] + std::min(at[r], shape[r] - 1);
        add(biases[number++], m, 1);
      }
    });
    for (Index row = 0; row < B * H * L; ++row) {
      sinks.add(row / L % H, y.sink_flow[row], y.sink_flow.sums[static_cast<std::size_t>(row)]);
    }
  }
};

/// Forward and backward with every gradient asked for.
template <class T>
Outputs<T> run_learned(Path path, const Case<T>& x, Learned<T>& learned,
                       const Context& context = {}) {
  Outputs<T> y = run(path, x, context);
  const AttentionGradients<T> to{y.dq, y.dk, y.dv, learned.gradients()};
  if (path == Path::materialized) {
    attention_backward<T>(x.d_o, {x.q, x.k, x.v}, y.weights, x.options, to, context);
  } else {
    flash_attention_backward<T>(x.d_o, {x.q, x.k, x.v}, y.o, y.lse, x.options, to, context);
  }
  return y;
}

/// What of the learned gradients is not the oracle's. The tolerance is that of `disagreement`, with
/// the number of pairs as the longest sum.
template <class T>
std::string disagreement(Learned<T>& got, const ExpectedLearned& expected,
                         const OracleResult& oracle, const Sizes& sizes) {
  const Index n = sizes.B * sizes.H * sizes.L * sizes.S;
  const Real tolerance = 4 * Real{std::numeric_limits<T>::epsilon()} *
                         (std::sqrt(static_cast<Real>(n)) + oracle.condition);
  std::ostringstream text;
  const auto compare = [&](const char* name, auto& x, const Field& y) {
    if (x.absent()) return;
    for (T& value : x) value -= T(1);
    const Real error = relative_error(In<T, std::decay_t<decltype(x)>::rank>(x), y);
    // 1 was added to what is compared: its rounding is that of a term of size 1.
    const Real most = tolerance + std::numeric_limits<T>::epsilon() * 2 / y.size();
    if (!(error <= most)) text << name << " is off by " << error << " > " << most << "; ";
  };
  compare("d_scale", got.scale, expected.scale);
  compare("d_alibi_slopes", got.slopes, expected.slopes);
  compare("d_sinks", got.sinks, expected.sinks);
  compare("d_relative_bias", got.table, expected.table);
  for (std::size_t m = 0; m < got.biases.size(); ++m) {
    compare("d_bias", got.biases[m], expected.biases[m]);
  }
  return text.str();
}

}  // namespace

TEMPLATE_TEST_CASE("both attentions equal the oracle for all that changes scores", "[ops]", float,
                   double) {
  std::uint64_t seed = 700;
  for (const Recipe<TestType>& recipe : score_recipes<TestType>()) {
    for (const Sizes& sizes : shapes) {
      Case<TestType> x(sizes, ++seed);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format(), seed);
      const OracleResult expected = oracle_attention(x.problem());
      const ExpectedLearned expected_learned(x, expected);
      for (const Path path : {Path::materialized, Path::flash}) {
        CAPTURE(path == Path::flash);
        Learned<TestType> learned(x.options);
        CHECK(disagreement(run_learned(path, x, learned), expected, x.sizes) == "");
        CHECK(disagreement(learned, expected_learned, expected, x.sizes) == "");
      }
    }
  }
}

TEMPLATE_TEST_CASE("a query that sees no key gives 0 whatever its sink holds", "[ops]", float,
                   double) {
  using T = TestType;
  constexpr T infinite = std::numeric_limits<T>::infinity();
  const Tensor2<bool> pairs({5, 7});  // none is kept
  const std::vector<Index> no_keys{0};
  for (const T sink : {std::numeric_limits<T>::quiet_NaN(), infinite, -infinite, T(3)}) {
    const Tensor1<T> sinks(Shape{2}, {sink, sink});
    for (const bool by_pairs : {false, true}) {
      for (const Index L : {1, 5}) {  // few queries go another way
        const Tensor4<T> q({1, 2, L, 4}), k({1, 2, 7, 4}), v({1, 2, 7, 3});
        Tensor4<T> o({1, 2, L, 3}), lse({1, 2, L, 2}), weights({1, 2, L, 7});
        AttentionOptions<T> options{.score = {.sinks = sinks}};
        options.mask = by_pairs ? AttentionMask<T>(Mask::keep(slice(pairs, 0, 0, L)))
                                : AttentionMask<T>(Mask::key_lengths(no_keys));
        CAPTURE(static_cast<double>(sink), by_pairs, L);
        fill(o, T(1));
        flash_attention_forward(q, k, v, options, o, lse);
        for (const T& x : o) CHECK(x == T(0));
        for (Index i = 0; i < L; ++i) CHECK(lse(0, 1, i, 0) == -infinite);
        fill(o, T(1));
        attention_forward(q, k, v, options, weights, o);
        for (const T& x : o) CHECK(x == T(0));
      }
    }
  }
}

TEMPLATE_TEST_CASE("gradients of what changes scores have the same bits on any number of threads",
                   "[ops]", float, double) {
  for (const Recipe<TestType>& recipe : score_recipes<TestType>()) {
    for (const Sizes& sizes : {Sizes{2, 4, 2, 150, 270, 5, 3}, Sizes{1, 2, 1, 300, 520, 4, 5}}) {
      Case<TestType> x(sizes, 800);
      recipe.apply(x);
      CAPTURE(recipe.name, sizes.format());
      Learned<TestType> alone(x.options);
      ThreadPool one(1);
      const auto y = run_learned(Path::flash, x, alone, Context{one});
      for (const Index threads : {2, 3, 5}) {
        ThreadPool pool(threads);
        Learned<TestType> together(x.options);
        CHECK(bit_difference(run_learned(Path::flash, x, together, Context{pool}), y) == "");
        CHECK(same_bits<TestType, 1>(together.scale, alone.scale));
        CHECK(same_bits<TestType, 1>(together.slopes, alone.slopes));
        CHECK(same_bits<TestType, 1>(together.sinks, alone.sinks));
        CHECK(same_bits<TestType, 2>(together.table, alone.table));
        for (std::size_t n = 0; n < alone.biases.size(); ++n) {
          CHECK(same_bits<TestType, 4>(together.biases[n], alone.biases[n]));
        }
      }
    }
  }
}

}  // namespace ops_score_changes
