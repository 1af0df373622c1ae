// Matrix products by the kernels: operands somewhere in storage that nobody else may touch, errors
// against sums in long double, and rows by themselves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"

namespace headwise_tests {

using namespace headwise;
using kernels::Matrix;

/// How the elements of a matrix lie; spread: no stride is 1.
enum class Order { row_major, column_major, spread };

/// A matrix somewhere in storage of its own, between and around elements that nobody may touch.
template <class T>
struct Placed {
  std::vector<T> storage;
  Index rows, columns, row, column;
  static constexpr Index margin = 3;

  using enum Order;

  Placed(Index rows_, Index columns_, Order order, std::uint64_t seed)
      : rows(rows_), columns(columns_) {
    row = order == column_major ? 1 : order == spread ? 2 * columns + 5 : columns + 1;
    column = order == column_major ? rows + 2 : order == spread ? 2 : 1;
    storage.resize(static_cast<std::size_t>(2 * margin + rows * row + columns * column));
    for (std::size_t n = 0; n < storage.size(); ++n) {
      storage[n] = static_cast<T>(philox_normal(philox_key(seed), n));
    }
  }
  Matrix<T> matrix() { return {storage.data() + margin, row, column}; }
  Matrix<const T> read() const { return {storage.data() + margin, row, column}; }
  const T& operator()(Index i, Index j) const { return read()(i, j); }

  /// Whether nothing but the elements of the matrix differs, by its bits, from what was before.
  bool untouched_around(const Placed& before) const {
    std::vector<bool> own(storage.size());
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < columns; ++j) {
        own[static_cast<std::size_t>(margin + i * row + j * column)] = true;
      }
    }
    for (std::size_t n = 0; n < storage.size(); ++n) {
      if (!own[n] && !(storage[n] == before.storage[n])) return false;
    }
    return true;
  }
};

/// The same elements in another order.
template <class T>
Placed<T> placed_as(const Placed<T>& a, Order order) {
  Placed<T> copy(a.rows, a.columns, order, 0);
  for (Index i = 0; i < a.rows; ++i) {
    for (Index k = 0; k < a.columns; ++k) copy.matrix()(i, k) = a(i, k);
  }
  return copy;
}

template <class T>
bool same_bits_of(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T) == 16 ? 10 : sizeof(T)) == 0;  // x87 pads with 6 bytes
}

/// A product on scratch of the size that the kernel asks for, full of NaN, between elements that
/// nobody may touch.
template <class T>
void gemm_by(const kernels::Kernels<T>& run, Matrix<const T> a, Matrix<const T> b, Matrix<T> c,
             const kernels::Extents& size, const kernels::Epilogue<T>& epilogue = {}) {
  constexpr Index guard = storage_alignment;
  const Index used = run.gemm_scratch(size);
  std::vector<T> scratch(static_cast<std::size_t>(used + 2 * guard),
                         std::numeric_limits<T>::quiet_NaN());
  std::fill_n(scratch.begin(), guard, T(7));
  std::fill_n(scratch.end() - guard, guard, T(7));
  run.gemm(a, b, c, size, epilogue, scratch.data() + guard);
  CHECK(std::count(scratch.begin(), scratch.begin() + guard, T(7)) == guard);
  CHECK(std::count(scratch.end() - guard, scratch.end(), T(7)) == guard);
}

/// A product of placed matrices.
template <class T>
struct GemmCase {
  kernels::Extents size;
  Order a, b, c;
  double alpha = 1;
  bool bias = false, accumulate = false;
};

/// The same size in some layouts, with each epilogue.
template <class T>
std::vector<GemmCase<T>> gemm_cases(Index M, Index N, Index K) {
  using enum Order;
  return {{{M, N, K}, row_major, row_major, row_major},
          {{M, N, K}, column_major, row_major, row_major, 1, true},
          {{M, N, K}, row_major, column_major, spread, -0.7, false, true},
          {{M, N, K}, row_major, column_major, row_major, 0.3, false, true},
          {{M, N, K}, row_major, row_major, row_major, 1, false, true},
          {{M, N, K}, column_major, column_major, row_major, 3, true},
          {{M, N, K}, spread, spread, column_major, 3, true}};
}

/// The largest error of c against sums in long double, in units of epsilon times the sum of the
/// absolute values of what was added. One for all `runs`; factor(x) is what they multiply for x.
template <class T, class F>
double gemm_error(const std::vector<const kernels::Kernels<T>*>& runs, const GemmCase<T>& of,
                  const F& factor) {
  const auto [M, N, K] = of.size;
  const Placed<T> a(M, K, of.a, 1), b(K, N, of.b, 2), bias(1, N, Placed<T>::row_major, 4);
  const Placed<T> before(M, N, of.c, 3);
  const kernels::Epilogue<T> epilogue{.alpha = T(of.alpha),
                                      .bias = of.bias ? bias.read().data : nullptr,
                                      .accumulate = of.accumulate};
  std::vector<Placed<T>> results;
  for (const auto* run : runs) {
    results.push_back(before);
    gemm_by<T>(*run, a.read(), b.read(), results.back().matrix(), of.size, epilogue);
    CHECK(results.back().untouched_around(before));
  }
  Placed<T> used_a = a, used_b = b;
  for (T& x : used_a.storage) x = factor(x);
  for (T& x : used_b.storage) x = factor(x);
  long double worst = 0;
  for (Index i = 0; i < M; ++i) {
    for (Index j = 0; j < N; ++j) {
      long double sum = 0, size = 0;
      const auto add = [&](long double term) {
        sum += term;
        size += std::abs(term);
      };
      for (Index k = 0; k < K; ++k) {
        add(static_cast<long double>(epilogue.alpha) * used_a(i, k) * used_b(k, j));
      }
      if (of.bias) add(bias(0, j));
      if (of.accumulate) add(before(i, j));
      for (const auto& c : results) {
        const long double error = std::abs(static_cast<long double>(c(i, j)) - sum);
        if (!(error <= worst * size)) worst = error / size;
      }
    }
  }
  return static_cast<double>(worst / std::numeric_limits<T>::epsilon());
}

/// Each of K terms adds at most half a unit, alpha, bias, the old value and the blocks a few more.
inline double gemm_bound(Index K) { return static_cast<double>(K) / 2 + 4; }

/// That rows and columns of a product have the same bits by themselves and among any others, in
/// any layout.
template <class T>
void check_row_invariance(const kernels::Kernels<T>& run, Index N, Index K) {
  constexpr Index M = 20;
  using enum Order;
  const Placed<T> a(M, K, row_major, 5), b(K, N, row_major, 6);
  const Placed<T> turned_a = placed_as(a, column_major), turned_b = placed_as(b, column_major);
  Placed<T> whole(M, N, row_major, 7);
  gemm_by<T>(run, a.read(), b.read(), whole.matrix(), {M, N, K});
  bool equal = true;
  for (Index first = 0; first < M; ++first) {
    for (Index count = 1; count <= M - first; count += first % 2 + 1) {
      Placed<T> part(count, N, first % 3 == 0 ? spread : row_major, 8);
      gemm_by<T>(run, (first % 2 == 0 ? a : turned_a).read().from(first, 0),
                 (count % 2 == 0 ? b : turned_b).read(), part.matrix(), {count, N, K});
      for (Index i = 0; i < count; ++i) {
        for (Index j = 0; j < N; ++j) {
          equal = equal && same_bits_of(part(i, j), whole(first + i, j));
        }
      }
    }
  }
  CAPTURE(sizeof(T), N, K);
  CHECK(equal);

  equal = true;  // and the columns likewise: where a column stands changes nothing
  for (Index first : {1, 2, 3, 7, 17, 63}) {
    if (first >= N) continue;
    for (const auto* from : {&b, &turned_b}) {
      Placed<T> part(M, N - first, row_major, 9);
      gemm_by<T>(run, a.read(), from->read().from(0, first), part.matrix(), {M, N - first, K});
      for (Index i = 0; i < M; ++i) {
        for (Index j = first; j < N; ++j) {
          equal = equal && same_bits_of(part(i, j - first), whole(i, j));
        }
      }
    }
  }
  CHECK(equal);
}

}  // namespace headwise_tests
