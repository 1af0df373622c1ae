// Whether views share an element, against counting their elements one by one.
#include "headwise/tensor/overlap.hpp"

#include <map>
#include <random>
#include <set>

#include "headwise/tensor/view_ops.hpp"
#include "support/catch.hpp"

namespace tensor_overlap {

using namespace headwise;

namespace {

/// Views of any rank in one storage, with strides of either sign, 0 among them.
struct Draw {
  std::mt19937 bits{7};
  std::vector<float> storage = std::vector<float>(4000);

  Index below(Index n) { return static_cast<Index>(bits() % static_cast<unsigned>(n)); }

  template <int R>
  In<float, R> view(Index widest) {
    Shape<R> shape, strides;
    for (int r = 0; r < R; ++r) {
      shape[r] = below(5);
      strides[r] = below(2 * widest + 1) - widest;
    }
    return {storage.data() + 2000 + below(30), shape, strides};
  }
  /// Part of a matrix that others are parts of too, its axes in any order.
  In<float, 3> part() {
    const In<float, 3> whole(storage.data(), Shape{4, 5, 12});
    const Index b = below(4), l = below(5), c = below(12);
    auto view =
        slice(slice(slice(whole, 0, b, below(5 - b)), 1, l, below(6 - l)), 2, c, below(13 - c));
    return below(2) == 0 ? view : transpose(view, 1, 2);
  }
};

template <int R>
std::vector<const float*> elements(const In<float, R>& view) {
  std::vector<const float*> all;
  for_each_index(view.shape(), [&](const Shape<R>& at) { all.push_back(&view(at)); });
  return all;
}
template <int R, int Q>
bool really_overlap(const In<float, R>& a, const In<float, Q>& b) {
  const auto of_a = elements(a);
  const std::set<const float*> set(of_a.begin(), of_a.end());
  for (const float* element : elements(b)) {
    if (set.count(element) != 0) return true;
  }
  return false;
}
template <int R>
bool really_repeats(const In<float, R>& a) {
  const auto all = elements(a);
  return std::set<const float*>(all.begin(), all.end()).size() != all.size();
}

/// How often each answer was right, so that neither is rare; fails at the first wrong one.
using Score = std::map<bool, int>;

template <int R, int Q>
void check(const In<float, R>& a, const In<float, Q>& b, Score& overlaps, Score& repeats) {
  CAPTURE(a.shape(), a.strides(), b.shape(), b.strides(), b.data() - a.data());
  const bool expected = really_overlap(a, b), twice = really_repeats(a);
  REQUIRE(detail::overlap({"a", a}, {"b", b}) == expected);
  REQUIRE(detail::repeats_elements({"a", a}) == twice);
  ++overlaps[expected];
  ++repeats[twice];
}

}  // namespace

TEST_CASE("views overlap where they share an element, whatever their strides", "[tensor]") {
  Draw draw;
  Score overlaps, repeats;
  for (int n = 0; n < 4000; ++n) {
    const Index widest = 1 + draw.below(40);
    check(draw.view<2>(widest), draw.view<3>(widest), overlaps, repeats);
    check(draw.view<4>(widest), draw.view<1>(widest), overlaps, repeats);
    check(draw.part(), draw.part(), overlaps, repeats);
  }
  for (const bool answer : {false, true}) {
    CHECK(overlaps[answer] > 1000);
    CHECK(repeats[answer] > 1000);
  }
}

TEST_CASE("views that lie beyond what addresses can say are not refused", "[tensor]") {
  const float x[4] = {};
  const Index far = Index{1} << 60;
  const In<float, 1> wide(x, Shape{3}, Shape{far}), near(x, Shape{4});
  CHECK_FALSE(detail::overlap({"wide", wide}, {"near", near}));
  const In<double, 1> other(reinterpret_cast<const double*>(x), Shape{2});
  CHECK(detail::overlap({"near", near}, {"other", other}));
  CHECK_FALSE(detail::overlap({"near", near}, {"none", In<float, 1>()}));
}

TEST_CASE("elements of unequal size overlap where they share a byte", "[tensor]") {
  alignas(16) static const unsigned char bytes[64] = {};
  const auto floats = [](Index byte, Index count, Index stride) {
    return In<float, 1>(reinterpret_cast<const float*>(bytes + byte), Shape{count}, Shape{stride});
  };
  const auto bools = [](Index byte, Index count, Index stride) {
    return In<bool, 1>(reinterpret_cast<const bool*>(bytes + byte), Shape{count}, Shape{stride});
  };
  const auto overlap = [](const auto& a, const auto& b) {
    const bool found = detail::overlap({"a", a}, {"b", b});
    CHECK(detail::overlap({"b", b}, {"a", a}) == found);
    return found;
  };
  // Records of a float and 4 flags: the flags lie between the floats.
  CHECK_FALSE(overlap(floats(0, 4, 2), bools(4, 4, 8)));
  CHECK_FALSE(overlap(floats(0, 4, 2), bools(7, 4, 8)));
  CHECK(overlap(floats(0, 4, 2), bools(3, 4, 8)));
  CHECK(overlap(floats(0, 4, 2), bools(8, 1, 1)));
  CHECK_FALSE(overlap(floats(0, 4, 1), bools(16, 4, 1)));
  CHECK(overlap(floats(4, 4, 1), bools(19, 4, 1)));
  CHECK_FALSE(overlap(floats(4, 4, 1), bools(0, 4, 1)));
  CHECK(overlap(floats(0, 2, 1), In<char, 1>(reinterpret_cast<const char*>(bytes + 7), Shape{1})));
}

TEST_CASE("strides beyond any memory decide nothing, and one of 0 repeats elements", "[tensor]") {
  static const float x[4] = {};
  constexpr Index least = std::numeric_limits<Index>::min();
  const In<float, 2> endless(x, Shape{2, 2}, Shape{least, 1});
  CHECK_FALSE(detail::overlap({"endless", endless}, {"x", In<float, 1>(x, Shape{4})}));
  CHECK_FALSE(detail::repeats_elements({"endless", endless}));
  const In<float, 2> still(x, Shape{2, 2}, Shape{Index{1} << 57, 0});
  CHECK(detail::repeats_elements({"still", still}));
}

}  // namespace tensor_overlap
