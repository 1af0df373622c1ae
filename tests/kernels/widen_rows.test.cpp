// Floats and numbers of 16 bits, by the kernels of every instruction set of this processor, against
// the conversions of one number, which tests/tensor holds against IEEE 754's rules.
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/all_kernels.hpp"

namespace kernels_widen_rows {

using namespace headwise;
using headwise_tests::for_all_model_kernels;

namespace {

float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// All numbers of U, and of the floats between each and the next the middle, its neighbours, and
/// the next number's.
template <class U>
std::vector<float> numbers_about() {
  std::vector<float> numbers;
  for (std::uint32_t n = 0; n < 0x10000; ++n) {
    const auto at = [](std::uint32_t m) {
      return convert_float<float>(U{static_cast<std::uint16_t>(m)});
    };
    numbers.push_back(at(n));
    if ((n & 0x7fff) == 0x7fff) continue;
    const auto here = std::bit_cast<std::uint32_t>(at(n)),
               next = std::bit_cast<std::uint32_t>(at(n + 1));
    if (next < here) continue;  // from infinity to NaN
    const std::uint32_t middle = here + (next - here) / 2;
    for (const std::uint32_t bits : {here + 1, middle - 1, middle, middle + 1, next - 1}) {
      numbers.push_back(of_bits(bits));
    }
  }
  return numbers;
}

/// NaN of one is NaN of the other; of anything else the bits.
template <class T>
bool same(const T& a, const T& b) {
  const auto is_nan = [](const T& x) {  // by its bits, whatever -ffast-math says
    return (std::bit_cast<std::uint32_t>(convert_float<float>(x)) & 0x7fffffff) > 0x7f800000;
  };
  return std::memcmp(&a, &b, sizeof a) == 0 || (is_nan(a) && is_nan(b));
}

}  // namespace

TEMPLATE_TEST_CASE("each float is rounded to the nearest number of 16 bits, of two to the even one",
                   "[kernels]", BFloat16, Float16) {
  const std::vector<float> all = numbers_about<TestType>();
  CHECK(all.size() > 300'000);
  for_all_model_kernels([&](const auto& run, auto type) {
    if constexpr (std::same_as<decltype(type), float>) {
      std::vector<float> x = all;
      std::vector<TestType> y(x.size());
      run.round_elements(detail::stored_as<TestType>, x.data(), Index(x.size()), y.data());
      std::size_t wrong = 0;
      for (std::size_t n = 0; n < x.size(); ++n) {
        const auto expected = convert_float<TestType>(all[n]);
        if (!same(y[n], expected) || !same(x[n], convert_float<float>(y[n]))) {
          CAPTURE(n, std::bit_cast<std::uint32_t>(all[n]), y[n].bits, expected.bits);
          if (++wrong < 5) CHECK(y[n].bits == expected.bits);
        }
      }
      CHECK(wrong == 0);
    }
  });
}

TEMPLATE_TEST_CASE("as many numbers are rounded, and widened again, as are asked for", "[kernels]",
                   BFloat16, Float16) {
  const auto as = detail::stored_as<TestType>;
  for_all_model_kernels([&](const auto& run, auto type) {
    if constexpr (std::same_as<decltype(type), float>) {
      for (Index n = 0; n < 70; ++n) {
        std::vector<float> x(std::size_t(n) + 1), back(x.size(), 7.0f);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1 + 0.001f * float(i);
        const float behind = x.back();
        std::vector<TestType> y(x.size());
        run.round_elements(as, x.data(), n, y.data());
        run.widen_rows(as, {y.data(), n, 1}, 1, n, back.data());
        CAPTURE(n);
        CHECK(x.back() == behind);
        CHECK(y.back().bits == 0);
        CHECK(back.back() == 7.0f);
        x.back() = back.back();
        CHECK(x == back);
      }
    }
  });
}

}  // namespace kernels_widen_rows
