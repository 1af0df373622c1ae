// Products of few terms that are added to what is there have the bits of the same product formed by
// tiles.
#include "headwise/kernels/kernels.hpp"
#include "headwise/tensor/view_ops.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/all_kernels.hpp"
#include "support/draw.hpp"

namespace kernels_few_terms {

using namespace headwise_tests;
using headwise::kernels::Extents;
using headwise::kernels::Matrix;

namespace {

/// c + x^T dy, with what lies behind c's rows; `copied`: x^T is read from a copy along its rows,
/// which goes the way of all products (of one term, too: rows of the copy do not lie side by side).
template <class T>
Tensor2<T> sum(const kernels::Kernels<T>& run, const Extents& size, bool copied) {
  constexpr Index between = 5;
  const auto [M, N, K] = size;
  const auto x = random_tensor<T>(Shape{K, M + between}, 1);
  const auto dy = random_tensor<T>(Shape{K, N + between}, 2);
  Tensor2<T> copy(Shape{M, K + 1}), c = random_tensor<T>(Shape{M, N + between}, 3);
  for_each_index(Shape{M, K}, [&](const Shape<2>& at) { copy(at) = x(at[1], at[0]); });
  Tensor1<T> scratch(Shape{run.gemm_scratch(size)});
  const auto a =
      copied ? Matrix<const T>{copy.data(), K + 1, 1} : Matrix<const T>{x.data(), 1, M + between};
  run.gemm(a, {dy.data(), N + between, 1}, {c.data(), N + between, 1}, size, {.accumulate = true},
           scratch.data());
  return c;
}

}  // namespace

TEST_CASE("few terms are added with the bits that tiles give them, and nothing else is touched",
          "[kernels]") {
  for_all_kernels([](const auto& run, auto zero) {
    using T = decltype(zero);
    for (const Index M : {1, 5, 6, 7, 12, 22}) {
      for (const Index N : {Index{1}, run.lanes, run.columns, run.columns + run.lanes,
                            3 * run.columns, 2 * run.columns + 3}) {
        for (const Index K : {1, 2, 7, 16, 17}) {
          CAPTURE(sizeof(T), run.lanes, M, N, K);
          CHECK(bitwise_equal(sum<T>(run, {M, N, K}, false), sum<T>(run, {M, N, K}, true)));
        }
      }
    }
  });
}

}  // namespace kernels_few_terms
