// What changes scores, softcap, biases by distance, sinks, against the oracle on both paths: the
// output, the gradients of queries, keys and values, and those of what is learned.
#include <cmath>
#include <limits>

#include "headwise/runtime/thread_pool.hpp"
#include "support/catch.hpp"
#include "support/learned_scores.hpp"

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
      const ExpectedScores expected_learned(x, expected);
      for (const Path path : {Path::materialized, Path::flash}) {
        CAPTURE(path == Path::flash);
        LearnedGradients<TestType> learned(x.options);
        CHECK(disagreement(run_learned(path, x, learned), expected, x.sizes) == "");
        CHECK(learned_disagreement(learned, expected_learned, expected, x.sizes) == "");
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
      LearnedGradients<TestType> alone(x.options);
      ThreadPool one(1);
      const auto y = run_learned(Path::flash, x, alone, Context{one});
      for (const Index threads : {2, 3, 5}) {
        ThreadPool pool(threads);
        LearnedGradients<TestType> together(x.options);
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
