// Gradients of a loss however small: what flows into attention scaled by a power of 2 flows out of
// it scaled by the same, to the bit, as no product on the way is too small for a number. And scores
// however large before their scale.
#include <cmath>
#include <limits>

#include "support/attention_case.hpp"
#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/mask_recipes.hpp"

namespace ops_small_gradients {

using namespace headwise_tests;

TEMPLATE_TEST_CASE("a loss that is made smaller by a power of 2 has gradients as much smaller",
                   "[ops]", float, double) {
  using T = TestType;
  const T small = std::ldexp(T(1), sizeof(T) == 4 ? -90 : -900);
  const auto scaled = [&](Tensor4<T> x) {
    for (T& number : x) number *= small;
    return x;
  };
  for (const Recipe<T>& recipe : mask_recipes<T>()) {
    for (const Path path : {Path::materialized, Path::flash}) {
      Case<T> x(Sizes{2, 4, 2, 49, 67, 6, 5}, 1500);
      recipe.apply(x);
      const Outputs<T> whole = run(path, x);
      x.d_o = scaled(x.d_o);
      const Outputs<T> less = run(path, x);
      CAPTURE(recipe.name, path == Path::flash);
      CHECK(same_bits(less.dq, scaled(whole.dq)));
      CHECK(same_bits(less.dk, scaled(whole.dk)));
      CHECK(same_bits(less.dv, scaled(whole.dv)));
    }
  }
}

TEMPLATE_TEST_CASE("products near the greatest number that a scale brings back change no bit",
                   "[ops]", float, double) {
  using T = TestType;
  const int whole = std::numeric_limits<T>::max_exponent - 3, half = whole / 2;
  for (const Index L : {1, 3, 40, 131}) {
    Case<T> x(Sizes{1, 2, 1, L, 67, 6, 5}, 1600);
    for (T& number : x.q) number = std::copysign(T(1), number);
    for (T& number : x.k) number = std::copysign(T(1), number);  // products from -6 to 6
    Case<T> large = x;
    for (T& number : large.q) number = std::ldexp(number, half);
    for (T& number : large.k) number = std::ldexp(number, whole - half);
    x.options.scale = T(0.5);
    large.options.scale = std::ldexp(T(0.5), -whole);
    for (const Path path : {Path::materialized, Path::flash}) {
      CAPTURE(L, path == Path::flash);
      const Outputs<T> expected = run(path, x), got = run(path, large);
      CHECK(same_bits(got.o, expected.o));
      CHECK(same_bits(got.dv, expected.dv));
    }
  }
}

}  // namespace ops_small_gradients
