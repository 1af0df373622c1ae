#include "headwise/tensor/dual_view.hpp"

#include <numeric>

#include "support/catch.hpp"

namespace tensor_dual_view {

using namespace headwise;

namespace {

Tensor2<double> counted(double first) {
  Tensor2<double> x(Shape{2, 3});
  std::iota(x.begin(), x.end(), first);
  return x;
}

template <class V>
concept TakenApart = requires(V&& x) {
  derivatives(static_cast<V&&>(x));
};

}  // namespace

TEST_CASE("values and derivatives of a dual tensor are views of its storage", "[tensor]") {
  const auto x = counted(1), u = counted(10);
  Tensor2<Dual<double>> moving = along(x, u);
  CHECK(moving(1, 0) == Dual(4.0, 13.0));
  const auto v = values(moving), d = derivatives(moving);
  for_each_index(x.shape(), [&](const Shape<2>& at) {
    CHECK(v(at) == x(at));
    CHECK(d(at) == u(at));
  });
  CHECK(&d(1, 2) == &moving(1, 2).derivative);
  d(1, 2) = -1;
  v(0, 0) = -2;
  CHECK(moving(1, 2) == Dual(6.0, -1.0));
  CHECK(moving(0, 0) == Dual(-2.0, 10.0));
}

TEST_CASE("derivatives of a view are the same view of the derivatives", "[tensor]") {
  const Tensor2<Dual<double>> moving = along(counted(1), counted(10));
  const In<double, 2> turned = derivatives(transpose(moving, 0, 1));
  CHECK(turned.shape() == Shape{3, 2});
  CHECK(turned(2, 1) == 15.0);
  const In<double, 2> part = derivatives(slice(moving, 1, 1, 2));
  CHECK(part(1, 0) == 14.0);
  CHECK(values(slice(moving, 1, 1, 2))(1, 1) == 6.0);
}

TEST_CASE("a tensor of duals of duals is taken apart twice", "[tensor]") {
  const auto x = counted(1), u = counted(10), w = counted(20), both = counted(30);
  auto twice = along(along(x, u), along(w, both));
  CHECK(derivatives(values(twice))(1, 1) == u(1, 1));
  CHECK(values(derivatives(twice))(1, 1) == w(1, 1));
  CHECK(derivatives(derivatives(twice))(1, 1) == both(1, 1));
}

TEST_CASE("an empty or absent dual tensor has empty or absent parts", "[tensor]") {
  const Tensor2<Dual<double>> empty =
      along(Tensor2<double>(Shape{0, 3}), In<double, 2>(nullptr, {0, 3}));
  CHECK(derivatives(empty).shape() == Shape{0, 3});
  CHECK(derivatives(In<Dual<double>, 2>()).absent());
}

TEST_CASE("parts of a const dual tensor are read only, and a temporary has none", "[tensor]") {
  using Moving = Tensor2<Dual<double>>;
  STATIC_REQUIRE(
      std::is_same_v<decltype(derivatives(std::declval<const Moving&>())), In<double, 2>>);
  STATIC_REQUIRE(std::is_same_v<decltype(derivatives(std::declval<Moving&>())), View2<double>>);
  STATIC_REQUIRE(TakenApart<Moving&>);
  STATIC_REQUIRE_FALSE(TakenApart<Moving>);
  STATIC_REQUIRE_FALSE(TakenApart<Tensor2<double>&>);
}

}  // namespace tensor_dual_view
