#include "headwise/ops/rotary.hpp"

#include <cmath>
#include <limits>

#include "headwise/runtime/thread_pool.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/check_op.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"
#include "support/counting.hpp"

namespace ops_rotary {

using namespace headwise;

namespace {

using Real = long double;

template <class T, int R>
Tensor<T, R> normal(const Shape<R>& shape, std::uint64_t seed) {
  Tensor<T, R> x(shape);
  for (Index n = 0; n < x.size(); ++n) {
    x.data()[n] = T(philox_normal(philox_key(seed), static_cast<std::uint64_t>(n)));
  }
  return x;
}

template <class T>
Tensor4<T> rotated(const Tensor4<T>& x, const RotaryOptions& options, bool backward = false) {
  Tensor4<T> y(x.shape());
  backward ? rotary_backward(x, options, y) : rotary_forward(x, options, y);
  return y;
}

/// By the definition: the pair's number as one complex number, turned.
template <class T>
Tensor4<Real> expected(const Tensor4<T>& x, const RotaryOptions& options) {
  const Index d = x.extent(3), width = options.width_of(d);
  Tensor4<Real> y(x.shape());
  for_each_index(x.shape(), [&](const Shape<4>& at) {
    const Index n = at[3];
    y(at) = static_cast<Real>(x(at));
    if (n >= width) return;
    const bool halves = options.pairing == RotaryPairing::halves;
    const Index t = halves ? n % (width / 2) : n / 2;
    const bool is_first = halves ? n < width / 2 : n % 2 == 0;
    Shape<4> other = at;
    other[3] = halves ? (is_first ? n + width / 2 : n - width / 2) : (is_first ? n + 1 : n - 1);
    const Real frequency =
        options.frequencies.absent()
            ? std::pow(Real{options.theta}, -2 * static_cast<Real>(t) / static_cast<Real>(width))
            : Real{options.frequencies(t)};
    const Real angle = static_cast<Real>(options.offset + at[2]) * frequency;
    const Real partner = static_cast<Real>(x(other));
    y(at) = static_cast<Real>(x(at)) * std::cos(angle) +
            (is_first ? -partner : partner) * std::sin(angle);
  });
  return y;
}

template <class T>
void check_against_definition(Index d, RotaryOptions options) {
  const auto x = normal<T>(Shape{Index{2}, Index{3}, Index{5}, d}, 1);
  for (const auto pairing : {RotaryPairing::halves, RotaryPairing::interleaved}) {
    options.pairing = pairing;
    CAPTURE(sizeof(T), d, options.width, options.offset, static_cast<int>(pairing));
    // Two products and a sum of numbers below 6, cosines rounded once; the angle's own rounding in
    // double grows with the position.
    const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
    const double of_angle = sizeof(T) > 8 ? unit : 2.3e-16;
    const double bound = 4 * unit + 2 * of_angle * static_cast<double>(options.offset + 5);
    const auto y = rotated(x, options);
    CHECK(close_to(convert<Real>(In<T, 4>(y)), expected(x, options), bound));
  }
}

}  // namespace

TEST_CASE("rotary positions turn pairs by the definition, for both pairings and any widths",
          "[ops]") {
  for (Index d : {2, 6, 16, 32, 34, 64, 66, 128, 130}) {
    for (Index width : {Index{0}, Index{2}, d / 4 * 2}) {
      check_against_definition<float>(d, {.width = width});
      check_against_definition<double>(d, {.width = width, .offset = 77});
      check_against_definition<long double>(d, {.theta = 500, .width = width, .offset = 3});
    }
  }
  const Tensor1<double> frequencies(Shape{3}, {0.5, -0.25, 0.0});
  check_against_definition<float>(10, {.width = 6, .offset = 9, .frequencies = frequencies});
}

TEST_CASE("position 100000 is right in float to float's own digits", "[ops]") {
  for (Index offset : {100000, 1000000}) check_against_definition<float>(64, {.offset = offset});
}

TEST_CASE("the gradient of rotary positions is the transpose, by differences and by products",
          "[ops]") {
  for (const auto pairing : {RotaryPairing::halves, RotaryPairing::interleaved}) {
    const RotaryOptions options{.width = 4, .pairing = pairing, .offset = 2};
    const auto x = normal<Real>(Shape{1, 2, 3, 6}, 2);
    const auto report =
        check_op([&](const Tensor4<Real>& at) { return rotated(at, options); },
                 [&](const Tensor4<Real>& dy) { return rotated(dy, options, true); },
                 In<Real, 4>(x), {.tolerance = 1e-12});
    CAPTURE(report);
    CHECK(report);
    const auto dy = normal<double>(Shape{2, 3, 40, 66}, 3), z = normal<double>(dy.shape(), 4);
    const auto y = rotated(z, {.pairing = pairing}), dz = rotated(dy, {.pairing = pairing}, true);
    Real forward = 0, backward = 0;
    for (Index n = 0; n < z.size(); ++n) {
      forward += Real{dy.data()[n]} * y.data()[n];
      backward += Real{dz.data()[n]} * z.data()[n];
    }
    CHECK(std::abs(forward - backward) < 1e-11L);
    CHECK(close_to(rotated(y, {.pairing = pairing}, true), z, 1e-15));  // turned back
  }
}

TEST_CASE("a product of a rotated query and key depends on their distance alone", "[ops]") {
  const auto q = normal<double>(Shape{1, 1, 1, 32}, 5), k = normal<double>(Shape{1, 1, 1, 32}, 6);
  for (const auto pairing : {RotaryPairing::halves, RotaryPairing::interleaved}) {
    const auto product = [&](Index i, Index j) {
      const auto a = rotated(q, {.pairing = pairing, .offset = i});
      const auto b = rotated(k, {.pairing = pairing, .offset = j});
      double sum = 0;
      for (Index n = 0; n < 32; ++n) sum += a.data()[n] * b.data()[n];
      return sum;
    };
    for (Index distance : {0, 1, 17}) {
      CHECK(std::abs(product(distance, 0) - product(distance + 1000, 1000)) < 1e-11);
    }
    CHECK(std::abs(product(5, 0) - product(0, 5)) > 1e-3);  // and on which of them is ahead
  }
}

TEST_CASE("neighbours as pairs are halves as pairs of a row in another order, to the bit",
          "[ops]") {
  for (Index d : {2, 14, 64, 98}) {
    const auto x = normal<float>(Shape{Index{1}, Index{2}, Index{7}, d}, 7);
    Tensor4<float> parted(x.shape()), joined(x.shape());
    const auto place = [&](Index n) { return n % 2 * (d / 2) + n / 2; };
    for_each_index(x.shape(),
                   [&](const Shape<4>& at) { parted(at[0], at[1], at[2], place(at[3])) = x(at); });
    const auto y = rotated(parted, {.pairing = RotaryPairing::halves});
    for_each_index(x.shape(),
                   [&](const Shape<4>& at) { joined(at) = y(at[0], at[1], at[2], place(at[3])); });
    CHECK(bitwise_equal(joined, rotated(x, {.pairing = RotaryPairing::interleaved})));
  }
}

TEST_CASE(
    "rotary positions have the same bits in place, as heads of one row, token by token and on any "
    "threads",
    "[ops]") {
  for (const auto pairing : {RotaryPairing::halves, RotaryPairing::interleaved}) {
    const Index B = 2, H = 3, L = 300, d = 34;
    const RotaryOptions options{.width = 32, .pairing = pairing, .offset = 5};
    const auto x = normal<float>(Shape{B, H, L, d}, 8);
    const auto y = rotated(x, options), dx = rotated(x, options, true);
    Tensor4<float> in_place = x;
    rotary_forward(in_place, options, in_place);
    CHECK(bitwise_equal(in_place, y));
    rotary_backward(x, options, in_place);
    CHECK(bitwise_equal(in_place, dx));
    Tensor3<float> rows(Shape{B, L, H * d});
    const auto heads = split_heads(rows, H);
    copy(x, heads);
    rotary_forward(heads, options, heads);
    CHECK(bitwise_equal(In<float, 4>(heads), In<float, 4>(y)));
    Tensor4<float> turned(Shape{d, L, H, B});
    const auto odd = transpose(transpose(turned, 0, 3), 1, 2);
    copy(x, odd);
    rotary_backward(odd, options, odd);
    CHECK(bitwise_equal(In<float, 4>(odd), In<float, 4>(dx)));
    for (Index i : {0, 1, 299}) {
      RotaryOptions at = options;
      at.offset += i;
      const auto alone = rotated(contiguous(In<float, 4>(slice(x, 2, i, 1))), at);
      CHECK(bitwise_equal(In<float, 4>(alone), In<float, 4>(slice(y, 2, i, 1))));
    }
    for (Index threads : {2, 5}) {
      ThreadPool pool(threads);
      Tensor4<float> here(x.shape());
      rotary_forward(x, options, here, {.executor = pool});
      CHECK(bitwise_equal(here, y));
    }
  }
}

TEST_CASE("a table of angles gives the bits of the options, however it has grown", "[ops]") {
  const Tensor1<double> frequencies(Shape{4}, {1.0, 0.1, 0.01, 0.001});
  for (const In<double, 1> given : {In<double, 1>(), In<double, 1>(frequencies)}) {
    RotaryOptions options{.width = 8, .offset = 9, .frequencies = given};
    const auto x = normal<double>(Shape{2, 2, 11, 10}, 9);
    const auto y = rotated(x, options), dx = rotated(x, options, true);
    RotaryTable<double> table(10, options);
    for (Index positions : {3, 20, 21, 100}) {
      table.grow(positions);
      REQUIRE(table.angles().cosines.extent(0) >= positions);
      if (positions < 20) continue;
      Tensor4<double> here(x.shape());
      rotary_forward(x, table.angles(), options, here);
      CHECK(bitwise_equal(here, y));
      rotary_backward(x, table.angles(options.offset + 11), options, here);
      CHECK(bitwise_equal(here, dx));
    }
    const auto held = table.angles();
    table.grow(50);
    CHECK(table.angles().cosines.data() == held.cosines.data());  // it is long enough
  }
}

TEST_CASE("elements behind the rotated width are copied, NaN too, and reach no other", "[ops]") {
  auto x = normal<float>(Shape{1, 1, 4, 40}, 10);
  const auto clean = rotated(x, {.width = 34});
  for (Index i = 0; i < 4; ++i) x(0, 0, i, 37) = std::numeric_limits<float>::quiet_NaN();
  auto y = rotated(x, {.width = 34});
  for (Index i = 0; i < 4; ++i) {
    CHECK_FALSE(y(0, 0, i, 37) == y(0, 0, i, 37));
    y(0, 0, i, 37) = clean(0, 0, i, 37);
  }
  CHECK(bitwise_equal(y, clean));
}

TEST_CASE("position 0 is the identity, and rotary positions of nothing are nothing", "[ops]") {
  const auto x = normal<double>(Shape{2, 3, 1, 16}, 11);
  CHECK(close_to(rotated(x, {}), x, 0));
  for (const auto& shape :
       {Shape{0, 2, 3, 4}, Shape{2, 0, 3, 4}, Shape{2, 3, 0, 4}, Shape{2, 3, 4, 0}}) {
    CHECK_NOTHROW(rotated(Tensor4<float>(shape), {}));
    Tensor4<float> y(shape);
    RotaryTable<float> table(shape[3]);
    CHECK_NOTHROW(rotary_forward(y, table.angles(shape[2]), {}, y));  // of none, too
    CHECK_NOTHROW(rotary_forward(y, table.angles(4), {}, y));
  }
}

TEST_CASE("rotary positions tally three operations an element that turns", "[ops]") {
  using headwise_tests::Counting;
  const auto x = normal<Counting>(Shape{2, 3, 5, 12}, 12);
  Tensor4<Counting> y(x.shape());
  FlopTally flops;
  const auto counted = headwise_tests::count_operations(
      [&] { rotary_forward(x, {.width = 8}, y, {.flops = &flops}); });
  CHECK(flops.useful == 3 * 2 * 3 * 5 * 8);
  CHECK(counted.total() == flops.useful);
}

}  // namespace ops_rotary
