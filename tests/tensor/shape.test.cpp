#include "headwise/tensor/shape.hpp"

#include <limits>
#include <sstream>
#include <vector>

#include "support/catch.hpp"

namespace tensor_shape {

using namespace headwise;

TEST_CASE("the size of a Shape is the product of its extents, 0 where one is 0", "[tensor]") {
  CHECK(Shape{7}.size() == 7);
  CHECK(Shape{2, 3, 5}.size() == 30);
  CHECK(Shape{2, 0, 5}.size() == 0);
  CHECK(Shape<3>().size() == 0);
  STATIC_REQUIRE(Shape{4, 5, 6, 7}.size() == 840);
}

TEST_CASE("a Shape takes the largest size that Index can hold", "[tensor]") {
  constexpr Index most = std::numeric_limits<Index>::max();
  CHECK(Shape{most}.size() == most);
  CHECK(Shape{1, most, 1}.size() == most);
  CHECK(Shape{Index{1} << 31, Index{1} << 31}.size() == Index{1} << 62);
}

TEST_CASE("a Shape with a 0 has size 0, however large the others are", "[tensor]") {
  constexpr Index most = std::numeric_limits<Index>::max();
  CHECK(Shape{most, 0, most}.size() == 0);
  CHECK(Shape{most, most, 0}.size() == 0);
}

TEST_CASE("row-major strides count the elements of the inner axes", "[tensor]") {
  CHECK(Shape{2, 3, 5, 7}.row_major_strides() == Shape{105, 35, 7, 1});
  CHECK(Shape{9}.row_major_strides() == Shape{1});
}

TEST_CASE("a Shape prints as its extents in brackets", "[tensor]") {
  CHECK(Shape{2, 3, 4}.format() == "[2, 3, 4]");
  CHECK(Shape{0}.format() == "[0]");
  std::ostringstream out;
  out << Shape{1, 20};
  CHECK(out.str() == "[1, 20]");
}

TEST_CASE("for_each_index visits every index once in row-major order", "[tensor]") {
  for (const Shape<3>& shape : {Shape{2, 3, 5}, Shape{1, 1, 1}, Shape{4, 1, 2}, Shape{3, 0, 2}}) {
    CAPTURE(shape.format());
    const Shape<3> strides = shape.row_major_strides();
    Index expected = 0;
    for_each_index(shape, [&](const Shape<3>& index) {
      CHECK(index[0] * strides[0] + index[1] * strides[1] + index[2] * strides[2] == expected);
      ++expected;
    });
    CHECK(expected == shape.size());
  }
}

}  // namespace tensor_shape
