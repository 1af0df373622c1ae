#include "headwise/simd/vector.hpp"

#include <array>

#include "support/catch.hpp"

using namespace headwise;

namespace {

template <class T>
void check_lanes() {
  using S = simd::Simd<T, simd::Best>;
  constexpr int width = S::width;
  CAPTURE(width, sizeof(T));
  T storage[3 * width + 1];
  for (int n = 0; n < 3 * width + 1; ++n) storage[n] = static_cast<T>(n);
  for (int start = 0; start <= 2 * width; ++start) {  // any alignment
    const auto x = S::load(storage + start);
    T sum = 0;
    for (int lane = 0; lane < width; ++lane) {
      CHECK(S::lane(x, lane) == static_cast<T>(start + lane));
      sum += static_cast<T>(start + lane);
    }
    CHECK(simd::sum_lanes<T, simd::Best>(x) == sum);
    CHECK(simd::max_lanes<T, simd::Best>(x) == static_cast<T>(start + width - 1));

    T guarded[3 * width + 1] = {};
    S::store(x, guarded + start);
    for (int n = 0; n < 3 * width + 1; ++n) {
      const bool inside = n >= start && n < start + width;
      CHECK(guarded[n] == (inside ? static_cast<T>(n) : T(0)));
    }
  }
}

template <class T>
void check_max() {
  using S = simd::Simd<T, simd::Best>;
  constexpr int width = S::width;
  for (int top = 0; top < width; ++top) {
    T a[width], b[width];
    for (int lane = 0; lane < width; ++lane) {
      a[lane] = lane == top ? T(-1) : T(-5 - lane);
      b[lane] = T(-3);
    }
    CHECK(simd::max_lanes<T, simd::Best>(S::load(a)) == T(-1));
    const auto greater = S::greater(S::load(a), S::load(b));
    for (int lane = 0; lane < width; ++lane) {
      CHECK(S::lane(greater, lane) == (lane == top ? T(-1) : T(-3)));
    }
  }
}

template <class T>
void check_constants() {
  using S = simd::Simd<T, simd::Best>;
  for (int lane = 0; lane < S::width; ++lane) {
    CHECK(S::lane(S::zero(), lane) == T(0));
    CHECK(S::lane(S::broadcast(T(-2.5)), lane) == T(-2.5));
  }
}

}  // namespace

TEST_CASE("vectors of float and double fill the bytes of the instruction set, others have width 1",
          "[simd]") {
  STATIC_REQUIRE(simd::Simd<float, simd::Generic>::width == 4);
  STATIC_REQUIRE(simd::Simd<double, simd::Generic>::width == 2);
  STATIC_REQUIRE(simd::Simd<long double, simd::Generic>::width == 1);
  STATIC_REQUIRE_FALSE(simd::vectorised<long double>);
}

TEST_CASE("load, store, sum_lanes and max_lanes see the lanes in order at any alignment",
          "[simd]") {
  check_lanes<float>();
  check_lanes<double>();
  check_lanes<long double>();
}

TEST_CASE("the greatest lane is found wherever it stands", "[simd]") {
  check_max<float>();
  check_max<double>();
  check_max<long double>();
}

TEST_CASE("zero and broadcast fill every lane", "[simd]") {
  check_constants<float>();
  check_constants<double>();
  check_constants<long double>();
}

TEST_CASE("sum_lanes adds pairwise, halves onto each other", "[simd]") {
  using S = simd::Simd<float, simd::Generic>;
  // (1e8 + 1) + (-1e8 + 1): lane by lane in order both ones would be lost on the way.
  const float lanes[4] = {1e8f, 1.0f, -1e8f, 1.0f};
  CHECK(simd::sum_lanes<float, simd::Generic>(S::load(lanes)) == 2.0f);
}

TEST_CASE("unrolled calls once for each number, in order", "[simd]") {
  std::array<int, 5> seen{};
  int calls = 0;
  simd::unrolled<5>([&](int i) { seen[static_cast<std::size_t>(i)] = ++calls; });
  CHECK(seen == std::array<int, 5>{1, 2, 3, 4, 5});
}
