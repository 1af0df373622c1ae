#include "headwise/kernels/gemm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"

using namespace headwise;
using kernels::Matrix;

namespace {

using Isa = simd::Best;

/// A matrix somewhere in storage of its own, between and around elements that nobody may touch.
template <class T>
struct Placed {
  std::vector<T> storage;
  Index rows, columns, row, column;
  static constexpr Index margin = 3;

  enum Order { row_major, column_major, spread };  // spread: no stride is 1

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

template <class T>
std::vector<T> scratch() {
  return std::vector<T>(static_cast<std::size_t>(kernels::GemmTile<T, Isa>::scratch));
}

struct Options {
  double alpha = 1;
  bool bias = false, accumulate = false;
};

/// The largest error of c against sums in long double, in units of epsilon times the sum of the
/// absolute values of what was added.
template <class T>
double gemm_error(Index M, Index N, Index K, typename Placed<T>::Order a_order,
                  typename Placed<T>::Order b_order, typename Placed<T>::Order c_order,
                  const Options& options) {
  const Placed<T> a(M, K, a_order, 1), b(K, N, b_order, 2), bias(1, N, Placed<T>::row_major, 4);
  Placed<T> c(M, N, c_order, 3);
  const Placed<T> before = c;
  auto packed = scratch<T>();
  const kernels::Epilogue<T> epilogue{.alpha = T(options.alpha),
                                      .bias = options.bias ? bias.read().data : nullptr,
                                      .accumulate = options.accumulate};
  kernels::gemm<T, Isa>(a.read(), b.read(), c.matrix(), {M, N, K}, epilogue, packed.data());
  CHECK(c.untouched_around(before));
  long double worst = 0;
  for (Index i = 0; i < M; ++i) {
    for (Index j = 0; j < N; ++j) {
      long double sum = 0, size = 0;
      const auto add = [&](long double term) {
        sum += term;
        size += std::abs(term);
      };
      for (Index k = 0; k < K; ++k) {
        add(static_cast<long double>(epilogue.alpha) * a(i, k) * b(k, j));
      }
      if (options.bias) add(bias(0, j));
      if (options.accumulate) add(before(i, j));
      const long double error = std::abs(static_cast<long double>(c(i, j)) - sum);
      if (!(error <= worst * size)) worst = error / size;
    }
  }
  return static_cast<double>(worst / std::numeric_limits<T>::epsilon());
}

/// Each of K terms adds at most half a unit, alpha, bias, the old value and the blocks a few more.
double bound(Index K) { return static_cast<double>(K) / 2 + 4; }

template <class T>
void check_gemm(Index M, Index N, Index K) {
  using P = Placed<T>;
  CAPTURE(sizeof(T), M, N, K);
  CHECK(gemm_error<T>(M, N, K, P::row_major, P::row_major, P::row_major, {}) <= bound(K));
  CHECK(gemm_error<T>(M, N, K, P::column_major, P::row_major, P::row_major, {.bias = true}) <=
        bound(K));
  CHECK(gemm_error<T>(M, N, K, P::row_major, P::column_major, P::spread,
                      {.alpha = -0.7, .accumulate = true}) <= bound(K));
  CHECK(gemm_error<T>(M, N, K, P::spread, P::spread, P::column_major, {.alpha = 3, .bias = true}) <=
        bound(K));
}

template <class T>
void check_sizes() {
  for (Index M : {0, 1, 2, 5, 6, 7, 8, 9, 17}) {
    for (Index N : {0, 1, 2, 5, 7, 8, 9, 17}) {
      for (Index K : {0, 1, 2, 6, 9}) check_gemm<T>(M, N, K);
    }
  }
  // One below, at and above the blocks of 256.
  for (Index K : {64, 255, 256, 257, 513}) check_gemm<T>(7, 5, K);
  for (Index N : {64, 255, 256, 257}) check_gemm<T>(5, N, 3);
  for (Index M : {64, 255, 257}) check_gemm<T>(M, 3, 5);
  check_gemm<T>(13, 259, 258);
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T) == 16 ? 10 : sizeof(T)) == 0;  // x87 pads with 6 bytes
}

template <class T>
void check_row_invariance(Index N, Index K) {
  constexpr Index M = 20;
  const Placed<T> a(M, K, Placed<T>::row_major, 5), b(K, N, Placed<T>::row_major, 6);
  const Placed<T> turned_a = [&] {
    Placed<T> copy(M, K, Placed<T>::column_major, 0);
    for (Index i = 0; i < M; ++i) {
      for (Index k = 0; k < K; ++k) copy.matrix()(i, k) = a(i, k);
    }
    return copy;
  }();
  auto packed = scratch<T>();
  Placed<T> whole(M, N, Placed<T>::row_major, 7);
  kernels::gemm<T, Isa>(a.read(), b.read(), whole.matrix(), {M, N, K}, {}, packed.data());
  bool equal = true;
  for (Index first = 0; first < M; ++first) {
    for (Index count = 1; count <= M - first; count += first % 2 + 1) {
      Placed<T> part(count, N, first % 3 == 0 ? Placed<T>::spread : Placed<T>::row_major, 8);
      kernels::gemm<T, Isa>((first % 2 == 0 ? a : turned_a).read().from(first, 0), b.read(),
                            part.matrix(), {count, N, K}, {}, packed.data());
      for (Index i = 0; i < count; ++i) {
        for (Index j = 0; j < N; ++j) {
          equal = equal && same_bits(part(i, j), whole(first + i, j));
        }
      }
    }
  }
  CAPTURE(sizeof(T), N, K);
  CHECK(equal);

  equal = true;  // and the columns likewise: where a column stands changes nothing
  for (Index first : {1, 2, 3, 7}) {
    if (first >= N) continue;
    Placed<T> part(M, N - first, Placed<T>::row_major, 9);
    kernels::gemm<T, Isa>(a.read(), b.read().from(0, first), part.matrix(), {M, N - first, K}, {},
                          packed.data());
    for (Index i = 0; i < M; ++i) {
      for (Index j = first; j < N; ++j) equal = equal && same_bits(part(i, j - first), whole(i, j));
    }
  }
  CHECK(equal);
}

}  // namespace

TEST_CASE("gemm equals sums in long double for every size, layout and epilogue", "[kernels]") {
  check_sizes<float>();
  check_sizes<double>();
  check_sizes<long double>();
}

TEST_CASE("gemm gives a row and a column the same bits wherever they stand", "[kernels]") {
  for (Index N : {1, 5, 16, 19}) {
    for (Index K : {1, 7, 300}) {
      check_row_invariance<float>(N, K);
      check_row_invariance<double>(N, K);
      check_row_invariance<long double>(N, K);
    }
  }
}

TEST_CASE("gemm overwrites c without reading it, NaN and all", "[kernels]") {
  constexpr Index M = 7, N = 5, K = 300;
  const Placed<double> a(M, K, Placed<double>::row_major, 1), b(K, N, Placed<double>::row_major, 2);
  auto packed = scratch<double>();
  std::fill(packed.begin(), packed.end(), std::numeric_limits<double>::quiet_NaN());
  Placed<double> c(M, N, Placed<double>::row_major, 3), d(M, N, Placed<double>::spread, 3);
  for (Placed<double>* x : {&c, &d}) {
    for (Index i = 0; i < M; ++i) {
      for (Index j = 0; j < N; ++j) x->matrix()(i, j) = std::numeric_limits<double>::quiet_NaN();
    }
    kernels::gemm<double, Isa>(a.read(), b.read(), x->matrix(), {M, N, K}, {}, packed.data());
  }
  bool finite_and_equal = true;
  for (Index i = 0; i < M; ++i) {
    for (Index j = 0; j < N; ++j) finite_and_equal = finite_and_equal && c(i, j) == d(i, j);
  }
  CHECK(finite_and_equal);
}

TEST_CASE("a product over no terms is the bias, or what was there", "[kernels]") {
  auto packed = scratch<float>();
  const float bias[3] = {1, 2, 3};
  float c[6] = {9, 9, 9, 9, 9, 9};
  kernels::gemm<float, Isa>({nullptr, 0, 1}, {nullptr, 3, 1}, {c, 3, 1}, {2, 3, 0}, {.bias = bias},
                            packed.data());
  for (int n = 0; n < 6; ++n) CHECK(c[n] == bias[n % 3]);
  kernels::gemm<float, Isa>({nullptr, 0, 1}, {nullptr, 3, 1}, {c, 3, 1}, {2, 3, 0},
                            {.accumulate = true}, packed.data());
  for (int n = 0; n < 6; ++n) CHECK(c[n] == bias[n % 3]);
}
