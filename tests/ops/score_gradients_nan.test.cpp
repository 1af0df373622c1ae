// What has no part in the loss has none in the gradients of what changes scores, whatever it holds:
// they are held to the bit against those that finite numbers in its place give.
#include <cmath>
#include <limits>
#include <string>

#include "support/catch.hpp"
#include "support/learned_scores.hpp"
#include "support/poison_reach.hpp"

namespace ops_score_gradients_nan {

using namespace headwise_tests;

namespace {

constexpr Sizes sizes{2, 4, 2, 49, 67, 5, 3};

bool is_idle(Index i) { return i % 3 == 1; }
bool is_apart(Index j) { return j % 5 == 2; }

/// Every third query has no part in the loss. Every fifth key is seen by those alone, or by none.
template <class T>
struct Apart : Case<T> {
  Tensor2<bool> keep{Shape{sizes.L, sizes.S}};

  explicit Apart(bool by_idle) : Case<T>(sizes, 2100) {
    for_each_index(keep.shape(), [&](const Shape<2>& at) {
      keep(at) = !is_apart(at[1]) || (by_idle && is_idle(at[0]));
    });
    this->options.mask.add(Mask::keep(keep));
    for_each_index(this->d_o.shape(), [&](const Shape<4>& at) {
      if (is_idle(at[2])) this->d_o(at) = T(0);
    });
  }
  /// The other keys stay as they are.
  void set_keys(T number) {
    for_each_index(this->k.shape(), [&](const Shape<4>& at) {
      if (is_apart(at[2]) && at[3] == 1) this->k(at) = number;
    });
  }
};

template <class T>
void learn_all(Case<T>& x) {
  x.softcap(2), x.alibi(), x.relative(9, false), x.sinks();
  x.bias(Shape{sizes.B, sizes.H, sizes.L, sizes.S});
}

template <class T>
LearnedGradients<T> gradients_of(Path path, const Case<T>& x) {
  LearnedGradients<T> learned(x.options);
  run_learned(path, x, learned);
  return learned;
}

/// The gradients that differ in a bit, by name; empty if none does.
template <class T>
std::string bit_difference(LearnedGradients<T>& a, LearnedGradients<T>& b) {
  std::string names;
  a.for_each(
      [&](const char* name, auto& x, auto& y) {
        constexpr int rank = std::decay_t<decltype(x)>::rank;
        if (!same_bits<T, rank>(x, y)) names += std::string(name) + " ";
      },
      b);
  return names;
}

template <class T>
void check_keys(Path path, Apart<T>& x, const std::vector<T>& numbers) {
  LearnedGradients<T> expected = gradients_of(path, x);
  for (const T number : numbers) {
    CAPTURE(path == Path::flash, number);
    x.set_keys(number);
    LearnedGradients<T> learned = gradients_of(path, x);
    CHECK(bit_difference(learned, expected) == "");
  }
}

}  // namespace

TEMPLATE_TEST_CASE("keys that no query sees have no part in gradients of what changes scores",
                   "[ops]", float, double) {
  using T = TestType;
  for (const bool bent : {false, true}) {
    CAPTURE(bent);
    for (const Path path : {Path::materialized, Path::flash}) {
      Apart<T> x(false);
      learn_all(x);
      if (bent) x.bend();
      check_keys<T>(path, x, poisons<T>);
    }
  }
}

TEMPLATE_TEST_CASE(
    "keys whose scores overflow reach no gradient, where only queries without a part in the loss "
    "see them",
    "[ops]", float, double) {
  using T = TestType;
  for (const Path path : {Path::materialized, Path::flash}) {
    Apart<T> x(true);
    x.alibi(), x.relative(9, false), x.sinks();
    check_keys<T>(path, x, {(std::numeric_limits<T>::max)(), std::numeric_limits<T>::lowest()});
  }
}

TEMPLATE_TEST_CASE(
    "keys that are no numbers reach no gradient where weights are kept and only queries without a "
    "part in the loss see them",
    "[ops]", float, double) {
  using T = TestType;
  Apart<T> x(true);
  learn_all(x);
  check_keys<T>(Path::materialized, x, poisons<T>);
}

TEMPLATE_TEST_CASE(
    "a query that has no part in the loss has none in the parameters of a score function, however "
    "steep it is there",
    "[ops]", float, double) {
  using T = TestType;
  Apart<T> x(true);
  const auto steep =
      score_function(std::array<T, 1>{T(0)}, [](const auto& s, const Position& at, const auto& w) {
        using std::sqrt;  // whose slope at 0 is infinite
        return s + (is_idle(at.query) ? sqrt(w[0]) : w[0] * s);
      });
  const auto flat =
      score_function(std::array<T, 1>{T(0)}, [](const auto& s, const Position& at, const auto& w) {
        return s + (is_idle(at.query) ? s * T(0) : w[0] * s);
      });
  for (const Path path : {Path::materialized, Path::flash}) {
    CAPTURE(path == Path::flash);
    x.options.score.function = flat;
    LearnedGradients<T> expected = gradients_of<T>(path, x);
    x.options.score.function = steep;
    LearnedGradients<T> learned = gradients_of<T>(path, x);
    CHECK(bit_difference(learned, expected) == "");
    CHECK(std::abs(learned.function(0) - 1) > T(0.01));
  }
}

}  // namespace ops_score_gradients_nan
