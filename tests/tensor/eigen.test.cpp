#include "headwise/tensor/eigen.hpp"

#include <numeric>
#include <type_traits>

#include "support/catch.hpp"

namespace tensor_eigen {

using namespace headwise;

namespace {

Tensor2<double> counted(Index N, Index M) {
  Tensor2<double> x(Shape{N, M});
  std::iota(x.begin(), x.end(), 1.0);
  return x;
}

}  // namespace

TEST_CASE("an Eigen map of a tensor is the same matrix over the same storage", "[tensor]") {
  Tensor2<double> x = counted(3, 5);
  auto map = eigen_map(x);
  CHECK(map.rows() == 3);
  CHECK(map.cols() == 5);
  for_each_index(x.shape(), [&](const Shape<2>& i) { CHECK(&map(i[0], i[1]) == &x(i)); });
  map.row(1) *= 10;
  CHECK(x(1, 4) == 100);
  CHECK(x(0, 4) == 5);
}

TEST_CASE("an Eigen map follows any strides", "[tensor]") {
  Tensor2<double> x = counted(4, 6);
  const View2<double> views[] = {transpose(x, 0, 1), slice(x, 1, 2, 3), slice(x, 0, 1, 2),
                                 View2<double>(x.data() + 1, Shape{2, 3}, Shape{12, 2})};
  for (const View2<double>& view : views) {
    const auto map = eigen_map(view);
    REQUIRE(map.rows() == view.extent(0));
    REQUIRE(map.cols() == view.extent(1));
    for_each_index(view.shape(), [&](const Shape<2>& i) { CHECK(&map(i[0], i[1]) == &view(i)); });
  }
}

TEST_CASE("an Eigen map of what is only read cannot be written to", "[tensor]") {
  const Tensor2<double> x = counted(2, 2);
  Tensor2<double> y = counted(2, 2);
  STATIC_REQUIRE(std::is_same_v<decltype(eigen_map(x).data()), const double*>);
  STATIC_REQUIRE(std::is_same_v<decltype(eigen_map(In<double, 2>(y)).data()), const double*>);
  auto writable = eigen_map(y);
  STATIC_REQUIRE(std::is_same_v<decltype(writable.data()), double*>);
}

TEST_CASE("a vector maps to an Eigen row at its own distance", "[tensor]") {
  const Tensor2<double> x = counted(3, 4);
  const In<double, 1> column(x.data() + 1, Shape{3}, Shape{4});
  const auto row = eigen_map(column);
  REQUIRE(row.cols() == 3);
  for (Index n = 0; n < 3; ++n) CHECK(row(n) == x(n, 1));
}

TEST_CASE("an Eigen map of a vector writes to its elements alone, unless it is only read",
          "[tensor]") {
  Tensor2<double> x = counted(3, 4);
  const Tensor2<double> before = x;
  eigen_map(Out<double, 1>(x.data() + 1, Shape{3}, Shape{4})) *= -2;
  for_each_index(x.shape(),
                 [&](const Shape<2>& at) { CHECK(x(at) == (at[1] == 1 ? -2 : 1) * before(at)); });
  Tensor1<double> y({3}, {1, 2, 3});
  eigen_map(y).setZero();
  for (const double element : y) CHECK(element == 0);
  const Tensor1<double>& only_read = y;
  STATIC_REQUIRE(std::is_same_v<decltype(eigen_map(only_read).data()), const double*>);
}

TEST_CASE("from_eigen_vector has one axis, whichever way the vector stands", "[tensor]") {
  Eigen::VectorXd column = Eigen::VectorXd::LinSpaced(4, 0, 3);
  const Out<double, 1> x = from_eigen_vector(column);
  REQUIRE(x.shape() == Shape{4});
  x(2) = -1;
  CHECK(column(2) == -1);
  const Eigen::RowVectorXd row = column.transpose();
  STATIC_REQUIRE(std::is_same_v<decltype(from_eigen_vector(row)), In<double, 1>>);
  CHECK(from_eigen_vector(row).data() == row.data());
  CHECK(from_eigen_vector(row).strides() == Shape{1});

  const Eigen::MatrixXd by_columns = Eigen::MatrixXd::Random(3, 4);
  const EigenMatrix<double> by_rows = by_columns;
  const auto check = [&](const In<double, 1>& y, Index count, const auto& element) {
    REQUIRE(y.shape() == Shape{count});
    for (Index n = 0; n < count; ++n) CHECK(y(n) == element(n));
  };
  check(from_eigen_vector(by_columns.row(1)), 4, [&](Index n) { return by_columns(1, n); });
  check(from_eigen_vector(by_columns.col(2)), 3, [&](Index n) { return by_columns(n, 2); });
  check(from_eigen_vector(by_rows.row(1)), 4, [&](Index n) { return by_columns(1, n); });
  check(from_eigen_vector(by_rows.col(2)), 3, [&](Index n) { return by_columns(n, 2); });
  check(from_eigen_vector(by_rows.diagonal()), 3, [&](Index n) { return by_columns(n, n); });
}

TEST_CASE("a row-major Eigen matrix comes back through from_eigen in place", "[tensor]") {
  EigenMatrix<double> m(3, 4);
  for (Index n = 0; n < 12; ++n) m.data()[n] = static_cast<double>(n);
  Out<double, 2> x = from_eigen(m);
  CHECK(x.shape() == Shape{3, 4});
  for_each_index(x.shape(), [&](const Shape<2>& i) { CHECK(&x(i) == &m(i[0], i[1])); });
  x(2, 1) = -1;
  CHECK(m(2, 1) == -1);

  const EigenMatrix<double>& read_only = m;
  STATIC_REQUIRE(std::is_same_v<decltype(from_eigen(read_only)), In<double, 2>>);
  CHECK(from_eigen(read_only).data() == m.data());
  CHECK((eigen_map(from_eigen(read_only)).array() == m.array()).all());
}

TEST_CASE("blocks and maps of row-major Eigen matrices keep their strides", "[tensor]") {
  EigenMatrix<float> m(4, 6);
  for (Index n = 0; n < 24; ++n) m.data()[n] = static_cast<float>(n);
  auto block = m.block(1, 2, 3, 2);
  const Out<float, 2> x = from_eigen(block);
  CHECK(x.strides() == Shape{6, 1});
  for_each_index(x.shape(), [&](const Shape<2>& i) { CHECK(&x(i) == &m(1 + i[0], 2 + i[1])); });
  const Eigen::Map<const EigenMatrix<float>> map(m.data(), 6, 4);
  const In<float, 2> y = from_eigen(map);
  CHECK(y.shape() == Shape{6, 4});
  CHECK(&y(5, 3) == m.data() + 23);
}

TEST_CASE("from_column_major reads element (i, j) of a column-major matrix as (i, j)", "[tensor]") {
  Eigen::MatrixXd m(3, 5);
  for (Index i = 0; i < 3; ++i) {
    for (Index j = 0; j < 5; ++j) m(i, j) = static_cast<double>(10 * i + j);
  }
  const In<double, 2> x = from_column_major(m);
  CHECK(x.shape() == Shape{3, 5});
  for_each_index(x.shape(), [&](const Shape<2>& i) { CHECK(&x(i) == &m(i[0], i[1])); });
  const Eigen::MatrixXd& whole = m;
  const auto block = whole.block(1, 1, 2, 3);
  const In<double, 2> part = from_column_major(block);
  for_each_index(part.shape(), [&](const Shape<2>& i) { CHECK(part(i) == m(1 + i[0], 1 + i[1])); });
}

TEST_CASE("empty tensors and matrices pass through the bridge", "[tensor]") {
  Tensor2<double> x(Shape{0, 4});
  CHECK(eigen_map(x).rows() == 0);
  CHECK(eigen_map(x).cols() == 4);
  EigenMatrix<double> m(3, 0);
  CHECK(from_eigen(m).shape() == Shape{3, 0});
}

}  // namespace tensor_eigen
