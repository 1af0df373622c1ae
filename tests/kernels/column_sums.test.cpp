// Sums down columns, for every number of columns around the block of 64.
#include "headwise/kernels/column_sums.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"

namespace kernels_column_sums {

using namespace headwise;

TEST_CASE("add_column_sums adds each column's sum once to what is there", "[kernels]") {
  for (const Index rows : {0, 1, 5}) {
    for (const Index columns : {0, 1, 63, 64, 65, 130}) {
      for (const Index step : {1, 3}) {
        CAPTURE(rows, columns, step);
        const auto size = static_cast<std::size_t>(columns * step);
        std::vector<double> sums(size, 100.0), wanted(size, 100.0);
        const auto term = [](Index i, Index n) {
          return static_cast<double>(n + 1) / static_cast<double>(i + 1);
        };
        for (Index n = 0; n < columns; ++n) {
          double sum = 0;
          for (Index i = 0; i < rows; ++i) sum += term(i, n);
          wanted[static_cast<std::size_t>(n * step)] += sum;
        }
        kernels::add_column_sums(rows, columns, term, sums.data(), step);
        CHECK(sums == wanted);
      }
    }
  }
}

TEST_CASE("add_column_sums leaves out no row, however many there are", "[kernels]") {
  for (const Index rows : {15, 16, 17, 31, 32, 33, 48, 49, 100, 257}) {
    CAPTURE(rows);
    std::vector<double> sums(3, 0.0);
    const auto term = [](Index i, Index n) { return static_cast<double>((i + 1) * (n + 1)); };
    kernels::add_column_sums(rows, 3, term, sums.data(), 1);
    const double whole = static_cast<double>(rows * (rows + 1) / 2);
    CHECK(sums == std::vector<double>{whole, 2 * whole, 3 * whole});
  }
}

// One chain over 100,000 rows is off by 2,000 epsilon here.
TEST_CASE("the error of a column sum is that of 16 rows and a few pairs, not of all rows",
          "[kernels]") {
  const auto term = [](Index i, Index) { return 1.0f / static_cast<float>(i % 7 + 3); };
  float sum = 0;
  double wanted = 0;
  const Index rows = 100000;
  for (Index i = 0; i < rows; ++i) wanted += double{term(i, 0)};
  kernels::add_column_sums(rows, 1, term, &sum, 1);
  CHECK(std::abs(double{sum} - wanted) <=
        (16 + 14) * double{std::numeric_limits<float>::epsilon()} * wanted);
}

}  // namespace kernels_column_sums
