// The lane-wise functions that kernels are written in, at the 16 bytes that every machine has. The
// wider ones are the same lines, or one instruction; the tests of kernels run them.
#include <algorithm>
#include <array>
#include <cstdint>

#include "headwise/kernels/kernels.hpp"
#include "support/catch.hpp"

namespace simd_vector {

using namespace headwise;
namespace generic = simd::generic;

namespace {

/// The lanes of a vector, or of integers beside it, as an array. Inlined, so that no vector is
/// passed.
template <class T>
struct Lanes {
  using S = generic::Simd<T>;
  std::array<T, std::size_t{S::width}> numbers{};
  std::array<typename S::Int, std::size_t{S::width}> ints{};

  HEADWISE_INLINE static Lanes of(const typename S::Vector& x) {
    Lanes lanes;
    S::store(x, lanes.numbers.data());
    return lanes;
  }
  HEADWISE_INLINE static Lanes of_ints(const typename S::IntVector& x) {
    Lanes lanes;
    S::store_ints(x, lanes.ints.data());
    return lanes;
  }
};

template <class T>
void check_load_and_store() {
  using S = generic::Simd<T>;
  constexpr int width = S::width;
  CAPTURE(width, sizeof(T));
  T storage[3 * width + 1];
  for (int n = 0; n < 3 * width + 1; ++n) storage[n] = static_cast<T>(n);
  for (int start = 0; start <= 2 * width; ++start) {  // any alignment
    const auto x = S::load(storage + start);
    const auto lanes = Lanes<T>::of(x).numbers;
    T sum = 0;
    for (int lane = 0; lane < width; ++lane) {
      CHECK(lanes[static_cast<std::size_t>(lane)] == static_cast<T>(start + lane));
      sum += static_cast<T>(start + lane);
    }
    CHECK(generic::sum_lanes<T>(x) == sum);

    T guarded[3 * width + 1] = {};
    S::store(x, guarded + start);
    for (int n = 0; n < 3 * width + 1; ++n) {
      const bool inside = n >= start && n < start + width;
      CHECK(guarded[n] == (inside ? static_cast<T>(n) : T(0)));
    }
  }
}

template <class T>
void check_integers() {
  using S = generic::Simd<T>;
  using Int = typename S::Int;
  constexpr int width = S::width;
  std::uint8_t bytes[width + 1];
  Int ints[width + 1];
  for (int n = 0; n <= width; ++n) {
    bytes[n] = static_cast<std::uint8_t>(255 - n);
    ints[n] = 1000 * n - 1500;
  }
  for (int start = 0; start <= 1; ++start) {
    const auto from_bytes = Lanes<T>::of_ints(S::load_bytes(bytes + start)).ints;
    const auto from_ints = Lanes<T>::of_ints(S::load_ints(ints + start)).ints;
    for (int lane = 0; lane < width; ++lane) {
      CAPTURE(width, start, lane);
      CHECK(from_bytes[static_cast<std::size_t>(lane)] == Int{255 - start - lane});
      CHECK(from_ints[static_cast<std::size_t>(lane)] == ints[start + lane]);
    }
  }
}

template <class T>
void check_greater() {
  using S = generic::Simd<T>;
  constexpr int width = S::width;
  for (int top = 0; top < width; ++top) {
    T a[width], b[width];
    for (int lane = 0; lane < width; ++lane) {
      a[lane] = lane == top ? T(-1) : T(-5 - lane);
      b[lane] = T(-3);
    }
    const auto one_way = Lanes<T>::of(S::greater(S::load(a), S::load(b))).numbers;
    const auto other_way = Lanes<T>::of(S::greater(S::load(b), S::load(a))).numbers;
    for (int lane = 0; lane < width; ++lane) {
      CHECK(one_way[static_cast<std::size_t>(lane)] == (lane == top ? T(-1) : T(-3)));
    }
    CHECK(one_way == other_way);
  }
}

template <class T>
void check_constants() {
  using S = generic::Simd<T>;
  using Int = typename S::Int;
  const auto zeros = Lanes<T>::of(S::zero()).numbers;
  const auto numbers = Lanes<T>::of(S::broadcast(T(-2.5))).numbers;
  const auto ints = Lanes<T>::of_ints(S::broadcast_int(-7)).ints;
  const auto counted = Lanes<T>::of_ints(S::lane_numbers()).ints;
  for (int lane = 0; lane < S::width; ++lane) {
    const auto at = static_cast<std::size_t>(lane);
    CHECK(zeros[at] == T(0));
    CHECK(numbers[at] == T(-2.5));
    CHECK(ints[at] == Int{-7});
    CHECK(counted[at] == Int{lane});
  }
}

/// `within`, `both` and `select`, with the ends of the range at and around each lane.
template <class T>
void check_conditions() {
  using S = generic::Simd<T>;
  using Int = typename S::Int;
  constexpr int width = S::width;
  for (Int begin = -1; begin <= width; ++begin) {
    for (Int end = begin; end <= width + 1; ++end) {
      const auto inside =
          S::within(S::lane_numbers(), S::broadcast_int(begin), S::broadcast_int(end));
      const auto not_first =
          S::within(S::lane_numbers(), S::broadcast_int(1), S::broadcast_int(width));
      const auto yes = S::broadcast(T(1)), no = S::broadcast(T(2));
      const auto one = Lanes<T>::of(S::select(inside, yes, no)).numbers;
      const auto two = Lanes<T>::of(S::select(S::both(inside, not_first), yes, no)).numbers;
      for (int lane = 0; lane < width; ++lane) {
        CAPTURE(width, begin, end, lane);
        const bool in = lane >= begin && lane < end;
        CHECK(one[static_cast<std::size_t>(lane)] == (in ? T(1) : T(2)));
        CHECK(two[static_cast<std::size_t>(lane)] == (in && lane != 0 ? T(1) : T(2)));
      }
    }
  }
}

/// What load_bytes gives is a condition: any bit of a byte is true.
template <class T>
void check_both_of_bytes() {
  using S = generic::Simd<T>;
  std::uint8_t two[S::width], one[S::width];
  std::fill_n(two, S::width, std::uint8_t{2});
  std::fill_n(one, S::width, std::uint8_t{1});
  const auto met = S::both(S::load_bytes(two), S::load_bytes(one));
  for (const T x : Lanes<T>::of(S::select(met, S::broadcast(T(1)), S::broadcast(T(2)))).numbers) {
    CHECK(x == T(1));
  }
}

template <class T>
void check_fma() {
  using S = generic::Simd<T>;
  const auto sums =
      Lanes<T>::of(S::fma(S::broadcast(T(3)), S::broadcast(T(-2)), S::broadcast(T(0.5)))).numbers;
  for (const T x : sums) CHECK(x == T(-5.5));
  CHECK(generic::multiply_add<T>(T(3), T(-2), T(0.5)) == T(-5.5));
}

}  // namespace

TEST_CASE("vectors of float and double fill 16 bytes, others have width 1", "[simd]") {
  STATIC_REQUIRE(generic::Simd<float>::width == 4);
  STATIC_REQUIRE(generic::Simd<double>::width == 2);
  STATIC_REQUIRE(generic::Simd<long double>::width == 1);
  STATIC_REQUIRE_FALSE(simd::vectorised<long double>);
}

TEST_CASE("load, store and sum_lanes see the lanes in order at any alignment", "[simd]") {
  check_load_and_store<float>();
  check_load_and_store<double>();
  check_load_and_store<long double>();
}

TEST_CASE("integers and bytes are loaded into the lanes in order at any alignment", "[simd]") {
  check_integers<float>();
  check_integers<double>();
  check_integers<long double>();
}

TEST_CASE("greater takes the greater number lane by lane, whichever stands first", "[simd]") {
  check_greater<float>();
  check_greater<double>();
  check_greater<long double>();
}

TEST_CASE("zero and the broadcasts fill every lane, lane_numbers counts them", "[simd]") {
  check_constants<float>();
  check_constants<double>();
  check_constants<long double>();
}

TEST_CASE("select takes lane by lane what within and both say", "[simd]") {
  check_conditions<float>();
  check_conditions<double>();
  check_conditions<long double>();
}

TEST_CASE("two bytes that share no bit are both true", "[simd]") {
  check_both_of_bytes<float>();
  check_both_of_bytes<double>();
  check_both_of_bytes<long double>();
}

TEST_CASE("fma multiplies the first two and adds the third", "[simd]") {
  check_fma<float>();
  check_fma<double>();
  check_fma<long double>();
}

TEST_CASE("sum_lanes adds pairwise, halves onto each other", "[simd]") {
  // (1e8 + 1) + (-1e8 + 1): lane by lane in order both ones would be lost on the way.
  const float lanes[4] = {1e8f, 1.0f, -1e8f, 1.0f};
  CHECK(generic::sum_lanes<float>(generic::Simd<float>::load(lanes)) == 2.0f);
}

TEST_CASE("unrolled calls once for each number, in order", "[simd]") {
  std::array<int, 5> seen{};
  int calls = 0;
  generic::unrolled<5>([&](auto i) { seen[std::size_t{i}] = ++calls; });
  CHECK(seen == std::array<int, 5>{1, 2, 3, 4, 5});
}

}  // namespace simd_vector
