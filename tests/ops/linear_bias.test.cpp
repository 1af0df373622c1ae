// A bias that is not dense, and how what was compared is printed and mapped.
#include <sstream>

#include "headwise/ops/linear.hpp"
#include "headwise/tensor/eigen.hpp"
#include "headwise/testing/close_to.hpp"
#include "support/catch.hpp"

namespace ops_linear_bias {

using namespace headwise;

TEST_CASE("a bias that is a column of a matrix is added like a dense one", "[ops]") {
  const Tensor2<double> x({2, 3}, {1, 2, 3, 4, 5, 6}), w({3, 2}, {1, -1, 0.5, 2, -2, 3});
  const Tensor2<double> columns({2, 3}, {7, 10, 8, 9, -20, 6});  // the bias is the middle one
  const Tensor1<double> dense({2}, {10, -20});
  Tensor2<double> y({2, 2}), expected({2, 2});
  linear_forward(x, w, select(transpose(columns, 0, 1), 1), y);
  linear_forward(x, w, dense, expected);
  CHECK(y(0, 0) == 1 + 0.5 * 2 - 2 * 3 + 10);
  const Closeness closeness = close_to(y, expected, 0);
  CHECK(closeness);
  std::ostringstream printed;
  printed << closeness;
  CHECK(printed.str() == closeness.message());
}

TEST_CASE("a tensor that is const maps to Eigen for reading", "[ops]") {
  const Tensor2<double> x({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(eigen_map(x).col(1).sum() == 7);
  CHECK(eigen_map(x).data() == x.data());
}

}  // namespace ops_linear_bias
