#include "headwise/io/dtype.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "headwise/tensor/philox.hpp"
#include "support/catch.hpp"

namespace io_dtype {

using namespace headwise;

namespace {

/// The number that the fields of a 2-byte type spell, from their definition; NaN not asked for.
double spelled(unsigned bits, int exponent_bits, int fraction_bits) {
  const int exponent = static_cast<int>((bits & 0x7FFF) >> fraction_bits);
  const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int implied = exponent == 0 ? 0 : 1 << fraction_bits;
  const double magnitude =
      std::ldexp(implied + fraction, std::max(exponent, 1) - bias - fraction_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

struct TwoByteType {
  int exponent_bits, fraction_bits;
  unsigned infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
  bool nan(unsigned bits) const { return (bits & 0x7FFF) > infinity(); }
};
constexpr TwoByteType float16{5, 10};
constexpr TwoByteType bfloat16{8, 7};

/// The nearest of all numbers >= 0 of a type, found by looking; of two, the one with even bits.
unsigned nearest(double magnitude, TwoByteType type) {
  unsigned below = 0;
  unsigned above = type.infinity();
  while (above - below > 1) {
    const unsigned middle = (below + above) / 2;
    (spelled(middle, type.exponent_bits, type.fraction_bits) <= magnitude ? below : above) = middle;
  }
  // Infinity stands where the next finite number would.
  const double low = spelled(below, type.exponent_bits, type.fraction_bits);
  const double high = spelled(above, type.exponent_bits, type.fraction_bits);
  if (magnitude - low == high - magnitude) return (below & 1) == 0 ? below : above;
  return magnitude - low < high - magnitude ? below : above;
}

template <class Half>
void check_all_patterns(TwoByteType type) {
  for (unsigned pattern = 0; pattern < 65536; ++pattern) {
    CAPTURE(pattern);
    const Half half{static_cast<std::uint16_t>(pattern)};
    const float single = convert_float<float>(half);
    const double wide = convert_float<double>(half);
    if (convert_float<Half>(single) != half) FAIL("does not return from float");
    if (convert_float<Half>(wide) != half) FAIL("does not return from double");
    if (type.nan(pattern)) {
      if (!std::isnan(single) || !std::isnan(wide)) FAIL("is no longer NaN");
    } else if ((pattern & 0x7FFF) == type.infinity()) {
      const double infinity = std::numeric_limits<double>::infinity();
      if (wide != (pattern & 0x8000 ? -infinity : infinity)) FAIL("is not infinite");
    } else {
      const double value = spelled(pattern, type.exponent_bits, type.fraction_bits);
      if (wide != value || static_cast<double>(single) != value) FAIL("is another number");
      if (std::signbit(single) != ((pattern & 0x8000) != 0)) FAIL("has another sign");
    }
  }
  SUCCEED();
}

template <class Half>
void check_rounding(TwoByteType type, double magnitude) {
  CAPTURE(magnitude);
  const unsigned expected = nearest(magnitude, type);
  REQUIRE(convert_float<Half>(magnitude).bits == expected);
  REQUIRE(convert_float<Half>(-magnitude).bits == (expected | 0x8000));
  const float single = static_cast<float>(magnitude);
  REQUIRE(convert_float<Half>(single).bits == nearest(static_cast<double>(single), type));
}

/// Every midpoint between two neighbours, and the numbers right beside it.
template <class Half>
void check_midpoints(TwoByteType type) {
  for (unsigned pattern = 0; pattern < type.infinity(); ++pattern) {
    const double middle = (spelled(pattern, type.exponent_bits, type.fraction_bits) +
                           spelled(pattern + 1, type.exponent_bits, type.fraction_bits)) /
                          2;
    const unsigned even = (pattern & 1) == 0 ? pattern : pattern + 1;
    CAPTURE(pattern);
    if (convert_float<Half>(middle).bits != even) FAIL("a tie does not go to even");
    if (convert_float<Half>(std::nextafter(middle, 0.0)).bits != pattern) FAIL("below a tie");
    if (convert_float<Half>(std::nextafter(middle, 1e300)).bits != pattern + 1) FAIL("above a tie");
  }
  SUCCEED();
}

}  // namespace

TEST_CASE("every Float16 survives the way to float and double and back", "[io]") {
  check_all_patterns<Float16>(float16);
}

TEST_CASE("every BFloat16 survives the way to float and double and back", "[io]") {
  check_all_patterns<BFloat16>(bfloat16);
}

TEST_CASE("between any two neighbours of a 2-byte type numbers round to nearest, ties to even",
          "[io]") {
  check_midpoints<Float16>(float16);
  check_midpoints<BFloat16>(bfloat16);
}

TEST_CASE("numbers of any size round to the 2-byte number that a search finds nearest", "[io]") {
  for (std::uint32_t n = 0; n < 20000; ++n) {
    const auto words = philox({n, 0, 0, 0}, philox_key(17));
    const int exponent = static_cast<int>(words[2] % 60) - 35;
    const double magnitude = std::ldexp(unit_interval(words[0], words[1]), exponent);
    CAPTURE(n);
    check_rounding<Float16>(float16, magnitude);
    check_rounding<BFloat16>(bfloat16, magnitude);
  }
}

TEST_CASE("2-byte floats have the patterns that their standards print", "[io]") {
  CHECK(convert_float<Float16>(1.0f).bits == 0x3C00);
  CHECK(convert_float<Float16>(-2.0f).bits == 0xC000);
  CHECK(convert_float<Float16>(0.333251953125f).bits == 0x3555);
  CHECK(convert_float<Float16>(65504.0f).bits == 0x7BFF);
  CHECK(convert_float<Float16>(65519.99).bits == 0x7BFF);
  CHECK(convert_float<Float16>(65520.0).bits == 0x7C00);
  CHECK(convert_float<Float16>(0x1p-14f).bits == 0x0400);
  CHECK(convert_float<Float16>(0x1p-24f).bits == 0x0001);
  CHECK(convert_float<Float16>(0x1p-25f).bits == 0x0000);
  CHECK(convert_float<Float16>(0x1.000002p-25f).bits == 0x0001);
  CHECK(convert_float<Float16>(-0.0f).bits == 0x8000);
  CHECK(convert_float<Float16>(0x1p-1074).bits == 0x0000);
  CHECK(convert_float<BFloat16>(1.0f).bits == 0x3F80);
  CHECK(convert_float<BFloat16>(3.140625f).bits == 0x4049);
  CHECK(convert_float<BFloat16>(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(convert_float<BFloat16>(0x1p-133f).bits == 0x0001);
  CHECK(convert_float<Float16>(std::numeric_limits<float>::infinity()).bits == 0x7C00);
  CHECK(convert_float<Float16>(-std::numeric_limits<double>::infinity()).bits == 0xFC00);
  CHECK(convert_float<Float16>(std::numeric_limits<double>::quiet_NaN()).bits == 0x7E00);
  CHECK(convert_float<BFloat16>(std::numeric_limits<float>::quiet_NaN()).bits == 0x7FC0);
}

TEST_CASE("a NaN whose payload does not fit stays a NaN", "[io]") {
  const float low_payload = std::bit_cast<float>(0x7F800001u);
  CHECK(convert_float<Float16>(low_payload).bits == 0x7E00);
  CHECK(convert_float<BFloat16>(low_payload).bits == 0x7FC0);
}

TEST_CASE("a double rounds to Float16 once, not by way of float", "[io]") {
  const double above_a_tie = 1.0 + 0x1p-11 + 0x1p-40;  // as a float it is the tie itself
  CHECK(convert_float<Float16>(above_a_tie).bits == 0x3C01);
  CHECK(convert_float<Float16>(static_cast<float>(above_a_tie)).bits == 0x3C00);
}

TEST_CASE("double and float convert to the bits that the machine gives", "[io]") {
  for (std::uint32_t n = 0; n < 20000; ++n) {
    const auto words = philox({n, 1, 0, 0}, philox_key(18));
    const std::uint64_t bits = (std::uint64_t{words[0]} << 32) | words[1];
    // Half of them near and below float's smallest normal number.
    const double wide = (n & 1) != 0 ? std::ldexp(1.0 + unit_interval(words[0], words[1]),
                                                  -120 - static_cast<int>(words[2] % 32))
                                     : std::bit_cast<double>(bits);
    // NaN by its bits: clang 14 with -ffast-math has no std::isnan.
    if ((std::bit_cast<std::uint64_t>(wide) << 1) > 0xFFE0000000000000u) continue;
    CAPTURE(n, wide);
    const float narrow = convert_float<float>(wide);
    REQUIRE(std::bit_cast<std::uint32_t>(narrow) ==
            std::bit_cast<std::uint32_t>(static_cast<float>(wide)));
    REQUIRE(convert_float<double>(narrow) == static_cast<double>(narrow));
  }
}

TEST_CASE("every dtype is found again by its name", "[io]") {
  for (unsigned d = 0; d < detail::dtype_infos.size(); ++d) {
    const auto dtype = static_cast<DType>(d);
    CAPTURE(dtype_name(dtype));
    CHECK(dtype_from_name(dtype_name(dtype)) == dtype);
  }
  CHECK(dtype_name(DType::u64) == "U64");
  CHECK(dtype_name(DType::bf16) == "BF16");
  CHECK(dtype_name(DType::boolean) == "BOOL");
  CHECK(dtype_bytes(DType::f64) == 8);
  CHECK(dtype_bytes(DType::f16) == 2);
  CHECK_FALSE(dtype_from_name("f64"));
  CHECK_FALSE(dtype_from_name(""));
}

}  // namespace io_dtype
