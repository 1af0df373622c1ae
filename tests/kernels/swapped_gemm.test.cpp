// Products that are formed by their transpose have the bits of the same rows among many.
#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/all_kernels.hpp"
#include "support/draw.hpp"

namespace kernels_swapped_gemm {

using namespace headwise_tests;
using headwise::kernels::Extents;
using headwise::kernels::Matrix;

namespace {

constexpr Index many = 150;  // rows, more than are swapped

template <class T>
struct Product {
  Index N, K;
  Tensor2<T> a, b_t;  // [many, K], [N, K + 3]: columns of b lie dense

  Product(Index columns, Index terms)
      : N(columns),
        K(terms),
        a(random_tensor<T>(Shape{many, K}, 1)),
        b_t(random_tensor<T>(Shape{N, K + 3}, 2)) {}

  /// Rows first ... first + M - 1 of the product by themselves, `apart` from column to column.
  Tensor3<T> rows(const kernels::Kernels<T>& run, Index first, Index M, Index apart) const {
    Tensor3<T> c(Shape{M, N, apart});
    const Extents size{M, N, K};
    Tensor1<T> scratch(Shape{run.gemm_scratch(size)});
    run.gemm({a.data() + first * K, K, 1}, {b_t.data(), 1, K + 3}, {c.data(), N * apart, apart},
             size, {.alpha = T(0.75)}, scratch.data());
    return c;
  }
};

template <class T>
void check(const kernels::Kernels<T>& run, Index M, Index N, Index K) {
  const Product<T> product(N, K);
  for (const Index apart : {1, 2}) {
    const Tensor3<T> all = product.rows(run, 0, many, apart);
    CAPTURE(sizeof(T), run.lanes, M, N, K, apart);
    CHECK(bitwise_equal(product.rows(run, 5, M, apart), slice(In<T, 3>(all), 0, 5, M)));
  }
}

}  // namespace

TEST_CASE("some rows times a transposed matrix have the bits that they have among many",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto zero) {
    using T = decltype(zero);
    for (const Index M :
         {run.lanes - 1, run.lanes, run.lanes + 1, 2 * run.lanes, run.columns - 2, run.columns}) {
      check<T>(run, M, 2 * M, 16);
      check<T>(run, M, 2 * M + 3, 35);
      check<T>(run, M, 2 * M + run.lanes, 386);  // a chain of 384, or of 64, and a second one
      check<T>(run, M, 777, 64);
    }
    // A right factor of a megabyte, for which lanes may be idle.
    for (const Index M : {Index{2}, Index{3}, Index{5}, run.lanes + 1}) check<T>(run, M, 4099, 66);
    // One of a little less, for which any number of lanes may be.
    const Index columns = 960'000 / (66 * static_cast<Index>(sizeof(T)));
    for (Index M = 1; M < run.lanes + 2; ++M) check<T>(run, M, columns, 66);
  });
}

}  // namespace kernels_swapped_gemm
