#include "headwise/tensor/view.hpp"

#include <array>
#include <concepts>
#include <type_traits>

#include "headwise/tensor/tensor.hpp"
#include "support/catch.hpp"

namespace tensor_view {

using namespace headwise;

namespace {

// What a function's signature looks like: T is deduced from the first argument.
template <class T>
T first_of(In<T, 2> x) {
  return x(0, 0);
}
template <class T>
void set(Out<T, 2> x, T value) {
  x(0, 0) = value;
}
template <class T>
void add(InOut<T, 2> x, T value) {
  x(0, 0) += value;
}
template <class T>
bool is_absent(In<T, 2>, In<std::type_identity_t<T>, 1> b) {
  return b.absent();
}

template <class X>
concept CanBeSet = requires(X& x) {
  set(x, 1.0f);
};
template <class X>
concept CanBeAddedTo = requires(X& x) {
  add(x, 1.0f);
};

}  // namespace

TEST_CASE("a const Tensor passes only as what is read", "[tensor]") {
  using X = Tensor<float, 2>;
  STATIC_REQUIRE(std::is_convertible_v<X&, In<float, 2>>);
  STATIC_REQUIRE(std::is_convertible_v<X&, Out<float, 2>>);
  STATIC_REQUIRE(std::is_convertible_v<X&, InOut<float, 2>>);
  STATIC_REQUIRE(std::is_convertible_v<const X&, In<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<const X&, Out<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<const X&, InOut<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<Out<float, 2>, const X&>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<InOut<float, 2>, const X&>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<TensorView<float, 2>, const X&>);
  STATIC_REQUIRE(CanBeSet<X>);
  STATIC_REQUIRE(CanBeAddedTo<X>);
  STATIC_REQUIRE_FALSE(CanBeSet<const X>);
  STATIC_REQUIRE_FALSE(CanBeAddedTo<const X>);
}

TEST_CASE("a view of const elements, or of another type or rank, is not written to", "[tensor]") {
  STATIC_REQUIRE(std::is_convertible_v<TensorView<const float, 2>, In<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<TensorView<const float, 2>, Out<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<In<float, 2>, Out<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<Out<float, 2>, InOut<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<Tensor<double, 2>&, In<float, 2>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<Tensor<float, 3>&, In<float, 2>>);
}

TEST_CASE("a Tensor of another type or rank is told apart from what is written to", "[tensor]") {
  CHECK_FALSE(std::is_convertible_v<Tensor<double, 2>&, Out<float, 2>>);
  CHECK_FALSE(std::is_convertible_v<Tensor<float, 3>&, Out<float, 2>>);
  CHECK_FALSE(std::is_convertible_v<Tensor<double, 2>&, InOut<float, 2>>);
}

TEST_CASE("Tensors and views pass to In, Out and InOut with the scalar type deduced", "[tensor]") {
  Tensor<float, 2> x(Shape{2, 2}, {1, 2, 3, 4});
  set(x, 5.0f);
  add(x, 2.0f);
  CHECK(first_of(x) == 7.0f);

  TensorView<float, 2> view(x.data(), x.shape());
  set(view, 1.0f);
  add(view, 0.5f);
  CHECK(first_of(view) == 1.5f);
  CHECK(x(0, 0) == 1.5f);

  const TensorView<float, 2> const_view = view;  // const like a const pointer: it still writes
  set(const_view, 3.0f);
  CHECK(first_of(TensorView<const float, 2>(view)) == 3.0f);
}

TEST_CASE("braces stand for an absent tensor, which an empty one with a shape is not", "[tensor]") {
  const Tensor<float, 2> x(Shape{1, 1});
  const Tensor<float, 1> b(Shape{3});
  CHECK(is_absent(x, {}));
  CHECK_FALSE(is_absent(x, b));
  CHECK_FALSE(Tensor<float, 2>(Shape{4, 0}).absent());
  CHECK(In<float, 2>().absent());
  CHECK(In<float, 2>().size() == 0);
}

TEST_CASE("a view over a raw pointer finds element (i, j, k) by its strides", "[tensor]") {
  std::array<int, 60> storage{};
  for (int n = 0; n < 60; ++n) storage[static_cast<std::size_t>(n)] = n;
  const View3<int> x(storage.data() + 1, Shape{2, 3, 4}, Shape{29, 2, 7});
  for_each_index(x.shape(), [&](const Shape<3>& i) {
    CHECK(x(i) == 1 + 29 * i[0] + 2 * i[1] + 7 * i[2]);
    CHECK(x(i[0], i[1], i[2]) == x(i));
  });
  x(1, 2, 3) = -1;
  CHECK(storage[1 + 29 + 4 + 21] == -1);

  const View2<int> reversed(storage.data() + 9, Shape{2, 5}, Shape{5, -1});
  CHECK(reversed(0, 0) == 9);
  CHECK(reversed(1, 4) == 10);
}

TEST_CASE("a tensor is dense where its elements follow each other in row-major order", "[tensor]") {
  std::array<float, 64> storage{};
  const auto dense = [&](const Shape<2>& shape, const Shape<2>& strides) {
    return In<float, 2>(storage.data(), shape, strides).dense();
  };
  CHECK(dense({3, 4}, {4, 1}));
  CHECK_FALSE(dense({3, 4}, {5, 1}));
  CHECK_FALSE(dense({3, 4}, {1, 3}));
  CHECK(dense({1, 4}, {99, 1}));  // the distance of a single row is never used
  CHECK(dense({3, 1}, {1, 99}));
  CHECK_FALSE(dense({3, 1}, {2, 1}));
  CHECK(dense({0, 4}, {7, 7}));
}

}  // namespace tensor_view
