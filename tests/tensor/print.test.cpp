#include "headwise/tensor/print.hpp"

#include <iomanip>
#include <sstream>

#include "headwise/tensor/view_ops.hpp"
#include "support/catch.hpp"

namespace tensor_print {

using namespace headwise;

namespace {

template <class X>
std::string printed(const X& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

}  // namespace

TEST_CASE("a tensor prints nested in brackets, the last axis on a line", "[tensor]") {
  CHECK(printed(Tensor1<int>(Shape{3}, {1, 2, 3})) == "[1, 2, 3]");
  CHECK(printed(Tensor2<double>(Shape{2, 2}, {1, -2.5, 0.125, 4})) == "[[1, -2.5]\n [0.125, 4]]");
  CHECK(printed(Tensor3<int>(Shape{2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})) ==
        "[[[1, 2]\n  [3, 4]]\n\n [[5, 6]\n  [7, 8]]]");
}

TEST_CASE("a view prints its own elements in its own order", "[tensor]") {
  Tensor2<int> x(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(printed(transpose(x, 0, 1)) == "[[1, 4]\n [2, 5]\n [3, 6]]");
  CHECK(printed(slice(x, 1, 1, 1)) == "[[2]\n [5]]");
}

TEST_CASE("an empty tensor prints as empty brackets", "[tensor]") {
  CHECK(printed(Tensor1<float>(Shape{0})) == "[]");
  CHECK(printed(Tensor2<float>(Shape{2, 0})) == "[[]\n []]");
  CHECK(printed(In<float, 2>()) == "[]");
}

TEST_CASE("the precision of the stream is that of the elements", "[tensor]") {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << Tensor1<double>(Shape{2}, {1.0 / 3, 2});
  CHECK(out.str() == "[0.33, 2.00]");
}

TEST_CASE("a dual number prints as its value and its derivative", "[tensor]") {
  using D = Dual<double>;
  CHECK(printed(D(1.5, -2)) == "(1.5, -2)");
  CHECK(printed(Tensor1<D>(Shape{2}, {D(1, 2), D(3)})) == "[(1, 2), (3, 0)]");
  CHECK(printed(Dual<D>(D(1, 2), D(3, 4))) == "((1, 2), (3, 4))");
}

}  // namespace tensor_print
