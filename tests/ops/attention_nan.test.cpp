// What a query may not see never reaches it, whatever number it is: outputs and gradients are held
// to the bit against those that a finite number in its place gives. What it sees shows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/mask_recipes.hpp"
#include "support/poison_reach.hpp"

namespace ops_attention_nan {

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {{2, 2, 1, 7, 11, 3, 5},    {2, 4, 2, 49, 67, 5, 3},
                                   {1, 2, 2, 97, 131, 17, 8}, {1, 2, 1, 67, 49, 4, 9},
                                   {1, 2, 1, 16, 18, 16, 8},  beyond_tiles};

}  // namespace

TEMPLATE_TEST_CASE("what a query may not see never reaches it, and NaN in what it sees shows",
                   "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  Index clean = 0, dirty = 0;
  for (const Recipe<TestType>& recipe : mask_recipes<TestType>()) {
    for (const Sizes& sizes : shapes) {
      Case<TestType> x(sizes, 1000);
      recipe.apply(x);
      const Outputs<TestType> finite = run(path, x);
      for (Place place : {Place::k, Place::v, Place::q, Place::d_o}) {
        const Reach r = reach(x, place);
        clean += std::count(r.query.begin(), r.query.end(), false);
        dirty += std::count(r.query.begin(), r.query.end(), true);
        for (TestType poison : poisons<TestType>) {
          const char* const where = place_names[static_cast<int>(place)];
          const bool tiled = path == Path::flash;
          CAPTURE(recipe.name, sizes.format(), where, poison, tiled);
          check_reach(path, x, finite, place, r, poison);
        }
      }
    }
  }
  CHECK(clean > 1000);
  CHECK(dirty > 1000);
}

// Such a key shows in dq, on both paths alike.
TEMPLATE_TEST_CASE(
    "a key that is no number has no gradient from queries without a part in the loss", "[ops]",
    float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for (const Sizes& sizes : shapes) {
    for (const TestType poison :
         {std::numeric_limits<TestType>::infinity(), std::numeric_limits<TestType>::quiet_NaN()}) {
      Case<TestType> x(sizes, 1900);
      x.k.data()[0] = poison;
      fill(Out<TestType, 4>(x.d_o), TestType(0));
      const Outputs<TestType> y = run(path, x);
      CAPTURE(sizes.format(), poison, path == Path::flash);
      for (const Tensor4<TestType>* d : {&y.dk, &y.dv}) {
        CHECK(std::all_of(d->begin(), d->end(), [](TestType n) { return n == 0; }));
      }
    }
  }
}

TEMPLATE_TEST_CASE("padding that holds NaN everywhere is as good as none", "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  const Sizes padded{1, 2, 1, 49, 131, 5, 3};
  const Index length = GENERATE(0, 1, 63, 64, 65, 130);
  const std::vector<Index> lengths{length};
  Case<TestType> x(padded, 1100);
  for_each_index(x.k.shape(), [&](const Shape<4>& i) {
    if (i[2] >= length) x.k(i) = std::numeric_limits<TestType>::quiet_NaN();
  });
  for_each_index(x.v.shape(), [&](const Shape<4>& i) {
    if (i[2] >= length) x.v(i) = std::numeric_limits<TestType>::quiet_NaN();
  });
  x.options.mask = {Mask::key_lengths(lengths)};
  CAPTURE(length);
  const Outputs<TestType> y = run(path, x);
  const auto shorter = [&](auto& t) { return slice(t, 2, 0, length); };
  const Outputs<TestType> alone =
      run<TestType>(path, x.q, shorter(x.k), shorter(x.v), x.d_o, AttentionOptions<TestType>{});
  CHECK(same_bits(y.o, alone.o));
  CHECK(same_bits(y.lse, alone.lse));
  CHECK(same_bits(y.dq, alone.dq));
  CHECK(same_bits<TestType, 4>(shorter(y.dk), alone.dk));
  CHECK(same_bits<TestType, 4>(shorter(y.dv), alone.dv));
}

TEMPLATE_TEST_CASE("a NaN bias shows where it is seen and nowhere else", "[ops]", float, double) {
  const Path path = GENERATE(Path::materialized, Path::flash);
  for (const Sizes& s : shapes) {
    Case<TestType> x(s, 1200);
    x.causal();
    Tensor4<TestType> bias = x.numbers.template tensor<TestType>(Shape{s.B, s.H, s.L, s.S});
    x.options.mask.add(Mask::bias(bias));
    const Outputs<TestType> finite = run(path, x);
    // Seen by every sixth query on its diagonal, and everywhere above that.
    Reach r{std::vector<bool>(static_cast<std::size_t>(s.B * s.H * s.L)),
            std::vector<bool>(static_cast<std::size_t>(s.B * s.G * s.S)),
            {}};
    for_each_index(bias.shape(), [&](const Shape<4>& p) {
      const Index diagonal = p[2] + s.S - s.L;
      const auto row = static_cast<std::size_t>((p[0] * s.H + p[1]) * s.L + p[2]);
      const bool seen = p[2] % 6 == 5 && diagonal >= 0;
      if (p[3] > diagonal || (seen && p[3] == diagonal)) {
        bias(p) = std::numeric_limits<TestType>::quiet_NaN();
      }
      if (!seen) return;
      r.query[row] = true;
      const Index key = (p[0] * s.G + p[1] / (s.H / s.G)) * s.S + p[3];
      if (p[3] <= diagonal) r.key[static_cast<std::size_t>(key)] = true;
    });
    const Outputs<TestType> y = run(path, x);
    CAPTURE(s.format());
    CHECK(changed_rows(y.o, finite.o, r.query) == 0);
    CHECK(changed_rows(y.dq, finite.dq, r.query) == 0);
    CHECK(changed_rows(y.dk, finite.dk, r.key) == 0);
    CHECK(changed_rows(y.dv, finite.dv, r.key) == 0);
    CHECK(rows_without_nan(y.o, r.query) == 0);
    CHECK(rows_without_nan(y.dq, r.query) == 0);
    CHECK(std::count(r.query.begin(), r.query.end(), true) > 0);
  }
}

TEST_CASE("the comparisons of rows refuse what is wrong", "[ops]") {
  Tensor4<double> a({1, 1, 3, 2}, {1, 2, 3, 4, 0, 0}), b = a;
  const std::vector<bool> none(3), second{false, true, false};
  CHECK(changed_rows(a, b, none) == 0);
  b(0, 0, 1, 1) = std::numeric_limits<double>::quiet_NaN();
  CHECK(changed_rows(a, b, none) == 1);
  CHECK(changed_rows(a, b, second) == 0);
  CHECK(rows_without_nan(b, second) == 0);
  CHECK(rows_without_nan(a, second) == 1);
  CHECK(rows_not_zero(a, {true, true, false}) == 0);
  CHECK(rows_not_zero(b, {true, false, true}) == 1);
}

}  // namespace ops_attention_nan
