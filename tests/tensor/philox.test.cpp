#include "headwise/tensor/philox.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

#include "support/catch.hpp"

namespace tensor_philox {

using namespace headwise;

using Words = std::array<std::uint32_t, 4>;

TEST_CASE("philox with 10 rounds gives the published known answers", "[tensor]") {
  STATIC_REQUIRE(philox<10>({0, 0, 0, 0}, {0, 0}) ==
                 Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  STATIC_REQUIRE(philox<10>({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
                            {0xffffffffu, 0xffffffffu}) ==
                 Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  STATIC_REQUIRE(philox<10>({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                            {0xa4093822u, 0x299f31d0u}) ==
                 Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("philox with 7 rounds never changes from release to release", "[tensor]") {
  CHECK(philox<7>({0, 0, 0, 0}, {0, 0}) ==
        Words{0x5f6fb709u, 0x0d893f64u, 0x4f121f81u, 0x4f730a48u});
  CHECK(philox<7>({1, 2, 3, 4}, {5, 6}) ==
        Words{0xcceb838bu, 0x94b8d4abu, 0x3b19758cu, 0x0e1a9304u});
}

TEST_CASE("one bit of counter or key changes half of the bits that philox draws", "[tensor]") {
  const auto flipped_share = [](auto draw) {
    double flipped = 0;
    for (int bit = 0; bit < 32; ++bit) {
      for (std::uint32_t n = 0; n < 64; ++n) {
        const Words a = draw(n, 0u), b = draw(n, 1u << bit);
        for (std::size_t w = 0; w < 4; ++w) flipped += std::popcount(a[w] ^ b[w]);
      }
    }
    return flipped / (32 * 64 * 128);
  };
  // 262144 bits: the share's standard deviation is 0.001.
  const auto by_counter = [](std::uint32_t n, std::uint32_t flip) {
    return philox<7>({n, 0, 0, flip}, {1, 2});
  };
  const auto by_key = [](std::uint32_t n, std::uint32_t flip) {
    return philox<7>({n, 0, 0, 0}, {1, 2 ^ flip});
  };
  CHECK(std::abs(flipped_share(by_counter) - 0.5) < 0.004);
  CHECK(std::abs(flipped_share(by_key) - 0.5) < 0.004);
}

TEST_CASE("each seed, stream and step has a key of its own", "[tensor]") {
  std::set<std::array<std::uint32_t, 2>> keys;
  for (std::uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
    for (std::uint32_t stream : {0u, 1u, 2u}) {
      for (std::uint64_t step : {0ull, 1ull, 1ull << 32, ~0ull}) {
        keys.insert(philox_key(seed, stream, step));
      }
    }
  }
  CHECK(keys.size() == 4 * 3 * 4);
}

TEST_CASE("unit_interval lies above 0 and reaches 1", "[tensor]") {
  constexpr std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  CHECK(unit_interval(0, 0) == std::ldexp(1.0, -53));
  CHECK(unit_interval(most, most) == 1.0);
  CHECK(unit_interval(0, 1u << 31) == 0.5 + std::ldexp(1.0, -53));
  for (std::uint32_t n = 0; n < 1000; ++n) {
    const Words words = philox<10>({n, 0, 0, 0}, {3, 4});
    const double u = unit_interval(words[0], words[1]);
    CHECK(u > 0.0);
    CHECK(u <= 1.0);
  }
}

TEST_CASE("philox_normal has the moments of the standard normal distribution", "[tensor]") {
  constexpr int count = 100000;
  const auto key = philox_key(20, 3, 7);
  double sum = 0, squares = 0, cubes = 0, fourths = 0;
  for (int n = 0; n < count; ++n) {
    const double x = philox_normal(key, static_cast<std::uint64_t>(n));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
  }
  // Four standard deviations of each sample moment: 1, 2, 15 and 96 are the variances of
  // x, x^2, x^3 and x^4.
  const double root = std::sqrt(static_cast<double>(count));
  CHECK(std::abs(sum / count) < 4 * 1 / root);
  CHECK(std::abs(squares / count - 1) < 4 * std::sqrt(2.0) / root);
  CHECK(std::abs(cubes / count) < 4 * std::sqrt(15.0) / root);
  CHECK(std::abs(fourths / count - 3) < 4 * std::sqrt(96.0) / root);
}

TEST_CASE("philox_normal of neighbours and of other keys is uncorrelated", "[tensor]") {
  constexpr int count = 100000;
  double neighbours = 0, other_step = 0;
  for (int n = 0; n < count; ++n) {
    const auto position = static_cast<std::uint64_t>(n);
    const double x = philox_normal(philox_key(1, 1, 0), position);
    neighbours += x * philox_normal(philox_key(1, 1, 0), position + 1);
    other_step += x * philox_normal(philox_key(1, 1, 1), position);
  }
  const double bound = 4 / std::sqrt(static_cast<double>(count));
  CHECK(std::abs(neighbours / count) < bound);
  CHECK(std::abs(other_step / count) < bound);
}

TEST_CASE("philox_normal uses all 64 bits of the position", "[tensor]") {
  const auto key = philox_key(9);
  CHECK(philox_normal(key, 5) == philox_normal(key, 5));
  CHECK(philox_normal(key, 5) != philox_normal(key, 5 + (std::uint64_t{1} << 32)));
}

}  // namespace tensor_philox
