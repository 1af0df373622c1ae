// Products of floats in pieces of bf16, where this processor has AMX: sizes around its tiles (16
// rows, 1 to 4 vectors of columns), what is summed up together (32 inner indices), what stays in
// the first cache (64 of three pieces, 96 of two) and the cache blocks (96 rows, 768 columns, 192
// terms).
#include "headwise/kernels/split_kernels.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "headwise/runtime/bf16_unit.hpp"
#include "support/bf16_units.hpp"
#include "support/product_checks.hpp"

namespace kernels_split_products {

using namespace headwise_tests;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Kernels, and what leaving out the smallest products costs at most, in units of epsilon of each
/// term: 2^-24 and 2^-15 of it, and a little more.
struct SplitKernels {
  int pieces;
  const kernels::Kernels<float>* run;
  double left_out;
};

/// None where there is no AMX.
std::vector<SplitKernels> supported_split_kernels() {
  if (!is_supported(Bf16Unit::amx)) return {};
  return {{2, &kernels::split_kernels<float, 2>(), 257},
          {3, &kernels::split_kernels<float, 3>(), 0.51}};
}

void check_sizes(const std::vector<Index>& Ms, const std::vector<Index>& Ns,
                 const std::vector<Index>& Ks) {
  const auto itself = [](float x) { return x; };
  for (const SplitKernels& of : supported_split_kernels()) {
    for (Index M : Ms) {
      for (Index N : Ns) {
        for (Index K : Ks) {
          for (const GemmCase<float>& c : gemm_cases<float>(M, N, K)) {
            CAPTURE(of.pieces, M, N, K, static_cast<int>(c.a), static_cast<int>(c.b), c.alpha);
            CHECK(gemm_error<float>({of.run}, c, itself) <= of.left_out + gemm_bound(K));
          }
        }
      }
    }
  }
}

/// Root mean squares of the errors of before + a^T b, of K terms around `mean`.
std::vector<double> errors_of(const std::vector<const kernels::Kernels<float>*>& runs, Index K,
                              float mean, float before) {
  constexpr Index M = 18, N = 20;
  Placed<float> a(K, M, Order::row_major, 1), b(K, N, Order::row_major, 2);
  Placed<float> c(M, N, Order::row_major, 3);
  for (Placed<float>* x : {&a, &b}) {
    for (float& number : x->storage) number += mean;
  }
  for (float& number : c.storage) number = before * (1 + number / 8);
  std::vector<double> errors;
  for (const auto* run : runs) {
    Placed<float> got = c;
    gemm_by<float>(*run, a.read().transposed(), b.read(), got.matrix(), {M, N, K},
                   {.accumulate = true});
    double squares = 0;
    for (Index i = 0; i < M; ++i) {
      for (Index j = 0; j < N; ++j) {
        long double sum = c(i, j);
        for (Index k = 0; k < K; ++k) sum += static_cast<long double>(a(k, i)) * b(k, j);
        squares += std::pow(static_cast<double>(got(i, j) - sum), 2);
      }
    }
    errors.push_back(std::sqrt(squares / (M * N)));
  }
  return errors;
}

}  // namespace

TEST_CASE("three pieces are as exact as floats however many terms a sum has", "[kernels]") {
  if (!is_supported(Bf16Unit::amx)) return;
  const auto* floats = &kernels::kernels_here<float>();
  const auto* pieces = &kernels::split_kernels<float, 3>();
  for (float mean : {0.0f, 1.0f}) {
    for (Index K : {30, 192, 384, 2048, 8192}) {
      CAPTURE(mean, K);
      const auto alone = errors_of({floats, pieces}, K, mean, 0);
      CHECK(alone[1] <= 1.1 * alone[0]);
      // To what is larger than the sum 192 terms are added at once, not 384: twice as many times.
      const float before = 30 * (mean == 0 ? std::sqrt(float(K)) : float(K));
      const auto added = errors_of({floats, pieces}, K, mean, before);
      CHECK(added[1] <= 1.6 * added[0]);
    }
  }
}

TEST_CASE("a product in pieces equals sums in long double, for every size", "[kernels]") {
  check_sizes({0, 1, 15, 16, 17}, {0, 1, 15, 16, 17}, {0, 1, 2, 3, 31, 32, 33});
  check_sizes({2, 31, 33}, {2, 7, 31, 33, 63, 64, 65}, {1, 5, 63, 64, 65, 96, 97});
  check_sizes({1, 7, 17}, {63, 64, 65, 95, 96, 97, 127, 129}, {1, 33});
}

TEST_CASE("a product in pieces equals sums in long double around its cache blocks", "[kernels]") {
  check_sizes({7, 17}, {5}, {127, 128, 129, 191, 192, 193, 257, 385});
  check_sizes({95, 96, 97, 191, 193}, {3, 17}, {5, 35});
  check_sizes({5, 17}, {767, 768, 769}, {3, 34});
  check_sizes({35}, {770}, {194});
}

TEST_CASE("three pieces hold every digit of a number, two the first sixteen, wherever it lies",
          "[kernels]") {
  for (const SplitKernels& of : supported_split_kernels()) {
    for (const Order order : orders) {
      for (Index n : {1, 2, 31, 64, 96, 131, 200}) {
        for (bool left : {true, false}) {
          const Index rows = left ? 35 : n, columns = left ? n : 70;
          // Of numbers below 2^-100 a third piece may be 0.
          const Placed<float> x = drawn_bits(rows, columns, order, 28, 12);
          Placed<float> y(rows, columns, Order::row_major, 1);
          const Placed<float> one = identity(n, orders[static_cast<std::size_t>(n % 3)]);
          gemm_by<float>(*of.run, (left ? x : one).read(), (left ? one : x).read(), y.matrix(),
                         {rows, columns, n});
          Index wrong = 0;
          for (Index i = 0; i < rows; ++i) {
            for (Index j = 0; j < columns; ++j) {
              const float first = bf16_factor(x(i, j));
              const float two = first + bf16_factor(x(i, j) - first);
              if (y(i, j) != (of.pieces == 2 ? two : x(i, j))) ++wrong;
            }
          }
          CAPTURE(of.pieces, static_cast<int>(order), n, left);
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("a small number in pieces loses digits below 2^-126 alone", "[kernels]") {
  const float one = 1;
  for (const SplitKernels& of : supported_split_kernels()) {
    for (float x : {0x1.fffffep-100f, -0x1.234568p-110f, 0x1.fffffep-120f, 0x1.01fffep-126f,
                    0x1p-126f, 0x1.fffffcp-127f, 0x1p-149f, 0.0f}) {
      float y = 7, z = 7;
      gemm_by<float>(*of.run, {&x, 1, 1}, {&one, 1, 1}, {&y, 1, 1}, {1, 1, 1});
      gemm_by<float>(*of.run, {&one, 1, 1}, {&x, 1, 1}, {&z, 1, 1}, {1, 1, 1});
      const double digits = std::abs(x) * (of.pieces == 2 ? 0x1p-16 : 0);
      CAPTURE(of.pieces, x, y, z);
      CHECK(std::abs(double{y} - x) <= 0x1p-126 + digits);
      CHECK(std::abs(double{z} - x) <= 0x1p-126 + digits);
    }
  }
}

TEST_CASE("NaN and what is infinite in pieces make NaN of their own row and column alone",
          "[kernels]") {
  std::vector<float> poisons = nans();
  for (float x : {infinity, -infinity, 3.4e38f, -std::numeric_limits<float>::max()}) {
    poisons.push_back(x);
  }
  for (const SplitKernels& of : supported_split_kernels()) {
    CAPTURE(of.pieces);
    check_own_row_and_column(*of.run, poisons, [](float, float y) { return std::isnan(y); });
  }
}

TEST_CASE("a product in pieces gives a row and a column the same bits wherever they stand",
          "[kernels]") {
  for (const SplitKernels& of : supported_split_kernels()) {
    for (Index N : {1, 5, 19, 67}) {
      for (Index K : {1, 7, 33, 66, 98, 194}) {
        CAPTURE(of.pieces);
        check_row_invariance<float>(*of.run, N, K);
      }
    }
  }
}

TEST_CASE("a row that is added to has the same bits wherever it stands, by tiles", "[kernels]") {
  constexpr Index M = 37, N = 65;
  std::vector<const kernels::Kernels<float>*> runs;
  for (const SplitKernels& of : supported_split_kernels()) runs.push_back(of.run);
  for (const Bf16Kernels& of : supported_bf16_kernels()) runs.push_back(of.run);
  for (const auto* run : runs) {
    for (Index K : {1, 40, 200, 400}) {
      for (float alpha : {1.0f, -0.7f}) {
        const Placed<float> a(M, K, Order::row_major, 1), b(K, N, Order::row_major, 2);
        const Placed<float> before(M, N, Order::row_major, 3);
        const kernels::Epilogue<float> add{.alpha = alpha, .accumulate = true};
        Placed<float> whole = before, alone = before;
        gemm_by<float>(*run, a.read(), b.read(), whole.matrix(), {M, N, K}, add);
        for (Index i = 0; i < M; ++i) {
          gemm_by<float>(*run, a.read().from(i, 0), b.read(), alone.matrix().from(i, 0), {1, N, K},
                         add);
        }
        Index different = 0;
        for (Index i = 0; i < M; ++i) {
          for (Index j = 0; j < N; ++j) {
            if (!same_bits_of(alone(i, j), whole(i, j))) ++different;
          }
        }
        CAPTURE(K, alpha);
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("a product in pieces overwrites c without reading it, and over no terms is the bias",
          "[kernels]") {
  for (const SplitKernels& of : supported_split_kernels()) {
    CAPTURE(of.pieces);
    check_c_is_overwritten(*of.run);
  }
}

}  // namespace kernels_split_products
