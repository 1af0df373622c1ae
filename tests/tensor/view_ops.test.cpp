#include "headwise/tensor/view_ops.hpp"

#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace tensor_view_ops {

using namespace headwise;

namespace {

template <int R>
Tensor<int, R> counted(const Shape<R>& shape) {
  Tensor<int, R> x(shape);
  std::iota(x.begin(), x.end(), 0);
  return x;
}

}  // namespace

TEST_CASE("a slice is the elements begin to begin + count of one axis, in place", "[tensor]") {
  Tensor3<int> x = counted(Shape{3, 5, 4});
  for (int axis = 0; axis < 3; ++axis) {
    for (Index begin = 0; begin <= x.extent(axis); ++begin) {
      for (Index count = 0; count <= x.extent(axis) - begin; ++count) {
        CAPTURE(axis, begin, count);
        const View3<int> part = slice(x, axis, begin, count);
        CHECK(part.extent(axis) == count);
        CHECK(part.strides() == x.strides());
        for_each_index(part.shape(), [&](Shape<3> index) {
          const int* element = &part(index);
          index[axis] += begin;
          CHECK(element == &x(index));
        });
      }
    }
  }
}

TEST_CASE("select leaves the axes behind the first", "[tensor]") {
  const Tensor3<int> x = counted(Shape{3, 2, 4});
  for (Index b = 0; b < 3; ++b) {
    const In<int, 2> matrix = select(x, b);
    CHECK(matrix.shape() == Shape{2, 4});
    for_each_index(matrix.shape(),
                   [&](const Shape<2>& i) { CHECK(&matrix(i) == &x(b, i[0], i[1])); });
    CHECK(select(matrix, 1)(3) == x(b, 1, 3));
  }
}

TEST_CASE("transpose exchanges two axes and is its own inverse", "[tensor]") {
  const Tensor3<int> x = counted(Shape{3, 2, 4});
  const In<int, 3> y = transpose(x, 0, 2);
  CHECK(y.shape() == Shape{4, 2, 3});
  for_each_index(x.shape(),
                 [&](const Shape<3>& i) { CHECK(&y(i[2], i[1], i[0]) == &x(i[0], i[1], i[2])); });
  const In<int, 3> back = transpose(y, 2, 0);
  CHECK(back.shape() == x.shape());
  CHECK(back.strides() == x.strides());
}

TEST_CASE("views of a const Tensor are read-only, views of a Tensor are not", "[tensor]") {
  using X = Tensor<float, 3>;
  STATIC_REQUIRE(std::is_same_v<decltype(slice(std::declval<X&>(), 0, 0, 1)), View3<float>>);
  STATIC_REQUIRE(std::is_same_v<decltype(slice(std::declval<const X&>(), 0, 0, 1)), In<float, 3>>);
  STATIC_REQUIRE(std::is_same_v<decltype(split_heads(std::declval<X&>(), 1)), View4<float>>);
  STATIC_REQUIRE(std::is_same_v<decltype(split_heads(std::declval<const X&>(), 1)), In<float, 4>>);
  STATIC_REQUIRE(std::is_same_v<decltype(select(std::declval<Out<float, 3>>(), 0)), Out<float, 2>>);
}

TEST_CASE("merge_rows lines up the rows of all batch elements over the same storage", "[tensor]") {
  Tensor3<int> fused = counted(Shape{3, 5, 8});
  const View3<int> part = slice(fused, 2, 2, 3);  // rows at distance 8
  const View2<int> rows = merge_rows(part);
  CHECK(rows.shape() == Shape{15, 3});
  CHECK(rows.strides() == Shape{8, 1});
  for_each_index(part.shape(), [&](const Shape<3>& i) {
    CHECK(&rows(5 * i[0] + i[1], i[2]) == &part(i[0], i[1], i[2]));
  });
}

TEST_CASE("merge_rows takes rows of one batch element, or of none, at any distance", "[tensor]") {
  Tensor3<int> x = counted(Shape{2, 5, 4});
  const View3<int> part = slice(x, 1, 1, 3);
  CHECK(merge_rows(slice(part, 0, 1, 1)).shape() == Shape{3, 4});
  CHECK(merge_rows(slice(part, 1, 0, 0)).shape() == Shape{0, 4});
}

TEST_CASE("merge_rows takes one row of each batch element, which lie a batch apart", "[tensor]") {
  Tensor3<int> x = counted(Shape{2, 5, 4});
  const View3<int> newest = slice(x, 1, 4, 1);
  const View2<int> rows = merge_rows(newest);
  CHECK(rows.shape() == Shape{2, 4});
  CHECK(&rows(1, 3) == &x(1, 4, 3));
}

TEST_CASE("reshape counts the same elements on by other extents, in place", "[tensor]") {
  Tensor2<int> x = counted(Shape{2, 6});
  const View3<int> y = reshape(x, Shape{3, 2, 2});
  CHECK(y.strides() == Shape{4, 2, 1});
  for_each_index(y.shape(),
                 [&](const Shape<3>& i) { CHECK(&y(i) == x.data() + 4 * i[0] + 2 * i[1] + i[2]); });
  CHECK(reshape(y, Shape{12}).data() == x.data());
  CHECK(reshape(slice(x, 0, 1, 1), Shape{6, 1})(5, 0) == 11);  // rows of a part are dense, too
  const Tensor2<int>& constant = x;
  STATIC_REQUIRE(std::is_same_v<decltype(reshape(constant, Shape{12})), In<int, 1>>);
  const In<int, 2> none(nullptr, Shape{0, 3});
  CHECK(reshape(none, Shape{7, 0}).shape() == Shape{7, 0});
}

TEST_CASE("split_heads over rows of width W has strides (L W, d, W, 1)", "[tensor]") {
  for (Index B : {1, 2}) {
    for (Index L : {1, 2, 7}) {
      for (Index H : {1, 3, 4}) {
        for (Index d : {1, 5}) {
          for (Index begin : {0, 2}) {
            CAPTURE(B, L, H, d, begin);
            const Index W = H * d + 6;
            Tensor3<int> fused = counted(Shape{B, L, W});  // of which the heads are some columns
            const View3<int> x = slice(fused, 2, begin, H * d);
            const View4<int> heads = split_heads(x, H);
            CHECK(heads.shape() == Shape{B, H, L, d});
            CHECK(heads.strides() == Shape{L * W, d, W, 1});
            for_each_index(heads.shape(), [&](const Shape<4>& i) {
              CHECK(&heads(i) == &fused(i[0], i[2], begin + i[1] * d + i[3]));
            });
          }
        }
      }
    }
  }
}

TEST_CASE("merge_heads inverts split_heads on the same storage", "[tensor]") {
  for (Index H : {1, 2, 3, 6}) {
    CAPTURE(H);
    Tensor3<int> fused = counted(Shape{2, 5, 20});
    const View3<int> x = slice(fused, 2, 4, 6);
    const View3<int> merged = merge_heads(split_heads(x, H));
    CHECK(merged.shape() == x.shape());
    CHECK(merged.strides() == x.strides());
    CHECK(merged.data() == x.data());
  }
}

TEST_CASE("copy and contiguous move elements by index, whatever the strides", "[tensor]") {
  const Tensor3<int> x = counted(Shape{3, 2, 4});
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 2}, {0, 2}}) {
    CAPTURE(a, b);
    const In<int, 3> turned = transpose(x, a, b);
    const Tensor3<int> dense = contiguous(turned);
    CHECK(dense.dense());
    for_each_index(turned.shape(), [&](const Shape<3>& i) { CHECK(dense(i) == turned(i)); });

    Tensor3<int> to(x.shape());
    copy(dense, transpose(to, a, b));
    CHECK(std::equal(to.begin(), to.end(), x.begin()));
    copy(turned, transpose(to, a, b));
    CHECK(std::equal(to.begin(), to.end(), x.begin()));
  }
}

TEST_CASE("copy of a view to itself changes nothing, of none writes nothing", "[tensor]") {
  Tensor2<int> x = counted(Shape{4, 5});
  copy(In<int, 2>(slice(x, 1, 1, 3)), slice(x, 1, 1, 3));
  for_each_index(x.shape(), [&](const Shape<2>& i) { CHECK(x(i) == 5 * i[0] + i[1]); });
  copy(In<int, 2>(nullptr, Shape{4, 0}), slice(x, 1, 5, 0));
  fill(slice(x, 1, 2, 0), -1);
  CHECK(std::count(x.begin(), x.end(), -1) == 0);
}

TEST_CASE("fill sets the elements of a view and no others", "[tensor]") {
  for (const bool turned : {false, true}) {
    Tensor2<int> x = counted(Shape{4, 5});
    const View2<int> part = slice(slice(x, 0, 1, 2), 1, 2, 2);
    fill(turned ? transpose(part, 0, 1) : part, -1);
    for_each_index(x.shape(), [&](const Shape<2>& i) {
      const bool inside = i[0] >= 1 && i[0] < 3 && i[1] >= 2 && i[1] < 4;
      CHECK(x(i) == (inside ? -1 : 5 * i[0] + i[1]));
    });
  }
}

TEST_CASE("fill writes a zero of either sign, dense or not, and none to no elements", "[tensor]") {
  for (const float zero : {0.0f, -0.0f}) {
    for (const bool dense : {true, false}) {
      CAPTURE(zero, dense);
      Tensor<float, 2> x(Shape{3, 7});
      fill(x, 5);
      const auto part = dense ? slice(x, 0, 1, 2) : slice(x, 1, 1, 6);
      fill(part, zero);
      Index zeros = 0, others = 0;
      for (const float value : x) {
        if (value == 5) ++others;
        if (value == 0 && std::signbit(value) == std::signbit(zero)) ++zeros;
      }
      CHECK(zeros == part.size());
      CHECK(others == x.size() - part.size());
    }
  }
  Tensor<float, 2> none(Shape{0, 7});
  fill(none, 0);
}

TEST_CASE("convert keeps the values in another type, whatever the strides", "[tensor]") {
  const Tensor2<double> x(Shape{1, 3}, {0.5, -2.0, 1e300});
  const auto wide = convert<long double>(In<double, 2>(x));
  CHECK(wide(0, 2) == static_cast<long double>(1e300));
  const auto back = convert<double>(In<long double, 2>(wide));
  for (Index j = 0; j < 3; ++j) CHECK(back(0, j) == x(0, j));
  const Tensor2<int> numbers = counted(Shape{4, 5});
  const auto turned = convert<double>(In<int, 2>(transpose(numbers, 0, 1)));
  CHECK(turned.shape() == Shape{5, 4});
  for_each_index(turned.shape(),
                 [&](const Shape<2>& i) { CHECK(turned(i) == numbers(i[1], i[0])); });
}

}  // namespace tensor_view_ops
