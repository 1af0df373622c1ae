// Products whose factors are rounded to bf16, by every unit of this processor: sizes around the
// register tiles (6 rows, 16 of AMX; 2 or 4 vectors of columns), what is summed up together (2
// inner indices, 32 of AMX) and the cache blocks (96 and 192 rows, 768 columns, 64 or 384 terms).
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/bf16_units.hpp"
#include "support/product_checks.hpp"

namespace kernels_bf16_products {

using namespace headwise_tests;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The product of two numbers of bf16 has 16 digits, which float holds: the bound is that of any
/// product of float. (A factor that is cut off instead of rounded is some 10,000 of its units off.)
void check_sizes(const std::vector<Index>& Ms, const std::vector<Index>& Ns,
                 const std::vector<Index>& Ks) {
  const std::vector<Bf16Kernels> all = supported_bf16_kernels();
  std::vector<const kernels::Kernels<float>*> runs;
  for (const Bf16Kernels& of : all) runs.push_back(of.run);
  for (Index M : Ms) {
    for (Index N : Ns) {
      for (Index K : Ks) {
        for (const GemmCase<float>& c : gemm_cases<float>(M, N, K)) {
          CAPTURE(M, N, K, static_cast<int>(c.a), static_cast<int>(c.b), c.alpha);
          const double error = gemm_error<float>(runs, c, bf16_factor);
          CHECK(error <= gemm_bound(K));
          for (const Bf16Kernels& of : all) {  // whose it is
            if (error <= gemm_bound(K)) break;
            CAPTURE(of.name);
            CHECK(gemm_error<float>({of.run}, c, bf16_factor) <= gemm_bound(K));
          }
        }
      }
    }
  }
}

/// Whether `got` is what a product times 1 may make of x, whose sign a sum of zeros loses.
bool is_rounded(float got, float x, bool keeps_subnormals) {
  const float expected = bf16_factor(x);
  if (std::isnan(expected)) return std::isnan(got);
  return got == expected ||
         (!keeps_subnormals && got == 0 && std::abs(expected) < std::numeric_limits<float>::min());
}

/// x [M, 1] times 1, or 1 times x [1, N].
std::vector<float> times_one(const kernels::Kernels<float>& run, const std::vector<float>& x,
                             bool left) {
  const float one = 1;
  std::vector<float> y(x.size(), 7.0f);
  const auto n = static_cast<Index>(x.size());
  if (left) {
    gemm_by<float>(run, {x.data(), 1, 1}, {&one, 1, 1}, {y.data(), 1, 1}, {n, 1, 1});
  } else {
    gemm_by<float>(run, {&one, 1, 1}, {x.data(), n, 1}, {y.data(), n, 1}, {1, n, 1});
  }
  return y;
}

}  // namespace

TEST_CASE("a product of bf16 equals sums in long double over rounded factors, for every size",
          "[kernels]") {
  check_sizes({0, 1, 5, 6, 7}, {0, 1, 15, 16, 17}, {0, 1, 2, 3, 31, 32, 33});
  check_sizes({2, 15, 16, 17, 31, 33}, {2, 7, 31, 33}, {1, 5, 32, 64, 67});
  check_sizes({1, 7, 17}, {63, 64, 65, 95, 96, 97, 127, 129}, {1, 33});
}

TEST_CASE("a product of bf16 equals sums in long double around its cache blocks", "[kernels]") {
  check_sizes({7, 17}, {5}, {63, 64, 65, 95, 96, 97, 383, 384, 385, 769});
  check_sizes({95, 96, 97, 191, 192, 193, 383, 384, 385}, {3, 17}, {5, 35});
  check_sizes({5, 17}, {383, 384, 385, 767, 768, 769}, {3, 34});
  check_sizes({35}, {770}, {386});
}

TEST_CASE("times 1 every number of bf16 is itself", "[kernels]") {
  std::vector<float> all;
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    all.push_back(std::bit_cast<float>(bits << 16));
  for (const Bf16Kernels& of : supported_bf16_kernels()) {
    for (bool left : {true, false}) {
      const std::vector<float> y = times_one(*of.run, all, left);
      Index wrong = 0;
      for (std::size_t n = 0; n < all.size(); ++n) {
        if (!is_rounded(y[n], all[n], of.keeps_subnormals)) ++wrong;
      }
      CAPTURE(of.name, left);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a factor is rounded to the nearest number of bf16, of two to the even one",
          "[kernels]") {
  struct Rounding {
    float x, expected;
  };
  const std::vector<Rounding> roundings = {{0x1.00fffep0f, 0x1.00p0f},  // below halfway
                                           {0x1.01p0f, 0x1.00p0f},      // halfway: down
                                           {0x1.010002p0f, 0x1.02p0f},
                                           {0x1.03p0f, 0x1.04p0f},  // halfway: up
                                           {-0x1.03p0f, -0x1.04p0f},
                                           {0x1.05p-9f, 0x1.04p-9f},
                                           {0x1.ffp0f, 0x1p1f},  // carried into the exponent
                                           {0x1.fefffep0f, 0x1.fep0f},
                                           {0x1.01p-126f, 0x1p-126f},
                                           {0x1.fefffep127f, 0x1.fep127f},  // the largest
                                           {0x1.ffp127f, infinity},
                                           {3.4e38f, infinity},
                                           {-std::numeric_limits<float>::max(), -infinity},
                                           {infinity, infinity},
                                           {-infinity, -infinity},
                                           {0.0f, 0.0f}};
  std::vector<float> subnormals = {0x1p-149f, 0x1p-134f, 0x1.8p-133f, -0x1.8p-133f, 0x1.fp-127f};
  for (const Bf16Kernels& of : supported_bf16_kernels()) {
    for (bool left : {true, false}) {
      CAPTURE(of.name, left);
      for (const Rounding& r : roundings) {
        CAPTURE(r.x);
        CHECK(times_one(*of.run, {r.x}, left)[0] == r.expected);
      }
      for (float x : subnormals) {
        const float y = times_one(*of.run, {x}, left)[0];
        CAPTURE(x, y);
        CHECK(is_rounded(y, x, of.keeps_subnormals));
      }
      for (float x : nans()) CHECK(std::isnan(times_one(*of.run, {x}, left)[0]));
    }
  }
}

TEST_CASE("times the identity a matrix is rounded, wherever its numbers lie", "[kernels]") {
  for (const Bf16Kernels& of : supported_bf16_kernels()) {
    for (const Order order : orders) {
      for (Index n : {1, 2, 31, 64, 96, 131}) {
        for (bool left : {true, false}) {
          const Index rows = left ? 35 : n, columns = left ? n : 70;
          const Placed<float> x = drawn_bits(rows, columns, order, 0, 11);
          Placed<float> y(rows, columns, Order::row_major, 1);
          const Placed<float> one = identity(n, orders[static_cast<std::size_t>(n % 3)]);
          gemm_by<float>(*of.run, (left ? x : one).read(), (left ? one : x).read(), y.matrix(),
                         {rows, columns, n});
          Index wrong = 0;
          for (Index i = 0; i < rows; ++i) {
            for (Index j = 0; j < columns; ++j) {
              if (!is_rounded(y(i, j), x(i, j), of.keeps_subnormals)) ++wrong;
            }
          }
          CAPTURE(of.name, static_cast<int>(order), n, left);
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("NaN and what bf16 has no number for reach their own row and column alone", "[kernels]") {
  std::vector<float> poisons = nans();
  for (float x : {infinity, -infinity, 3.4e38f}) poisons.push_back(x);
  const auto shows = [](float poison, float y) {
    return std::isnan(poison) ? std::isnan(y) : std::isinf(y);
  };
  for (const Bf16Kernels& of : supported_bf16_kernels()) {
    CAPTURE(of.name);
    check_own_row_and_column(*of.run, poisons, shows);
  }
}

TEST_CASE("a product of bf16 gives a row and a column the same bits wherever they stand",
          "[kernels]") {
  for (const Bf16Kernels& of : supported_bf16_kernels()) {
    for (Index N : {1, 5, 19, 67}) {
      for (Index K : {1, 7, 33, 66, 386}) {
        CAPTURE(of.name);
        check_row_invariance<float>(*of.run, N, K);
      }
    }
  }
}

TEST_CASE("a product of bf16 overwrites c without reading it, and over no terms is the bias",
          "[kernels]") {
  for (const Bf16Kernels& of : supported_bf16_kernels()) {
    CAPTURE(of.name);
    check_c_is_overwritten(*of.run);
  }
}

}  // namespace kernels_bf16_products
