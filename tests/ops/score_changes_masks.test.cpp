// All that changes scores under the masks that leave gaps between a query's keys: windows that keep
// first keys, documents, mask functions. Both paths against the oracle, with every gradient.
#include <vector>

#include "support/catch.hpp"
#include "support/learned_scores.hpp"

namespace ops_score_changes_masks {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {
    {3, 4, 2, 7, 5, 3, 2}, {2, 2, 1, 47, 65, 8, 17}, {1, 1, 1, 131, 67, 5, 3}, beyond_tiles};

template <class T>
std::vector<Recipe<T>> masks() {
  using C = Case<T>&;
  return {
      {"window 5 and first 3", [](C c) { c.window(5, 3); }},
      {"causal window 40 and first 9", [](C c) { c.causal(), c.window(40, 9); }},
      {"documents", [](C c) { c.template documents<Index>(40, c.sizes.B); }},
      {"mask function", [](C c) { c.function(false); }},
      {"mask function between bounds", [](C c) { c.function(true); }},
      {"causal window 11 and first 2, documents, mask function",
       [](C c) {
         c.causal(), c.window(11, 2), c.template documents<std::int32_t>(60, 1), c.function(false);
       }},
  };
}

template <class T>
std::vector<Recipe<T>> scores() {
  using C = Case<T>&;
  const auto two_biases = [](C c) {
    c.bias(Shape{c.sizes.B, c.sizes.H, c.sizes.L, c.sizes.S});
    c.bias(Shape{1, c.sizes.H, 1, c.sizes.S});
  };
  return {
      {"softcap", [](C c) { c.softcap(1.5); }},
      {"alibi", [](C c) { c.alibi(); }},
      {"relative bias", [](C c) { c.relative(9, false); }},
      {"sinks", [](C c) { c.sinks(); }},
      {"function", [](C c) { c.bend(); }},
      {"two biases", two_biases},
      {"all of them, dropout",
       [=](C c) {
         c.softcap(2), c.alibi(), c.relative(20, true), two_biases(c), c.bend(), c.sinks();
         c.dropout(0.2);
       }},
  };
}

}  // namespace

TEMPLATE_TEST_CASE("both attentions equal the oracle for scores that change under masks with gaps",
                   "[ops]", float, double) {
  using T = TestType;
  std::uint64_t seed = 2000;
  for (const Recipe<T>& mask : masks<T>()) {
    for (const Recipe<T>& score : scores<T>()) {
      for (const Sizes& sizes : shapes) {
        Case<T> x(sizes, ++seed);
        mask.apply(x), score.apply(x);
        CAPTURE(mask.name, score.name, sizes.format(), seed);
        const OracleResult expected = oracle_attention(x.problem());
        const ExpectedScores expected_learned(x, expected);
        for (const Path path : {Path::materialized, Path::flash}) {
          CAPTURE(path == Path::flash);
          LearnedGradients<T> learned(x.options);
          CHECK(disagreement(run_learned(path, x, learned), expected, sizes) == "");
          CHECK(learned_disagreement(learned, expected_learned, expected, sizes) == "");
        }
      }
    }
  }
}

}  // namespace ops_score_changes_masks
