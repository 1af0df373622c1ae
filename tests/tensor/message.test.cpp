// What a message is made of: texts as they are, numbers with as many digits as tell them apart.
#include <cmath>
#include <string>
#include <vector>

#include "headwise/tensor/shape.hpp"
#include "support/catch.hpp"

namespace tensor_message {

using headwise::Index;
using headwise::Shape;
using headwise::detail::join;

TEST_CASE("a message is its texts, numbers and extents, one behind the other", "[tensor]") {
  const std::string name = "x";
  const std::vector<Index> list = {5, -6};
  CHECK(join({}) == "");
  CHECK(join({"f: ", name, std::string_view("yz").substr(0, 1)}) == "f: xy");
  CHECK(join({-3, " ", std::size_t{7}, " ", Index{1} << 62}) == "-3 7 4611686018427387904");
  CHECK(join({0.1, " ", 0.1f, " ", -1.5L, " ", 2.0}) == "0.1 0.1 -1.5 2");
  CHECK(join({1e-50, " ", std::nan(""), " ", -HUGE_VAL}) == "1e-50 nan -inf");
  CHECK(join({Shape{2, 0, 4}, " of ", list, Shape{1}.extents}) == "[2, 0, 4] of [5, -6][1]");
}

TEST_CASE("a rule that holds asks no callable for its message", "[tensor]") {
  int calls = 0;
  const auto message = [&] {
    ++calls;
    return "n is " + std::to_string(calls);
  };
  headwise::require(true, "f", message);
  CHECK(calls == 0);
  CHECK(headwise::error_of([&] { headwise::require(false, "f", message); }) == "f: n is 1");
  CHECK(headwise::error_of([&] { headwise::require(false, "f", "n is ", 2); }) == "f: n is 2");
}

}  // namespace tensor_message
