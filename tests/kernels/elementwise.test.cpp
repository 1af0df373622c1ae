// Combinations of rows, element by element, and their column sums, by the kernels of every
// instruction set of this processor: each is what it says, element by element.
#include <limits>
#include <vector>

#include "headwise/tensor/philox.hpp"
#include "headwise/testing/number.hpp"
#include "support/all_kernels.hpp"
#include "support/catch.hpp"

namespace kernels_elementwise {

using namespace headwise;
using headwise_tests::for_all_model_kernels;
using kernels::Combination;

namespace {

constexpr Combination all[] = {Combination::first,
                               Combination::sum,
                               Combination::difference,
                               Combination::product,
                               Combination::quotient,
                               Combination::scaled,
                               Combination::gradient_product,
                               Combination::gradient_quotient,
                               Combination::negative_gradient_product};

template <class T>
T expected(Combination how, T a, T b, T alpha) {
  switch (how) {
    case Combination::first:
      return a;
    case Combination::sum:
      return a + b;
    case Combination::difference:
      return a - b;
    case Combination::product:
      return a * b;
    case Combination::quotient:
      return a / b;
    case Combination::scaled:
      return alpha * a;
    case Combination::gradient_product:
      return a == 0 ? T(0) : a * b;
    case Combination::gradient_quotient:
      return a == 0 ? T(0) : a / b;
    case Combination::negative_gradient_product:
      return a == 0 ? T(0) : -(a * b);
  }
  return T(0);
}

/// Normal numbers, every seventh 0; where the other operand is NaN then.
template <class T>
std::vector<T> numbers(Index count, std::uint64_t seed, T seventh) {
  std::vector<T> x;
  for (Index n = 0; n < count; ++n) {
    const double z = philox_normal(philox_key(seed), static_cast<std::uint64_t>(n));
    x.push_back(n % 7 == 3 ? seventh : static_cast<T>(z));
  }
  return x;
}

/// By bits: where clang 14 is told that there are no NaNs, its std::isnan finds none.
template <class T>
bool is_nan(const T& x) {
  return detail::number_kind(x) == detail::NumberKind::nan;
}
template <class T>
bool same(const T& a, const T& b) {
  return a == b || (is_nan(a) && is_nan(b));
}

}  // namespace

TEST_CASE("rows are combined element by element, through any strides and with one row for all",
          "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    constexpr Index rows = 4;
    const T nan = std::numeric_limits<T>::quiet_NaN();
    for (const Combination how : all) {
      for (const Index N : {1, 5, 16, 63, 64, 65, 131}) {
        for (const Index step : {1, 3}) {
          for (const bool one_row : {false, true}) {
            CAPTURE(static_cast<int>(how), sizeof(T), N, step, one_row);
            const auto a = numbers<T>(rows * N * step, 1, T(0));
            const auto b = numbers<T>(rows * N * step, 2, nan);
            std::vector<T> y(a.size(), T(-9));
            const Index next = one_row ? 0 : N * step;
            run.combine_rows(how,
                             {{a.data(), N * step, step},
                              {b.data(), next, step},
                              {y.data(), N * step, step},
                              N,
                              T(0.75)},
                             1, 3);
            bool right = true;
            for (Index i = 0; i < rows; ++i) {
              for (Index n = 0; n < N * step; ++n) {
                const auto at = static_cast<std::size_t>(i * N * step + n);
                const auto at_b = static_cast<std::size_t>(i * next + n);
                const bool written = n % step == 0 && i >= 1 && i < 3;
                const T wanted = written ? expected(how, a[at], b[at_b], T(0.75)) : T(-9);
                right = right && same(y[at], wanted);
              }
            }
            CHECK(right);
          }
        }
      }
    }
  });
}

TEST_CASE("column sums of combinations are the sums of what the rows give", "[kernels]") {
  for_all_model_kernels([](const auto& run, auto type) {
    using T = decltype(type);
    for (const Combination how : all) {
      for (const Index rows : {1, 16, 17, 70}) {
        const Index N = 77;
        CAPTURE(static_cast<int>(how), sizeof(T), rows);
        const auto a = numbers<T>(rows * N, 3, T(0)), b = numbers<T>(rows * N, 4, T(2));
        std::vector<T> sums(static_cast<std::size_t>(N), T(0.5));
        run.combine_columns(how, {{a.data(), N, 1}, {b.data(), N, 1}, {nullptr, 0, 0}, N, T(0.75)},
                            rows, 2, N, {sums.data(), 1});
        double worst = 0;
        for (Index n = 2; n < N; ++n) {
          double wanted = 0.5, size = 1;
          for (Index i = 0; i < rows; ++i) {
            const auto at = static_cast<std::size_t>(i * N + n);
            const double term = static_cast<double>(expected(how, a[at], b[at], T(0.75)));
            wanted += term;
            size += std::abs(term);
          }
          worst = std::max(
              worst,
              std::abs(static_cast<double>(sums[static_cast<std::size_t>(n)]) - wanted) / size);
        }
        // A chain of 16 terms, then log2 of the chains.
        CHECK(worst <= 24 * static_cast<double>(std::numeric_limits<T>::epsilon()));
        CHECK(sums[0] == T(0.5));
        CHECK(sums[1] == T(0.5));
      }
    }
  });
}

}  // namespace kernels_elementwise
