// What every kind of products is held against whose factors are rounded or split: numbers of all
// digits, NaN, and what a result may read.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/draw.hpp"
#include "support/gemm_case.hpp"

namespace headwise_tests {

inline const std::vector<Order> orders = {Order::row_major, Order::column_major, Order::spread};

/// Finite numbers that bf16 has finite ones for, of exponents that their bits say are at least
/// `least`; half of them lie halfway between two, or nearly.
inline Placed<float> drawn_bits(Index rows, Index columns, Order order, Index least,
                                std::uint64_t seed) {
  Draw draw(seed);
  Placed<float> x(rows, columns, order, 0);
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < columns; ++j) {
      constexpr std::uint32_t near[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
      const auto sign_and_exponent = static_cast<std::uint32_t>(draw.between(least, 253) << 23 |
                                                                (draw.coin() ? Index{1} << 31 : 0));
      const auto upper = static_cast<std::uint32_t>(draw.between(0, 127) << 16);
      const auto lower = draw.coin() ? near[static_cast<std::size_t>(draw.between(0, 5))]
                                     : static_cast<std::uint32_t>(draw.between(0, 0xffff));
      x.matrix()(i, j) = std::bit_cast<float>(sign_and_exponent | upper | lower);
    }
  }
  return x;
}

inline Placed<float> identity(Index n, Order order) {
  Placed<float> x(n, n, order, 0);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) x.matrix()(i, j) = i == j ? 1.0f : 0.0f;
  }
  return x;
}

/// With nothing, with all and with only the lowest bits of what NaN may carry: those, too, that a
/// sum that rounds would make 0 or infinite.
inline std::vector<float> nans() {
  std::vector<float> all;
  for (std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0xffffffffu}) {
    all.push_back(std::bit_cast<float>(bits));
  }
  return all;
}

/// That each of `poisons` in a factor shows, as shows(poison, y) says, in its own row or column and
/// changes no bit of another.
template <class Shows>
void check_own_row_and_column(const kernels::Kernels<float>& run, const std::vector<float>& poisons,
                              const Shows& shows) {
  constexpr Index M = 23, N = 70, K = 71;
  for (const Order order : orders) {
    const Placed<float> a(M, K, order, 1), b(K, N, order, 2);
    Placed<float> clean(M, N, Order::row_major, 3);
    gemm_by<float>(run, a.read(), b.read(), clean.matrix(), {M, N, K});
    for (float poison : poisons) {
      for (const auto& [at, k] : {std::pair<Index, Index>{0, 0}, {5, 40}, {16, 31}, {22, 70}}) {
        for (bool left : {true, false}) {
          Placed<float> x = left ? a : b, y = clean;
          (left ? x.matrix()(at, k) : x.matrix()(k, at)) = poison;
          gemm_by<float>(run, (left ? x : a).read(), (left ? b : x).read(), y.matrix(), {M, N, K});
          Index changed = 0, lost = 0;
          for (Index i = 0; i < M; ++i) {
            for (Index j = 0; j < N; ++j) {
              const bool own = (left ? i : j) == at;
              if (own && !shows(poison, y(i, j))) ++lost;
              if (!own && !same_bits_of(y(i, j), clean(i, j))) ++changed;
            }
          }
          CAPTURE(static_cast<int>(order), poison, at, k, left);
          CHECK(changed == 0);
          CHECK(lost == 0);
        }
      }
    }
  }
}

/// That c is overwritten without being read, and is the bias where there are no terms.
inline void check_c_is_overwritten(const kernels::Kernels<float>& run) {
  constexpr Index M = 19, N = 37;
  const Placed<float> a(M, 40, Order::row_major, 1), b(40, N, Order::row_major, 2);
  const Placed<float> bias(1, N, Order::row_major, 3);
  for (Index K : {0, 40}) {
    Placed<float> c(M, N, Order::row_major, 4), d(M, N, Order::spread, 4);
    Index different = 0, not_bias = 0;
    for (Placed<float>* y : {&c, &d}) {
      for (Index i = 0; i < M; ++i) {
        for (Index j = 0; j < N; ++j) {
          y->matrix()(i, j) = std::numeric_limits<float>::quiet_NaN();
        }
      }
      gemm_by<float>(run, a.read(), b.read(), y->matrix(), {M, N, K}, {.bias = bias.read().data});
    }
    for (Index i = 0; i < M; ++i) {
      for (Index j = 0; j < N; ++j) {
        if (!(c(i, j) == d(i, j))) ++different;
        if (K == 0 && c(i, j) != bias(0, j)) ++not_bias;
      }
    }
    CAPTURE(K);
    CHECK(different == 0);
    CHECK(not_bias == 0);
  }
}

}  // namespace headwise_tests
