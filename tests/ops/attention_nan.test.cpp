// What a query may not see never reaches it, whatever number it is: outputs and gradients are held
// to the bit against those that a finite number in its place gives. What it sees shows.
#include <cmath>
#include <limits>

#include "support/attention_outputs.hpp"
#include "support/catch.hpp"
#include "support/mask_recipes.hpp"

using namespace headwise_tests;

namespace {

const std::vector<Sizes> shapes = {{2, 2, 1, 7, 11, 3, 5},
                                   {2, 4, 2, 49, 67, 5, 3},
                                   {1, 2, 2, 97, 131, 17, 8},
                                   {1, 2, 1, 67, 49, 4, 9},
                                   beyond_tiles};

enum class Place { k, v, q, d_o };
const char* const place_names[] = {"k", "v", "q", "d_o"};

template <class T>
const std::vector<T> poisons = {std::numeric_limits<T>::quiet_NaN(),
                                std::numeric_limits<T>::infinity(),
                                -std::numeric_limits<T>::infinity()};

/// The last element of some rows of one tensor becomes the poison: rows n with n % 9 == 4.
template <class T>
Case<T> poisoned(const Case<T>& x, Place place, T poison) {
  Case<T> y = x;
  Tensor4<T>& t = place == Place::k   ? y.k
                  : place == Place::v ? y.v
                  : place == Place::q ? y.q
                                      : y.d_o;
  for (Index b = 0; b < t.extent(0); ++b) {
    for (Index h = 0; h < t.extent(1); ++h) {
      for (Index n = 4; n < t.extent(2); n += 9) t(b, h, n, t.extent(3) - 1) = poison;
    }
  }
  return y;
}

bool is_poisoned(Index n) { return n % 9 == 4; }

/// Which rows of the outputs a poison may reach, from the masks alone.
struct Reach {
  std::vector<bool> query, key, seen;  // [B H L], [B G S], [B G S]
};

template <class T>
Reach reach(const Case<T>& x, Place place) {
  const auto [B, H, G, L, S, d, dv] = x.sizes;
  Reach r{std::vector<bool>(static_cast<std::size_t>(B * H * L)),
          std::vector<bool>(static_cast<std::size_t>(B * G * S)),
          std::vector<bool>(static_cast<std::size_t>(B * G * S))};
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < H; ++h) {
      for (Index i = 0; i < L; ++i) {
        const bool of_queries = place == Place::q || place == Place::d_o;
        bool dirty = of_queries && is_poisoned(i) && x.sees_any(b, h, i);
        for (Index j = 0; j < S && !of_queries; ++j) {
          dirty = dirty || (is_poisoned(j) && x.visible(b, h, i, j));
        }
        r.query[static_cast<std::size_t>((b * H + h) * L + i)] = dirty;
        for (Index j = 0; j < S; ++j) {
          if (!x.visible(b, h, i, j)) continue;
          const auto at = static_cast<std::size_t>((b * G + h / (H / G)) * S + j);
          r.seen[at] = true;
          if (dirty) r.key[at] = true;
        }
      }
    }
  }
  return r;
}

/// Rows of the last axis that differ in a bit though `dirty` is false for them.
template <class T>
Index changed_rows(const Tensor4<T>& a, const Tensor4<T>& b, const std::vector<bool>& dirty) {
  Index changed = 0, n = 0;
  for_each_index(Shape{a.extent(0), a.extent(1), a.extent(2)}, [&](const Shape<3>& row) {
    const auto width = static_cast<std::size_t>(a.extent(3)) * sizeof(T);
    if (dirty[static_cast<std::size_t>(n++)] || width == 0) return;
    const Index at = a.offset(Shape{row[0], row[1], row[2], Index{0}});
    changed += std::memcmp(a.data() + at, b.data() + at, width) == 0 ? 0 : 1;
  });
  return changed;
}

/// Rows that are `chosen` and hold no NaN, or hold something but 0.
template <class T>
Index rows_without_nan(const Tensor4<T>& a, const std::vector<bool>& chosen) {
  Index count = 0;
  for (std::size_t n = 0; n < chosen.size(); ++n) {
    const T* row = a.data() + static_cast<Index>(n) * a.extent(3);
    count += chosen[n] && std::none_of(row, row + a.extent(3), [](T x) { return std::isnan(x); });
  }
  return count;
}
template <class T>
Index rows_not_zero(const Tensor4<T>& a, const std::vector<bool>& unchosen) {
  Index count = 0;
  for (std::size_t n = 0; n < unchosen.size(); ++n) {
    const T* row = a.data() + static_cast<Index>(n) * a.extent(3);
    count += !unchosen[n] && std::any_of(row, row + a.extent(3), [](T x) { return !(x == 0); });
  }
  return count;
}

template <class T>
void check_reach(Path path, const Case<T>& x, const Outputs<T>& finite, Place place, T poison) {
  const Reach r = reach(x, place);
  const Outputs<T> y = run(path, poisoned(x, place, poison));
  const std::vector<bool> nowhere(r.query.size());
  const bool forward = place != Place::d_o;
  CHECK(changed_rows(y.o, finite.o, forward ? r.query : nowhere) == 0);
  if (path == Path::materialized) {
    const bool scores = place == Place::k || place == Place::q;
    CHECK(changed_rows(y.weights, finite.weights, scores ? r.query : nowhere) == 0);
  }
  CHECK(changed_rows(y.dq, finite.dq, r.query) == 0);
  CHECK(changed_rows(y.dk, finite.dk, r.key) == 0);
  CHECK(changed_rows(y.dv, finite.dv, r.key) == 0);
  CHECK(rows_not_zero(y.dk, r.seen) == 0);
  CHECK(rows_not_zero(y.dv, r.seen) == 0);
  if (!std::isnan(poison)) return;
  if (forward) CHECK(rows_without_nan(y.o, r.query) == 0);
  CHECK(rows_without_nan(y.dq, r.query) == 0);
}

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
          check_reach(path, x, finite, place, poison);
        }
      }
    }
  }
  CHECK(clean > 1000);
  CHECK(dirty > 1000);
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
