// Matrix products by the kernels of every instruction set of this processor, for sizes around the
// register tiles (6 rows; 2 vectors of columns, 4 with AVX-512) and the cache blocks (192 rows, 768
// columns, 384 terms, 64 without fused multiply-add).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/philox.hpp"
#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"
#include "support/instruction_sets.hpp"

using namespace headwise;
using headwise_tests::supported_instruction_sets;
using kernels::Matrix;

namespace {

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

/// A product on scratch of the size that the kernel asks for, full of NaN, between elements that
/// nobody may touch.
template <class T>
void run_gemm(InstructionSet set, Matrix<const T> a, Matrix<const T> b, Matrix<T> c,
              const kernels::Extents& size, const kernels::Epilogue<T>& epilogue = {}) {
  const auto& run = kernels::kernels_of<T>(set);
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

struct Options {
  double alpha = 1;
  bool bias = false, accumulate = false;
};

/// The largest error of c against sums in long double, in units of epsilon times the sum of the
/// absolute values of what was added. One for each instruction set.
template <class T>
double gemm_error(Index M, Index N, Index K, typename Placed<T>::Order a_order,
                  typename Placed<T>::Order b_order, typename Placed<T>::Order c_order,
                  const Options& options) {
  const Placed<T> a(M, K, a_order, 1), b(K, N, b_order, 2), bias(1, N, Placed<T>::row_major, 4);
  const Placed<T> before(M, N, c_order, 3);
  const kernels::Epilogue<T> epilogue{.alpha = T(options.alpha),
                                      .bias = options.bias ? bias.read().data : nullptr,
                                      .accumulate = options.accumulate};
  std::vector<Placed<T>> results;
  for (const auto set : supported_instruction_sets()) {
    results.push_back(before);
    run_gemm<T>(set, a.read(), b.read(), results.back().matrix(), {M, N, K}, epilogue);
    CAPTURE(name_of(set));
    CHECK(results.back().untouched_around(before));
  }
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
      for (const auto& c : results) {
        const long double error = std::abs(static_cast<long double>(c(i, j)) - sum);
        if (!(error <= worst * size)) worst = error / size;
      }
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
  CHECK(gemm_error<T>(M, N, K, P::row_major, P::column_major, P::row_major,
                      {.alpha = 0.3, .accumulate = true}) <= bound(K));
  CHECK(gemm_error<T>(M, N, K, P::spread, P::spread, P::column_major, {.alpha = 3, .bias = true}) <=
        bound(K));
}

/// Rows around the register tile and what is left of it; columns around vectors and panels.
template <class T>
void check_tiles() {
  for (Index M : {0, 1, 2, 3, 5, 6, 7, 9, 11, 13}) {
    for (Index N : {0, 1, 2, 7, 16, 17, 48, 63, 64, 65}) {
      for (Index K : {0, 1, 2, 9}) check_gemm<T>(M, N, K);
    }
  }
  for (Index N = 1; N <= 130; N += 3) check_gemm<T>(7, N, 17);
}

/// One below, at and above each block, and two blocks and one.
template <class T>
void check_blocks() {
  for (Index K : {63, 64, 65, 129, 383, 384, 385, 769}) check_gemm<T>(7, 5, K);
  for (Index N : {767, 768, 769, 1537}) check_gemm<T>(5, N, 3);
  for (Index M : {191, 192, 193, 385}) check_gemm<T>(M, 3, 5);
  check_gemm<T>(194, 770, 66);
  check_gemm<T>(13, 33, 386);
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T) == 16 ? 10 : sizeof(T)) == 0;  // x87 pads with 6 bytes
}

/// The same elements, column by column.
template <class T>
Placed<T> turned(const Placed<T>& a) {
  Placed<T> copy(a.rows, a.columns, Placed<T>::column_major, 0);
  for (Index i = 0; i < a.rows; ++i) {
    for (Index k = 0; k < a.columns; ++k) copy.matrix()(i, k) = a(i, k);
  }
  return copy;
}

template <class T>
void check_row_invariance(InstructionSet set, Index N, Index K) {
  constexpr Index M = 20;
  const Placed<T> a(M, K, Placed<T>::row_major, 5), b(K, N, Placed<T>::row_major, 6);
  const Placed<T> turned_a = turned(a), turned_b = turned(b);
  Placed<T> whole(M, N, Placed<T>::row_major, 7);
  run_gemm<T>(set, a.read(), b.read(), whole.matrix(), {M, N, K});
  bool equal = true;
  for (Index first = 0; first < M; ++first) {
    for (Index count = 1; count <= M - first; count += first % 2 + 1) {
      Placed<T> part(count, N, first % 3 == 0 ? Placed<T>::spread : Placed<T>::row_major, 8);
      run_gemm<T>(set, (first % 2 == 0 ? a : turned_a).read().from(first, 0),
                  (count % 2 == 0 ? b : turned_b).read(), part.matrix(), {count, N, K});
      for (Index i = 0; i < count; ++i) {
        for (Index j = 0; j < N; ++j) {
          equal = equal && same_bits(part(i, j), whole(first + i, j));
        }
      }
    }
  }
  CAPTURE(name_of(set), sizeof(T), N, K);
  CHECK(equal);

  equal = true;  // and the columns likewise: where a column stands changes nothing
  for (Index first : {1, 2, 3, 7, 17, 63}) {
    if (first >= N) continue;
    for (const auto* from : {&b, &turned_b}) {
      Placed<T> part(M, N - first, Placed<T>::row_major, 9);
      run_gemm<T>(set, a.read(), from->read().from(0, first), part.matrix(), {M, N - first, K});
      for (Index i = 0; i < M; ++i) {
        for (Index j = first; j < N; ++j) {
          equal = equal && same_bits(part(i, j - first), whole(i, j));
        }
      }
    }
  }
  CHECK(equal);
}

}  // namespace

TEST_CASE("gemm equals sums in long double for every size, layout and epilogue", "[kernels]") {
  check_tiles<float>();
  check_tiles<double>();
  check_tiles<long double>();
}

TEST_CASE("gemm equals sums in long double around its cache blocks, in every layout", "[kernels]") {
  check_blocks<float>();
  check_blocks<double>();
  check_blocks<long double>();
}

TEST_CASE("gemm gives a row and a column the same bits wherever they stand", "[kernels]") {
  for (const auto set : supported_instruction_sets()) {
    for (Index N : {1, 5, 16, 19, 67}) {
      for (Index K : {1, 7, 66, 386}) {
        check_row_invariance<float>(set, N, K);
        check_row_invariance<double>(set, N, K);
      }
    }
  }
  for (Index K : {1, 7, 66}) check_row_invariance<long double>(InstructionSet::generic, 5, K);
}

TEST_CASE("gemm overwrites c without reading it, NaN and all", "[kernels]") {
  constexpr Index M = 7, N = 21, K = 400;
  const Placed<double> a(M, K, Placed<double>::row_major, 1), b(K, N, Placed<double>::row_major, 2);
  for (const auto set : supported_instruction_sets()) {
    Placed<double> c(M, N, Placed<double>::row_major, 3), d(M, N, Placed<double>::spread, 3);
    for (Placed<double>* x : {&c, &d}) {
      for (Index i = 0; i < M; ++i) {
        for (Index j = 0; j < N; ++j) x->matrix()(i, j) = std::numeric_limits<double>::quiet_NaN();
      }
      run_gemm<double>(set, a.read(), b.read(), x->matrix(), {M, N, K});
    }
    bool finite_and_equal = true;
    for (Index i = 0; i < M; ++i) {
      for (Index j = 0; j < N; ++j) finite_and_equal = finite_and_equal && c(i, j) == d(i, j);
    }
    CAPTURE(name_of(set));
    CHECK(finite_and_equal);
  }
}

TEST_CASE("a product over no terms is the bias, or what was there", "[kernels]") {
  for (const auto set : supported_instruction_sets()) {
    CAPTURE(name_of(set));
    const float bias[3] = {1, 2, 3};
    float c[6] = {9, 9, 9, 9, 9, 9};
    run_gemm<float>(set, {nullptr, 0, 1}, {nullptr, 3, 1}, {c, 3, 1}, {2, 3, 0}, {.bias = bias});
    for (int n = 0; n < 6; ++n) CHECK(c[n] == bias[n % 3]);
    run_gemm<float>(set, {nullptr, 0, 1}, {nullptr, 3, 1}, {c, 3, 1}, {2, 3, 0},
                    {.accumulate = true});
    for (int n = 0; n < 6; ++n) CHECK(c[n] == bias[n % 3]);
  }
}

TEST_CASE("executed operations are those of whole vectors of columns, and what joins the blocks",
          "[kernels]") {
  const auto check = [](auto type, InstructionSet set, Index block) {
    using T = decltype(type);
    const auto& run = kernels::kernels_of<T>(set);
    CAPTURE(name_of(set), sizeof(T));
    CHECK(run.executed_gemm_flops({3, run.lanes, 5}) == 2 * 3 * run.lanes * 5);
    CHECK(run.executed_gemm_flops({3, run.lanes + 1, 5}) == 2 * 3 * 2 * run.lanes * 5);
    CHECK(run.executed_gemm_flops({3, run.lanes, 0}) == 0);
    CHECK(run.executed_gemm_flops({3, run.lanes, block}) == 2 * 3 * run.lanes * block);
    CHECK(run.executed_gemm_flops({3, run.lanes, 2 * block + 1}) ==
          3 * run.lanes * (2 * (2 * block + 1) + 2));
  };
  for (const auto set : supported_instruction_sets()) {
    const Index block = set == InstructionSet::generic ? 64 : 384;
    check(float{}, set, block);
    check(double{}, set, block);
  }
  check(static_cast<long double>(0), InstructionSet::generic, 64);
}
