#include "headwise/runtime/trace.hpp"

#include <vector>

#include "headwise/tensor/view_ops.hpp"
#include "support/catch.hpp"

namespace runtime_trace {

using namespace headwise;

namespace {

Trace two_tensors() {
  Trace trace;
  trace.record("x", Tensor2<float>(Shape{2, 3}, {1, 2, 3, 4, 5, 6}));
  trace.record("b", Tensor1<double>(Shape{2}, {0.5, -0.5}));
  return trace;
}

}  // namespace

TEST_CASE("a trace keeps names, shapes and values in the order of the computation", "[runtime]") {
  const Trace trace = two_tensors();
  REQUIRE(trace.entries().size() == 2);
  CHECK(trace.entries()[0].name == "x");
  CHECK(trace.entries()[0].shape == std::vector<Index>{2, 3});
  CHECK(trace.entries()[0].values == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(trace.entries()[1].name == "b");
  CHECK(trace.contains("b"));
  CHECK_FALSE(trace.contains("c"));
  const In<double, 2> x = trace.view<2>("x");
  CHECK(x.shape() == Shape{2, 3});
  CHECK(x(1, 0) == 4);
}

TEST_CASE("a trace copies what it records, row-major whatever the strides were", "[runtime]") {
  Tensor2<float> x(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  Trace trace;
  trace.record("turned", transpose(x, 0, 1));
  x(0, 0) = 99;
  CHECK(trace.at("turned").shape == std::vector<Index>{3, 2});
  CHECK(trace.at("turned").values == std::vector<double>{1, 4, 2, 5, 3, 6});
}

TEST_CASE("of two tensors of one name a trace gives the newest and keeps both", "[runtime]") {
  Trace trace = two_tensors();
  trace.record("x", Tensor1<double>(Shape{1}, {7}));
  CHECK(trace.at("x").values == std::vector<double>{7});
  CHECK(trace.entries().size() == 3);
  trace.clear();
  CHECK(trace.entries().empty());
}

}  // namespace runtime_trace
