// Matrix products by the kernels of every instruction set of this processor, for sizes around the
// register tiles (6 rows; 2 vectors of columns, 4 with AVX-512) and the cache blocks (192 rows, 768
// columns, 384 terms, 64 without fused multiply-add).
#include <limits>
#include <vector>

#include "support/gemm_case.hpp"
#include "support/instruction_sets.hpp"

namespace kernels_gemm {

using namespace headwise_tests;

namespace {

template <class T>
std::vector<const kernels::Kernels<T>*> kernels_of_all_sets() {
  std::vector<const kernels::Kernels<T>*> all;
  for (const auto set : supported_instruction_sets()) all.push_back(&kernels::kernels_of<T>(set));
  return all;
}

template <class T>
void check_gemm(Index M, Index N, Index K) {
  for (const GemmCase<T>& of : gemm_cases<T>(M, N, K)) {
    CAPTURE(sizeof(T), M, N, K, static_cast<int>(of.a), static_cast<int>(of.b), of.alpha);
    CHECK(gemm_error<T>(kernels_of_all_sets<T>(), of, [](const T& x) { return x; }) <=
          gemm_bound(K));
  }
}

/// Rows around the register tile and what is left of it; columns around vectors and panels.
template <class T>
void check_tiles() {
  for (Index M : {0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 13}) {
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
  // Eight rows, and twelve of one vector behind whole panels, also of an `a` that was packed six by
  // six.
  check_gemm<T>(8, 136, 150);
  for (Index N : {136, 140, 144}) check_gemm<T>(31, N, 150);
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
        CAPTURE(name_of(set));
        check_row_invariance<float>(kernels::kernels_of<float>(set), N, K);
        check_row_invariance<double>(kernels::kernels_of<double>(set), N, K);
      }
    }
  }
  const auto& generic = kernels::kernels_of<long double>(InstructionSet::generic);
  for (Index K : {1, 7, 66}) check_row_invariance<long double>(generic, 5, K);
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
      gemm_by<double>(kernels::kernels_of<double>(set), a.read(), b.read(), x->matrix(), {M, N, K});
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
    gemm_by<float>(kernels::kernels_of<float>(set), {nullptr, 0, 1}, {nullptr, 3, 1}, {c, 3, 1},
                   {2, 3, 0}, {.bias = bias});
    for (int n = 0; n < 6; ++n) CHECK(c[n] == bias[n % 3]);
    gemm_by<float>(kernels::kernels_of<float>(set), {nullptr, 0, 1}, {nullptr, 3, 1}, {c, 3, 1},
                   {2, 3, 0}, {.accumulate = true});
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

}  // namespace kernels_gemm
