// Sums down columns, for every number of columns around the block of 64.
#include "headwise/kernels/column_sums.hpp"

#include <vector>

#include "support/catch.hpp"

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
