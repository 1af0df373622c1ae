// Products of few rows by large matrices have the bits of the same rows among many.
#include "headwise/kernels/kernels.hpp"

#include <vector>

#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/all_kernels.hpp"
#include "support/draw.hpp"

namespace kernels_thin_gemm {

using namespace headwise_tests;
using headwise::kernels::Epilogue;
using headwise::kernels::Extents;
using headwise::kernels::Matrix;

namespace {

template <class T>
struct Product {
  Extents size;   // of all rows
  bool columns;   // those of b lie dense, not its rows
  Index between;  // how much wider than dense
  Tensor2<T> a, b;
  Tensor1<T> bias;

  Product(const Extents& of, bool dense_columns, Index more)
      : size(of),
        columns(dense_columns),
        between(more),
        a(random_tensor<T>(Shape{of.M, of.K}, 1)),
        b(random_tensor<T>(columns ? Shape{of.N, of.K + more} : Shape{of.K, of.N + more}, 2)),
        bias(random_tensor<T>(Shape{of.N}, 3)) {}

  /// Rows first ... first + M - 1 of the product by themselves.
  Tensor2<T> rows(const kernels::Kernels<T>& run, Index first, Index M, bool accumulate) const {
    const Extents part{M, size.N, size.K};
    Tensor2<T> c(Shape{M, size.N});
    for (Index m = 0; m < M; ++m) {
      for (Index n = 0; n < size.N; ++n) c(m, n) = static_cast<T>(first + m) - T(0.1) * T(n);
    }
    Tensor1<T> scratch(Shape{run.gemm_scratch(part)});
    Epilogue<T> epilogue{.accumulate = accumulate};
    if (!accumulate) epilogue.bias = bias.data();
    const Index apart = b.extent(1);
    run.gemm({a.data() + first * size.K, size.K, 1},
             {b.data(), columns ? 1 : apart, columns ? apart : 1}, {c.data(), size.N, 1}, part,
             epilogue, scratch.data());
    return c;
  }
};

template <class T>
void check(const kernels::Kernels<T>& run, const Extents& size, bool columns, Index between) {
  const Product<T> product({30, size.N, size.K}, columns, between);
  for (const bool accumulate : {false, true}) {
    const Tensor2<T> all = product.rows(run, 0, 30, accumulate);
    for (const Index M : {1, 2, 3, 4}) {
      CAPTURE(sizeof(T), size.N, size.K, columns, between, accumulate, M);
      CHECK(bitwise_equal(product.rows(run, 7, M, accumulate), slice(In<T, 2>(all), 0, 7, M)));
    }
  }
}

}  // namespace

TEST_CASE("few rows times a large matrix have the bits that they have among many", "[kernels]") {
  for_all_kernels([](const auto& run, auto zero) {
    using T = decltype(zero);
    for (const Index between : {0, 16}) {
      check<T>(run, {0, 720, 401}, false, between);  // chains of 384 and 17
      check<T>(run, {0, 4112, 66}, false, between);  // sums in two parts and more
      check<T>(run, {0, 723, 401}, true, between);   // columns and rows behind whole squares
      check<T>(run, {0, 256, 1024}, true, between);
    }
  });
}

TEST_CASE("NaN in a column of a large matrix reaches that column of few rows", "[kernels]") {
  for_all_kernels([](const auto& run, auto zero) {
    using T = decltype(zero);
    for (const bool columns : {false, true}) {
      Product<T> product({2, 768, 400}, columns, 0);
      (columns ? product.b(5, 399) : product.b(399, 5)) = std::numeric_limits<T>::quiet_NaN();
      const Tensor2<T> c = product.rows(run, 0, 2, false);
      int nans = 0;
      for (const T value : c) nans += value != value ? 1 : 0;
      CHECK((nans == 2 && c(0, 5) != c(0, 5) && c(1, 5) != c(1, 5)));
    }
  });
}

}  // namespace kernels_thin_gemm
